"""The section on selection must show what overlap.json says, and claim no more."""

import json

import pytest
from pages import headings, hints, marks_of, parsed, pictures, table_of, words
from run_folders import make_run, write

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_report

BY_TASK = "Overlap of each new task with the finished tasks of other clients"
BY_CLIENT = "Mean overlap of each client's new tasks with each other client's old ones"


def candidate(client, task, overlap, chosen, same_classes=0.0):
    return {
        "client": client,
        "task": task,
        "task_name": f"old {client}.{task}",
        "overlap": overlap,
        "chosen": chosen,
        "same_classes": same_classes,
    }


def begun(client, task, *candidates):
    return {
        "client": client,
        "task": task,
        "task_name": f"new {client}.{task}",
        "candidates": [*candidates],
    }


@pytest.fixture
def shown(tmp_path):
    """Return a function from the entries of overlap.json to the page made of them."""
    run = make_run(tmp_path / "run")

    def show(*entries):
        write(run / "overlap.json", [*entries])
        return parsed(write_report(run))

    return show


# ---- the finding


def test_chosen_tasks_are_compared_with_the_others_by_the_classes_they_share(shown):
    page = shown(
        begun(0, 1, candidate(1, 0, 0.9, True, 0.75), candidate(2, 0, 0.1, False, 0.2)),
        begun(1, 1, candidate(0, 0, 0.8, True, 0.5), candidate(2, 0, 0.2, False, 0.4)),
        # No choice here: it must not count.
        begun(2, 1, candidate(0, 0, 0.8, True, 0.0), candidate(1, 0, 0.2, True, 0.0)),
    )
    # 0.625 is rounded to even.
    assert (
        "Chosen tasks share more of the new task's classes than the others: "
        "0.62 (mean of 2) against 0.30 (mean of 2)" in headings(page)
    )


@pytest.mark.parametrize(
    ("chosen", "other", "told"),
    [
        (0.25, 0.5, "share fewer of the new task's classes than the others: 0.25"),
        (0.5, 0.501, "share as many of the new task's classes as the others: 0.50"),
    ],
)
def test_no_more_is_claimed_than_the_figures_show(shown, chosen, other, told):
    page = shown(
        begun(
            0, 1, candidate(1, 0, 0.9, True, chosen), candidate(2, 0, 0.1, False, other)
        )
    )
    assert any(told in heading for heading in headings(page))


def test_where_no_class_is_shared_the_overlaps_are_compared(shown):
    page = shown(
        begun(0, 1, candidate(1, 0, 0.5, True), candidate(2, 0, -0.125, False)),
        begun(1, 1, candidate(0, 0, 0.75, True), candidate(2, 0, -0.125, False)),
    )
    assert (
        "No candidate shares a class with the new task; chosen ones have an overlap of "
        "0.625 (mean of 2), the others of \N{MINUS SIGN}0.125 (mean of 2)"
        in headings(page)
    )


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ([True, True], "There was nothing to choose: each task got all its candidates"),
        (
            [True, False],
            "There was nothing to choose: each task got all its candidates, or none",
        ),
        ([False, False], "No candidate was chosen"),
    ],
)
def test_without_a_choice_nothing_is_compared(shown, choices, told):
    page = shown(
        *(begun(c, 1, candidate(2, 0, 0.5, chosen)) for c, chosen in enumerate(choices))
    )
    assert told in headings(page)


def test_a_run_without_candidates_says_so(shown):
    assert "No task had a candidate" in headings(shown(begun(0, 1)))
    assert "No task had a candidate" in headings(shown())


# ---- the map


def test_every_candidate_is_a_cell_and_the_chosen_ones_bear_a_dot(shown):
    page = shown(
        begun(2, 1, candidate(0, 0, 0.25, False, 0.5), candidate(1, 0, 0.75, True, 1)),
        begun(0, 1, candidate(2, 0, 0.5, False)),
    )
    picture = pictures(page)[BY_TASK]
    cells = {told: place for told, (_, place) in hints(picture).items()}
    wanted = (
        "client 2, task 1 (new 2.1) and client 1, task 0 (old 1.0): "
        "overlap 0.750, 1.00 of the classes shared, chosen"
    )
    assert set(cells) == {
        wanted,
        "client 2, task 1 (new 2.1) and client 0, task 0 (old 0.0): "
        "overlap 0.250, 0.50 of the classes shared, not chosen",
        "client 0, task 1 (new 0.1) and client 2, task 0 (old 2.0): "
        "overlap 0.500, 0.00 of the classes shared, not chosen",
    }
    assert marks_of(picture) == {cells[wanted][:2]}


def test_rows_and_columns_go_by_client_and_then_by_task(shown):
    page = shown(
        begun(1, 2, candidate(0, 1, 0.4, True), candidate(0, 0, 0.3, False)),
        begun(1, 1, candidate(0, 0, 0.2, True)),
        begun(0, 2, candidate(1, 0, 0.1, True)),
    )
    picture = pictures(page)[BY_TASK]
    found = {round(v, 1): (r, c) for _, (r, c, v) in hints(picture).values()}
    # Rows: 0/2, 1/1, 1/2. Columns: 0/0, 0/1, 1/0.
    assert found == {0.1: (0, 2), 0.2: (1, 0), 0.3: (2, 0), 0.4: (2, 1)}
    axes = (picture["layout"][axis]["ticktext"] for axis in ("yaxis", "xaxis"))
    assert [*axes] == [["0/2", "1/1", "1/2"], ["0/0", "0/1", "1/0"]]


def test_the_strongest_colour_is_the_highest_overlap_and_the_palest_the_lowest(shown):
    page = shown(
        begun(
            0,
            1,
            candidate(1, 0, 0.5, False),
            candidate(2, 0, 0.6, True),
            candidate(3, 0, 0.75, True),
        )
    )
    scale = pictures(page)[BY_TASK]["layout"]["coloraxis"]
    assert (scale["cmin"], scale["cmax"]) == (0.5, 0.75)


def test_equal_overlaps_have_a_colour_too(shown):
    page = shown(begun(0, 1, candidate(1, 0, 0.5, True)))
    scale = pictures(page)[BY_TASK]["layout"]["coloraxis"]
    assert (scale["cmin"], scale["cmax"]) == (0.5, 1.5)


def test_too_many_tasks_are_summed_up_per_client(tmp_path):
    run = make_run(tmp_path / "run", clients=12, tasks=8, overlap=True)
    entries = json.loads((run / "overlap.json").read_text(encoding="utf-8"))
    pairs = [
        c
        for e in entries
        if e["client"] == 2
        for c in e["candidates"]
        if c["client"] == 5
    ]
    told = hints(pictures(parsed(write_report(run)))[BY_CLIENT])
    assert len(told) == 12 * 11
    # 1 + 2 + ... + 7 pairs of a new and a finished task.
    assert len(pairs) == 28
    mean = sum(c["overlap"] for c in pairs) / 28
    chosen = sum(c["chosen"] for c in pairs)
    assert (
        f"client 2, new tasks, and client 5, finished ones: overlap {mean:.3f}, "
        f"mean of 28; {chosen} chosen" in told
    )


# ---- the table


def test_the_table_lists_what_each_task_chose_most_overlap_first(shown):
    page = shown(
        begun(1, 1, candidate(0, 0, 0.5, False)),
        begun(
            0,
            2,
            candidate(1, 0, 0.25, True),
            candidate(1, 1, 0.9, False),
            candidate(2, 1, 0.75, True),
        ),
    )
    assert table_of(page, "choices") == [
        [
            "0",
            "2: new 0.2",
            "0.750 client 2, task 1: old 2.10.250 client 1, task 0: old 1.0",
            "3",
        ],
        ["1", "1: new 1.1", "none", "1"],
    ]


@pytest.mark.parametrize(
    ("tasks", "more"), [(60, None), (61, "1 more task:"), (75, "15 more tasks:")]
)
def test_a_long_table_says_how_many_tasks_it_leaves_out(shown, tasks, more):
    page = shown(
        *(begun(0, t, candidate(1, 0, 0.5, True)) for t in range(1, tasks + 1))
    )
    assert [row[1] for row in table_of(page, "choices")] == [
        f"{t}: new 0.{t}" for t in range(1, 61)
    ]
    notes = [words(p) for p in page.iter("p") if p.get("class") == "note"]
    told = [note for note in notes if note.startswith("And ")]
    assert told == ([f"And {more} see overlap.json."] if more else [])


# ---- the page


def test_the_section_follows_that_on_attention_and_names_its_file(shown):
    page = shown(begun(0, 1, candidate(1, 0, 0.5, True)))
    places = headings(page)
    (attention,) = (i for i, h in enumerate(places) if h.startswith("Adapters of"))
    assert places[attention + 1].startswith("There was nothing to choose")
    assert words(page.find("body/footer")).endswith(
        "scenario.json, attention.json and overlap.json."
    )


def test_a_strategy_that_compares_no_tasks_has_no_such_section(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run")))
    assert BY_TASK not in pictures(page)
    assert "overlap.json" not in words(page)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"high"'])
def test_an_overlap_that_is_no_number_is_named(tmp_path, value):
    run = make_run(tmp_path / "run")
    entry = json.dumps(begun(0, 1, candidate(1, 0, 0.5, True)))
    text = f"[{entry.replace('0.5', value)}]"
    (run / "overlap.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"overlap.json: 0.candidates.0.overlap: got"):
        write_report(run)
