"""The page of one run must show what the files of the run say."""

import json
import re

import numpy as np
import pytest
from pages import (
    headings,
    hints,
    parsed,
    pictures,
    require_layout,
    require_legible,
    table_of,
    tick_scale,
    words,
)
from run_folders import edit, make_run, nulled, summary_of, synthetic_scenario, write

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_report


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"clients": 1, "tasks": 1},
        {"clients": 1, "tasks": 4},
        {"clients": 4, "tasks": 1, "rounds_per_task": 1},
        {"clients": 5, "tasks": 10, "rounds_per_task": 20},
        {"clients": 22, "tasks": 6},
        {"clients": 2, "tasks": 24, "rounds_per_task": 1},
        {"local_only": True, "attention": False},
        {"gone": (1,)},
        {"gone": (0, 1, 2)},
        {"clients": 1, "tasks": 2, "overlap": True},
        {"clients": 2, "tasks": 2, "overlap": True},
        {"clients": 5, "tasks": 10, "overlap": True},
        {"clients": 22, "tasks": 6, "overlap": True},
    ],
)
def test_a_page_is_well_formed_whatever_the_size_of_the_run(tmp_path, size):
    path = write_report(make_run(tmp_path / "run", **size))
    assert path == tmp_path / "run" / "report.html"
    page = parsed(path)
    assert len(headings(page)) >= 3
    require_layout(page)


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"clients": 5, "tasks": 10, "rounds_per_task": 20},
        {"clients": 34, "tasks": 6, "rounds_per_task": 1},
        {"clients": 2, "tasks": 40, "rounds_per_task": 1},
        {"clients": 2, "tasks": 2, "overlap": True},
        {"clients": 5, "tasks": 10, "overlap": True},
        {"clients": 22, "tasks": 6, "overlap": True},
    ],
)
def test_no_two_labels_of_a_picture_overlap(tmp_path, size):
    require_legible(parsed(write_report(make_run(tmp_path / "run", **size))))


def test_a_page_needs_nothing_but_itself(run):
    page = parsed(write_report(run))
    assert not {"script", "link", "img", "iframe"} & {e.tag for e in page.iter()}
    assert not any({"src", "href"} & set(e.keys()) for e in page.iter())
    style = "".join(e.text for e in page.iter("style"))
    assert not re.search(r"url\(|@import|//", style)
    policy = next(e for e in page.iter("meta") if e.get("http-equiv"))
    assert "default-src 'none'" in policy.get("content")


def test_the_same_folder_gives_the_same_bytes(run):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_the_headline_shows_the_summary(run):
    edit(
        run,
        "summary.json",
        average_accuracy=0.51249,
        forgetting=0.0213,
        backward_transfer=-0.0104,
        learning_accuracy=None,
        bytes_up=12_345_678,
        nominal_bytes_up=4_000,
        seconds=3725,
    )
    page = parsed(write_report(run))
    told = [words(tile) for tile in page.iter("div") if tile.get("class") == "tile"]
    figures = " | ".join(told)
    assert "Average accuracy0.512" in figures
    assert "Catastrophic forgetting0.021" in figures
    assert "Backward transfer\N{MINUS SIGN}0.010" in figures
    assert "Learning accuracy\N{EN DASH}" in figures
    assert "Sent up12.3 MB4.00 kB nominal: 4 bytes per non-zero parameter" in figures
    assert "Time1 h 02 min" in figures
    exact = [e.get("title") for e in page.iter("span")]
    assert "12,345,678 bytes" in exact
    assert "4,000 bytes" in exact


@pytest.mark.parametrize(
    ("before", "shown"), [(0.4321, True), (0.51249, False), (None, False)]
)
def test_an_accuracy_before_the_aggregation_is_shown_if_it_is_another(
    run, before, shown
):
    found = {"average_accuracy": before}
    edit(run, "summary.json", average_accuracy=0.51249, before_aggregation=found)
    page = parsed(write_report(run))
    told = [words(tile) for tile in page.iter("div") if tile.get("class") == "tile"]
    assert any(tile.startswith("Before aggregation0.432") for tile in told) is shown
    assert any("Before" in tile for tile in told) is shown


def test_text_from_the_files_cannot_become_markup(run):
    evil = "<script>alert('1')</script> & \"quotes\""
    edit(run, "summary.json", label=evil, command=evil, params={evil: evil})
    scenario = synthetic_scenario(3, 3)
    scenario["clients"][0][0] |= {"name": evil, "group": evil, "class_names": [evil]}
    write(run / "scenario.json", scenario)
    path = write_report(run)
    page = parsed(path)
    assert "<script" not in path.read_text(encoding="utf-8")
    assert words(page.find("body/header/h1")) == evil
    assert sum(evil in words(cell) for cell in page.iter("td")) >= 3


def test_lines_go_through_the_accuracies(run):
    matrix = summary_of(run)["accuracy_matrix"]
    picture = pictures(parsed(write_report(run)))["Accuracy of every task over time"]
    value = tick_scale(picture, "y", "end")
    dots = hints(picture)
    assert len(dots) == 6
    for learned in range(3):
        for task in range(learned + 1):
            told = f"task {task}, after task {learned}: {matrix[learned][task]:.3f}"
            expected = pytest.approx(matrix[learned][task], abs=1e-4)
            assert value(float(dots[told].get("cy"))) == expected


def test_labels_at_the_end_of_lines_do_not_overlap(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", tasks=12, lost=0)))
    picture = pictures(page)["Accuracy of every task over time"]
    labels = [
        t for t in picture.iter("text") if t.text.startswith("task ") and ":" in t.text
    ]
    heights = sorted(float(t.get("y")) for t in labels)
    assert len(heights) == 12
    assert min(np.diff(heights)) >= 14.9


def test_the_matrix_shows_every_number_and_leaves_the_rest_empty(run):
    matrix = summary_of(run)["accuracy_matrix"]
    page = parsed(write_report(run))
    picture = pictures(page)[
        "Accuracy on every task after every task, mean over clients"
    ]
    expected = {
        f"after task {t}, on task {i}: {matrix[t][i]:.3f}"
        for t in range(3)
        for i in range(t + 1)
    }
    assert set(hints(picture)) == expected
    shown = [t.text for t in picture.iter("text") if "cold" in t.get("class")]
    shown += [t.text for t in picture.iter("text") if "hot" in t.get("class")]
    assert sorted(shown) == sorted(
        f"{matrix[t][i]:.3f}" for t in range(3) for i in range(t + 1)
    )


def test_a_stronger_colour_is_a_higher_accuracy(run):
    page = parsed(write_report(run))
    picture = pictures(page)[
        "Accuracy on every task after every task, mean over clients"
    ]
    cells = [
        (float(told.rsplit(" ", 1)[1]), int(re.search(r"(\d+)%", s.get("style"))[1]))
        for told, s in hints(picture).items()
    ]
    shares = [share for _, share in sorted(cells)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_each_client_has_a_matrix_and_the_best_and_worst_are_named(run):
    final = np.array(summary_of(run)["client_accuracy"], float)[:, -1].mean(axis=1)
    page = parsed(write_report(run))
    told = f"Client {final.argmax()} ends best ({final.max():.3f}), client "
    assert any(heading.startswith(told) for heading in headings(page))
    for client in range(3):
        assert len(hints(pictures(page)[f"Accuracies of client {client}"])) == 6


def test_a_client_that_vanished_has_no_final_accuracy(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", gone=(1,))))
    captions = [words(caption) for caption in page.iter("figcaption")]
    assert captions[1] == "client 1: ends at \N{EN DASH}"
    assert len(hints(pictures(page)["Accuracies of client 1"])) == 3


def test_the_table_of_final_accuracies_keeps_the_last_round_of_each_task(run):
    rows = (run / "accuracy.csv").read_text(encoding="utf-8").splitlines()
    head, body = rows[0], rows[1:]
    again = "\n".join([head, '13,2,0,0,"fish, again",0.123', *body])
    (run / "accuracy.csv").write_text(again, encoding="utf-8")
    details = words(parsed(write_report(run)).find(".//details"))
    assert "00fish, again130.123" in details
    assert details.count("0.123") == 1


def test_bars_of_forgetting_stand_on_the_zero_line(tmp_path):
    run = make_run(tmp_path / "run", tasks=4, lost=-0.03)
    accuracy = np.array(summary_of(run)["client_accuracy"], float)
    edit(run, "summary.json", client_accuracy=nulled((1 - accuracy).tolist()))
    # Now client by client some tasks are forgotten; one is made to improve.
    accuracy = 1 - accuracy
    accuracy[:, 3, 2] = accuracy[:, 2, 2] + 0.05
    edit(run, "summary.json", client_accuracy=nulled(accuracy.tolist()))
    picture = pictures(parsed(write_report(run)))["Forgetting of every task"]
    value = tick_scale(picture, "y", "end")
    bars = [shape for shape in hints(picture).values() if shape.tag == "rect"]
    for task, bar in enumerate(bars):
        forgotten = [
            max(a[t][task] for t in range(task, 3)) - a[3][task] for a in accuracy
        ]
        mean = sum(forgotten) / len(forgotten)
        top, height = float(bar.get("y")), float(bar.get("height"))
        edges = value(top), value(top + height)
        assert edges == pytest.approx((max(mean, 0), min(mean, 0)), abs=2e-4)
    assert len(bars) == 3
    assert mean == pytest.approx(-0.05)


def test_without_any_forgetting_there_is_no_picture_of_it(run):
    same = [[0.5, None, None], [0.5, 0.25, None], [0.5, 0.25, 0.75]]
    edit(run, "summary.json", client_accuracy=[same] * 3, accuracy_matrix=same)
    page = parsed(write_report(run))
    assert "Nothing was forgotten" in headings(page)
    assert "No task lost accuracy while later ones were learned" in headings(page)
    assert "Forgetting of every task" not in pictures(page)


def test_columns_are_as_high_as_the_bytes_they_stand_for(run):
    rounds = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    picture = pictures(parsed(write_report(run)))["Bytes up and down in each round"]
    ticks = [
        (float(t.get("y")), float(t.text.split()[0]))
        for t in picture.iter("text")
        if t.text.endswith(" MB")
    ]
    (p0, v0), (p1, v1) = ticks[0], ticks[1]
    zero = p0 + v0 * (p0 - p1) / (v1 - v0)
    stacks = [p for p in picture.iter("path") if p.get("style", "").startswith("fill")]
    floor = [zero - 4] * 12  # the label stands 4 pixels lower
    for kind, stack in zip(("base", "adapters"), stacks, strict=False):
        expected = [json.loads(line)["bytes_up"].get(kind, 0) for line in rounds]
        columns = re.findall(r"M\S+ (\S+)h\S+V(\S+)h", stack.get("d"))
        filled = [place for place, size in enumerate(expected) if size]
        for place, (start, end) in zip(filled, columns, strict=True):
            size = (float(start) - float(end)) * (v1 - v0) / (p0 - p1) * 1e6
            assert size == pytest.approx(expected[place], abs=2e4)
            assert float(start) == pytest.approx(floor[place], abs=0.02)
            floor[place] = float(end)


def test_bytes_of_a_round_are_told_and_a_new_kind_has_a_colour(run):
    path = run / "rounds.jsonl"
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    sizes = {"base": 1_500_000, "prompts": 2_000, "masks": 0}
    changed = json.dumps(json.loads(first) | {"bytes_up": sizes})
    path.write_text("\n".join([changed, *rest, ""]), encoding="utf-8")
    page = parsed(write_report(run))
    picture = pictures(page)["Bytes up and down in each round"]
    assert "round 1: base 1.50 MB, prompts 2.00 kB" in hints(picture)
    kinds = [words(item) for item in page.iter("li")]
    assert kinds == ["base", "adapters", "masks", "meta", "prompts"]


def test_a_local_only_run_is_said_to_have_sent_nothing(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", local_only=True)))
    assert "Nothing travelled" in headings(page)
    assert "local-only: no communication" in words(page.find("body/header/p"))


def test_rounds_with_a_missing_reply_are_marked(run):
    path = run / "rounds.jsonl"
    rounds = [json.loads(s) for s in path.read_text(encoding="utf-8").splitlines()]
    for r in (2, 7):
        rounds[r - 1] |= {"failed": [1], "valid_accuracy": None}
    path.write_text("\n".join(map(json.dumps, rounds)), encoding="utf-8")
    page = parsed(write_report(run))
    picture = pictures(page)["Training, round by round"]
    marks = [told for told, s in hints(picture).items() if s.get("class") == "trouble"]
    assert marks == [f"round {r}: a reply is missing" for r in (2, 7)]
    assert any(
        "in 2 rounds a reply is missing" in heading for heading in headings(page)
    )
    curve = next(p for p in picture.iter("path") if "c2" in p.get("style", ""))
    assert curve.get("d").count("M") == 3


def test_narrow_bands_bear_the_number_of_the_task_alone(tmp_path):
    run = make_run(tmp_path / "run", clients=2, tasks=30, rounds_per_task=1)
    picture = pictures(parsed(write_report(run)))["Training, round by round"]
    named = [t.text for t in picture.iter("text") if t.get("y") == "29"]
    assert named == [str(task) for task in range(30)]


def test_attention_shows_every_weight_and_marks_the_same_group(run):
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    foreign = [f for entry in entries for f in entry["foreign"]]
    same = [f["weight"] for f in foreign if f["same_group"]]
    other = [f["weight"] for f in foreign if not f["same_group"]]
    page = parsed(write_report(run))
    picture = pictures(page)["Weight of each foreign adapter for each client and task"]
    assert len(hints(picture)) == len(foreign) == 12
    marks = [shape for shape in picture if shape.get("class") == "mark"]
    assert len(marks) == len(same) == 4
    means = f"{sum(same) / len(same):.2f} (mean of 4) against "
    assert any(means in heading for heading in headings(page))
    assert sum(same) / len(same) > sum(other) / len(other)
    assert any(
        "get more weight than the others" in heading for heading in headings(page)
    )


def test_too_many_adapters_are_summed_up_per_client(tmp_path):
    run = make_run(tmp_path / "run", clients=12, tasks=8)
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    weights = [
        f["weight"]
        for e in entries
        if e["client"] == 2
        for f in e["foreign"]
        if f["client"] == 5
    ]
    page = parsed(write_report(run))
    described = (
        "Mean weight that each client gives to the adapters of each other client"
    )
    told = hints(pictures(page)[described])
    assert len(told) == 12 * 11
    mean = sum(weights) / len(weights)
    assert f"client 2 uses client 5: {mean:.3f}, mean of 7" in told


def test_attention_without_groups_makes_no_claim_about_groups(run):
    entries = json.loads((run / "attention.json").read_text(encoding="utf-8"))
    for entry in entries:
        for foreign in entry["foreign"]:
            foreign["same_group"] = None
    write(run / "attention.json", entries)
    page = parsed(write_report(run))
    assert any(
        h.startswith("A foreign adapter has a weight of") for h in headings(page)
    )
    assert "class group get" not in words(page)


def test_a_strategy_without_foreign_adapters_has_no_such_section(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run", attention=False)))
    assert not any("dapter" in heading for heading in headings(page))


def test_the_scenario_lists_classes_and_counts(run):
    page = parsed(write_report(run))
    table = next(t for t in page.iter("table") if t.get("class") == "scenario")
    assert len(table.findall("tbody/tr")) == 3
    cell = words(table.find("tbody/tr/td[2]"))
    assert "fish_0, fish_1, fish_2, fish_3, fish_4" in cell
    assert "350 / 50 / 100" in cell
    assert "3 clients with 3 tasks each, 25 different classes" in headings(page)
    assert "3,150 training, 450 validation and 900 test examples" in words(page)


def test_settings_are_flat_and_the_command_is_shown(run):
    page = parsed(write_report(run))
    rows = dict(table_of(page, "settings"))
    assert rows["strategy.training.epochs"] == "1"
    assert rows["strategy.training.lr"] == "none"
    assert rows["strategy.local_only"] == "false"
    assert words(page.find(".//pre")) == "fcl run studies/overlapped.toml --seed 1"


def test_settings_have_the_names_of_the_configuration(run):
    training = {"epochs": 2, "lr_patience": 3, "client_fraction": 0.5, "head": "multi"}
    edit(run, "summary.json", training=training)
    rows = dict(table_of(parsed(write_report(run)), "settings"))
    wanted = {
        "strategy.name": "fedweit",
        "strategy.kappa": "0.3",
        "scenario.clients": "3",
        "scenario.tasks": "3",
        "data.datasets": "cifar100",
        "model.name": "lenet",
        "model.head": "multi",
        "training.epochs": "2",
        "training.lr_patience": "3",
        "federation.rounds_per_task": "4",
        "federation.client_fraction": "0.5",
        "run.seed": "1",
    }
    assert wanted.items() <= rows.items()
    assert wanted.keys() - {"strategy.kappa"} <= RunConfig().flat().keys()


def test_each_remark_is_a_row_of_the_settings(run):
    assert "remarks" not in summary_of(run)  # a folder of before there were remarks
    write_report(run)

    edit(run, "summary.json", remarks={"word vectors": "trained here on 11,314 texts"})
    page = parsed(write_report(run))

    rows = dict(table_of(page, "settings"))
    assert rows["word vectors"] == "trained here on 11,314 texts"


def test_date_and_versions_are_rows_of_the_settings(run):
    assert "environment" not in summary_of(run)  # a folder of before it was recorded
    write_report(run)

    versions = {"fcl-flower": "0.1.0", "torch": None}
    found = {"date": "2026-01-02T03:04:05+00:00", "versions": versions}
    edit(run, "summary.json", environment=found)
    rows = dict(table_of(parsed(write_report(run)), "settings"))
    assert rows["date"] == "2026-01-02T03:04:05+00:00"
    assert rows["version of fcl-flower"] == "0.1.0"
    assert rows["version of torch"] == "none"


@pytest.mark.parametrize(
    "name", ["summary.json", "accuracy.csv", "rounds.jsonl", "scenario.json"]
)
def test_a_missing_file_is_named(run, name):
    (run / name).unlink()
    with pytest.raises(ConfigError, match=re.escape(str(run / name))):
        write_report(run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("summary.json", "{", "summary.json: got Expecting property name"),
        ("summary.json", "[]", "summary.json"),
        ("rounds.jsonl", '{"round": 1', "rounds.jsonl: got Expecting ',' delimiter"),
        ("rounds.jsonl", '{"round": "one"}', "0.round: got 'one'"),
        ("accuracy.csv", "round,client\n1,0\n", "0.task_learned: got nothing"),
        ("scenario.json", '{"name": 3}', "scenario.json: name: got 3"),
        ("attention.json", '{"client": 0}', "attention.json"),
        ("overlap.json", "[{]", "overlap.json: got Expecting property name"),
        ("overlap.json", '[{"client": 0}]', "overlap.json: 0.task: got nothing"),
        ("summary.json", b"\xff\xfe", "summary.json: got 'utf-8' codec"),
    ],
)
def test_a_broken_file_is_named(run, name, content, message):
    content = content if isinstance(content, bytes) else content.encode()
    (run / name).write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)):
        write_report(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes_up": -1}, "bytes_up: got -1"),
        (
            {"clients": 2},
            "client_accuracy: got .* expected lists of the shape (2, 3, 3)",
        ),
        ({"accuracy_matrix": [[0.5], [0.5, 0.5]]}, "accuracy_matrix: got"),
        ({"accuracy_matrix": [[0.5] * 3] * 3}, "expected null above the diagonal"),
        ({"accuracy_matrix": [[51.2]]}, "accuracy_matrix.0.0: got 51.2"),
    ],
)
def test_a_wrong_figure_is_named(run, changes, message):
    edit(run, "summary.json", **changes)
    pattern = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ConfigError, match=pattern):
        write_report(run)


def test_rounds_out_of_order_are_refused(run):
    path = run / "rounds.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], lines[0], *lines[1:]]), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rounds.jsonl: round: got \[1, 1, 2"):
        write_report(run)
