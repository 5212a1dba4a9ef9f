"""Pages of runs with hidden concepts: do they show what the files say?"""

import csv
import json
import re

import numpy as np
import pytest
from pages import (
    band_of,
    head_of,
    headings,
    hints,
    lines_of,
    marks_of,
    parsed,
    pictures,
    prose,
    require_layout,
    table_of,
    words,
)
from run_folders import edit, make_concept_run, make_run, summary_of, write

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_comparison, write_report

LINES = "Accuracy per concept over rounds"
MEASURES = "Clustering and matching over rounds"
MODELS = "Concept model that each concept reached in each round"
METHODS = "Average accuracy of every method"


@pytest.fixture
def run(tmp_path):
    return make_concept_run(tmp_path / "run")


def clustered(number, concept, cluster, **told):
    """Return a round of concepts.json in which client c met ``concept[c]``."""
    count = len(concept)
    return {
        "round": number,
        "clients": [*range(count)],
        "concept": concept,
        "cluster": cluster,
        "origin": [0] * count,
        "reached": [0] * count,
        "map": [[float(c), 0.0] for c in range(count)],
        "ari": 0.5,
        "effectiveness": 0.25,
    } | told


@pytest.fixture
def shown(run):
    """Return a function from the rounds of concepts.json to the page made of them."""

    def show(*rounds):
        write(run / "concepts.json", [*rounds])
        return parsed(write_report(run))

    return show


def measured(folder):
    """Return (round, client, concept) and accuracy from accuracy.csv."""
    with (folder / "accuracy.csv").open(encoding="utf-8", newline="") as file:
        return {
            (int(row["round"]), int(row["client"]), int(row["task"])): float(
                row["accuracy"]
            )
            for row in csv.DictReader(file)
        }


def mean_at(folder, number, concept=None):
    """Return the mean accuracy of a round, over clients and, by default, concepts."""
    found = [
        value
        for (r, _, k), value in measured(folder).items()
        if r == number and concept in (None, k)
    ]
    return sum(found) / len(found)


def points_of(picture):
    """Return x, y, number and colour of each point of a map, by its hint."""
    return {
        text: (
            *place,
            trace["text"][trace["x"].index(place[0])],
            trace["marker"]["color"],
        )
        for text, (trace, place) in hints(picture).items()
    }


# ---- the whole page

SIZES = [
    {},
    {"clients": 1, "concepts": 1, "rounds": 1, "every": 1},
    {"clients": 14, "concepts": 5, "rounds": 40, "every": 3, "mistakes": 0.2},
    {"clients": 60, "concepts": 10, "rounds": 120, "every": 10, "mistakes": 0.1},
    {"mistakes": 1.0},
    {"strategy": "fedavg", "clustered": False, "mean_duration": 0},
    {"local_only": True, "clustered": False},
]


@pytest.mark.parametrize("size", SIZES)
def test_a_page_is_well_formed_whatever_the_size(tmp_path, size):
    require_layout(parsed(write_report(make_concept_run(tmp_path / "run", **size))))


def test_the_same_folder_gives_the_same_bytes(run):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_no_task_is_spoken_of_where_concepts_are_hidden(run):
    page = parsed(write_report(run))
    body = page.find("body")
    assert "task" not in prose(page).lower()
    assert not any("task" in name.lower() for name in pictures(page))
    assert "6 clients, 3 hidden concepts, 8 rounds" in words(body.find("header/p"))


def test_what_needs_an_order_of_learning_is_left_out(run):
    shown = pictures(parsed(write_report(run)))
    assert not any("after every task" in name for name in shown)
    assert not any("Forgetting" in name or "client 0" in name for name in shown)
    assert not shown["Training loss"]["layout"]["shapes"]


def test_a_page_names_the_files_it_was_made_of(run):
    assert words(parsed(write_report(run)).find("body/footer")).endswith(
        "scenario.json and concepts.json."
    )
    (run / "concepts.json").unlink()
    page = parsed(write_report(run))
    foot = words(page.find("body/footer"))
    assert foot.endswith("rounds.jsonl and scenario.json.")
    assert not {MEASURES, MODELS} & set(pictures(page))


# ---- the headline


def tiles(page):
    return " | ".join(
        words(tile) for tile in page.iter("div") if tile.get("class") == "tile"
    )


def test_the_headline_tells_what_was_matched_and_clustered(run):
    edit(
        run,
        "summary.json",
        average_accuracy=0.8125,
        forgetting=0.0213,
        concepts={"ari": 0.875, "perfect_rounds": 0.75, "effectiveness": 0.9375},
    )
    told = tiles(parsed(write_report(run)))
    assert "Average accuracy0.812 over all concepts at the end, mean over 6" in told
    assert "Catastrophic forgetting0.021" in told
    assert "Matching effectiveness0.938" in told
    assert re.search(r"Clustering0\.875.*perfect in 75% of them", told)
    assert "Learning accuracy" not in told
    assert "Backward transfer" not in told


def test_a_strategy_that_does_not_cluster_claims_nothing_about_it(tmp_path):
    told = tiles(
        parsed(write_report(make_concept_run(tmp_path / "run", clustered=False)))
    )
    assert "Average accuracy" in told
    assert "Matching" not in told
    assert "Clustering" not in told


# ---- accuracy


def test_lines_are_the_mean_over_clients_of_each_concept(run):
    page = parsed(write_report(run))
    picture = pictures(page)[LINES]
    dots = hints(picture)
    assert len(dots) == 4 * 3
    for number in (2, 4, 6, 8):
        for k in range(3):
            mean = mean_at(run, number, k)
            _, place = dots[f"digits/{k}, after round {number}: {mean:.3f}"]
            assert place == (number, pytest.approx(mean))
    ends = {mean_at(run, 8, k): f"digits/{k}" for k in range(3)}
    low, high = min(ends), max(ends)
    told = f"{ends[high]} ends highest ({high:.3f}), {ends[low]} lowest ({low:.3f})"
    assert told in headings(page)


def test_a_client_that_was_not_evaluated_does_not_sway_the_line(run):
    path = run / "accuracy.csv"
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    rows = [row for row in rows if not row.startswith("8,2,0,")]
    path.write_text("\n".join([head, *rows]), encoding="utf-8")
    mean = mean_at(run, 8, 1)
    dots = hints(pictures(parsed(write_report(run)))[LINES])
    assert f"digits/1, after round 8: {mean:.3f}" in dots


def test_final_accuracies_of_clients_come_from_the_last_row(run):
    final = [matrix[-1] for matrix in summary_of(run)["client_accuracy"]]
    page = parsed(write_report(run))
    cells = hints(pictures(page)["Final accuracy of every client on every concept"])
    assert {text: place for text, (_, place) in cells.items()} == {
        f"client {c}, concept {k}: {final[c][k]:.3f}": (c, k, final[c][k])
        for c in range(6)
        for k in range(3)
    }
    means = [sum(row) / 3 for row in final]
    best = f"Client {means.index(max(means))} ends best ({max(means):.3f})"
    assert any(heading.startswith(best) for heading in headings(page))


# ---- clustering and matching


def test_measures_are_drawn_at_their_rounds_and_perfect_rounds_are_counted(shown):
    page = shown(
        clustered(2, [0, 1], [0, 1], ari=1.0, effectiveness=1.0),
        clustered(3, [0, 1, 1], [0, 1, 0], ari=0.25, effectiveness=0.0),
        clustered(5, [0, 1, 1], [0, 1, 1], ari=1.0, effectiveness=1.0),
    )
    # (2 + 0 + 3) of 8 updates
    assert (
        "Clusters are exactly the hidden concepts in 2 of 3 rounds; 62% of the updates "
        "reached the concept model they started from" in headings(page)
    )
    curves = lines_of(pictures(page)[MEASURES])
    ari, effectiveness = curves["adjusted Rand index"], curves["matching effectiveness"]
    assert ari[0] == [*range(1, 9)]
    assert ari[1] == [None, 1, 0.25, None, 1, None, None, None]
    assert effectiveness[1] == [None, 1, 0, None, 1, None, None, None]


def test_a_cell_is_the_model_that_most_clients_of_a_concept_reached(shown):
    page = shown(
        clustered(1, [0, 0, 0, 1], [0, 0, 1, 1], reached=[2, 2, 1, 1]),
        # Equally many: an update tells more than none.
        clustered(3, [0, 0, 2, 2], [0, 1, 2, -1], reached=[1, 0, 9, -1]),
        clustered(4, [2], [0], reached=[-1]),
    )
    picture = pictures(page)[MODELS]
    cells = {text: place for text, (_, place) in hints(picture).items()}
    assert cells == {  # concept, round - 1, colour of the model
        "round 1, digits/0: model 1 by 1, model 2 by 2 of 3 clients": (0, 0, 2),
        "round 1, digits/1: model 1 by 1 of 1 client": (1, 0, 1),
        "round 3, digits/0: model 0 by 1, model 1 by 1 of 2 clients": (0, 2, 0),
        "round 3, digits/2: none by 1, model 9 by 1 of 2 clients": (2, 2, 1),
        "round 4, digits/2: none by 1 of 1 client": (2, 3, -1),
    }
    matrix = picture["data"][0]
    written = [matrix["text"][r][c] for r, c, _ in cells.values()]
    assert written == ["2", "0", "1", "9", "\N{EN DASH}"]
    edges = [(edge, colour) for edge, colour in matrix["colorscale"]]
    span = matrix["zmax"] - matrix["zmin"]
    for value, colour in ((-1, "var(--cold)"), (0, "var(--c0)"), (7, "var(--c7)")):
        place = (value - matrix["zmin"]) / span
        below = [c for edge, c in edges if edge < place]
        above = [c for edge, c in edges if edge > place]
        assert (below[-1], above[0]) == (colour, colour)
    assert marks_of(picture) == {(0, 0), (0, 2), (2, 2)}
    named = [trace["name"] for trace in picture["data"][1:-1]]
    assert named == ["none", "model 0", "model 1", "model 2", "model 9"]


def test_columns_of_models_are_the_rounds(shown):
    page = shown(clustered(2, [0], [0]), clustered(7, [0], [0]))
    picture = pictures(page)[MODELS]
    axis = picture["layout"]["xaxis"]
    names = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    for text, (_, (_, column, _)) in hints(picture).items():
        assert names[column] == re.match(r"round (\d+)", text)[1]
    assert len(names) == 8


def test_of_many_columns_only_some_are_named(tmp_path):
    run = make_concept_run(tmp_path / "run", clients=2, rounds=200, every=50)
    axis = pictures(parsed(write_report(run)))[MODELS]["layout"]["xaxis"]
    assert axis["ticktext"] == [str(number) for number in range(1, 201, 5)]
    assert axis["tickvals"] == [*range(0, 200, 5)]


@pytest.mark.parametrize(
    ("reached", "told"),
    [
        ([[0, 1, 2]], "Every concept ends with a concept model of its own"),
        # What each reached last counts: concept 2 has left model 1.
        ([[0, 1, 1], [-1, -1, 2]], "Every concept ends with a concept model of its"),
        (
            [[0, 1, 2], [1, -1, -1]],
            "digits/0 and digits/1 last reached the same concept model, 1",
        ),
        ([[0, 1]], "2 of 3 concepts end with a concept model of their own"),
        ([[-1, -1, -1]], "No concept reached a concept model"),
    ],
)
def test_the_heading_says_whether_concepts_share_a_model(shown, reached, told):
    page = shown(
        *(
            clustered(r, [*range(len(row))], row, reached=row)
            for r, row in enumerate(reached, 1)
        )
    )
    assert any(heading.startswith(told) for heading in headings(page))


# ---- the maps


def test_points_lie_where_the_map_says_with_one_scale_for_both_directions(shown):
    page = shown(
        clustered(
            3,
            [0, 2, 1],
            [1, -1, 9],
            origin=[0, 1, 2],
            reached=[0, -1, 1],
            map=[[-1.0, 0.0], [3.0, 0.0], [0.0, 2.0]],
        )
    )
    points = points_of(pictures(page)["Map of the client models of round 3"])
    first, second, third = (
        "client 0, digits/0: cluster 1, started from model 0, reached model 0",
        "client 1, digits/2: no cluster, started from model 1, reached none",
        "client 2, digits/1: cluster 9, started from model 2, reached model 1",
    )
    assert [points[told] for told in (first, second, third)] == [
        (-1.0, 0.0, "0", "var(--c1)"),
        (3.0, 0.0, "2", "var(--cold)"),
        (0.0, 2.0, "1", "var(--c1)"),
    ]
    picture = pictures(page)["Map of the client models of round 3"]
    assert picture["layout"]["yaxis"]["scaleanchor"] == "x"
    assert [trace["name"] for trace in picture["data"]] == [
        *("no cluster", "cluster 1", "cluster 9")
    ]


def test_models_that_are_all_equal_have_a_map_too(shown):
    page = shown(clustered(1, [0, 1], [0, 0], map=[[0.0, 0.0]] * 2))
    picture = pictures(page)["Map of the client models of round 1"]
    assert len(points_of(picture)) == 2
    require_layout(page)


@pytest.mark.parametrize(
    ("clusters", "expected"),
    [
        ([[0, 0], [0, 1], [0, 1], [0, -1]], [1, 3]),
        ([[0, 0], [0, 0]], [1, 2]),
        ([[0, 1], [0, 0]], [1]),
    ],
)
def test_maps_are_those_of_the_first_round_and_the_last_with_clusters(
    shown, clusters, expected
):
    page = shown(*(clustered(r, [0, 1], row) for r, row in enumerate(clusters, 1)))
    maps = [name for name in pictures(page) if name.startswith("Map of")]
    assert maps == [f"Map of the client models of round {r}" for r in expected]


@pytest.mark.parametrize(
    ("cluster", "ari", "told"),
    [
        ([0, 0, 1, 1], 1.0, "form 2 clusters: just the hidden concepts"),
        ([0, 0, 0, 1], 0.0, "form 2 clusters: 1 of them with more than one concept"),
        ([0, 2, 1, 1], 0.5, "form 3 clusters: each of one concept, but not all of"),
        ([-1, -1, -1, 0], 0.0, "form 1 cluster: each of one concept, but not all"),
    ],
)
def test_the_heading_of_the_map_says_how_clusters_and_concepts_agree(
    shown, cluster, ari, told
):
    page = shown(clustered(1, [0, 0, 1, 1], cluster, ari=ari))
    assert any(told in heading for heading in headings(page))


# ---- what was run


@pytest.mark.parametrize(
    ("mean_duration", "told"),
    [
        (0, "has all concepts at once, with all its examples"),
        (1, "has one concept, drawn anew each round, with up to 20 of its"),
        (5, "has one concept, drawn anew every 5 rounds on average"),
    ],
)
def test_the_scenario_says_when_clients_have_which_concept(
    tmp_path, mean_duration, told
):
    page = parsed(
        write_report(make_concept_run(tmp_path / "run", mean_duration=mean_duration))
    )
    assert told in words(page)
    assert "6 clients with 3 hidden concepts, 6 different classes" in headings(page)
    settings = dict(table_of(page, "settings"))
    assert settings["rounds in all"] == "8"
    assert settings["scenario.window"] == "20"
    assert settings["scenario.mean_duration"] == str(mean_duration)
    assert settings["hidden concepts"] == "3"


@pytest.mark.parametrize(
    ("reveal_ids", "setting", "told"),
    [
        (False, "false", "Neither client nor server knows which."),
        (True, "true", "Client and server know which."),
    ],
)
def test_the_page_says_whether_concept_ids_were_given(
    tmp_path, reveal_ids, setting, told
):
    page = parsed(
        write_report(make_concept_run(tmp_path / "run", reveal_ids=reveal_ids))
    )
    assert dict(table_of(page, "settings"))["scenario.reveal_ids"] == setting
    assert told in words(page)


def test_each_concept_is_one_row_with_totals_over_clients(run):
    page = parsed(write_report(run))
    assert table_of(page, "concepts") == [
        ["0", "digits/0", "0, 1", "180", "30", "72"],
        ["1", "digits/1", "2, 3", "186", "30", "72"],
        ["2", "digits/2", "4, 5", "192", "30", "72"],
    ]


# ---- side by side


def compared(folder, **sizes):
    """Return the page of runs, given as name of the folder and settings."""
    runs = [make_concept_run(folder / name, **size) for name, size in sizes.items()]
    return runs, parsed(write_comparison(folder / "out", runs))


def test_methods_are_compared_over_rounds(tmp_path):
    runs, page = compared(
        tmp_path,
        matching={"gain": 0.1},
        alone={"local_only": True, "clustered": False},
        average={"strategy": "fedavg", "clustered": False},
    )
    require_layout(page)
    dots = dict(told.rsplit(": ", 1) for told in hints(pictures(page)[METHODS]))
    assert len(dots) == 3 * 4
    labels = ("concept-matching", "concept-matching local-only", "fedavg")
    for run, label in zip(runs, labels, strict=True):
        for number in (2, 4, 6, 8):
            told = float(dots[f"{label}, after round {number}"])
            assert told == pytest.approx(mean_at(run, number), abs=6e-4)
    body = page.find("body")
    assert "3 hidden concepts" in words(body.find("header/p"))
    assert any(h.startswith("After the last round concept-") for h in headings(page))
    gain = pictures(page)["Transfer gain of concept-matching per concept"]
    assert any(told.startswith("concept 2: +0.") for told in hints(gain))


def test_the_table_has_columns_for_what_any_run_knows(tmp_path):
    _, page = compared(
        tmp_path,
        matching={"mistakes": 0.3},
        average={"strategy": "fedavg", "clustered": False},
    )
    head = head_of(page, "methods")
    assert head[:5] == ["method", "accuracy", "forgetting", "ARI", "effectiveness"]
    found = summary_of(tmp_path / "matching")["concepts"]
    rows = table_of(page, "methods")
    assert rows[0][3:5] == [f"{found['ari']:.3f}", f"{found['effectiveness']:.3f}"]
    assert rows[1][3:5] == ["\N{EN DASH}"] * 2


def test_runs_with_concept_ids_are_named(
    tmp_path,
):
    _, page = compared(
        tmp_path,
        matching={},
        weit={"strategy": "fedweit", "label": "with ids", "reveal_ids": True},
    )
    assert "Concept ids given to clients and server: with ids." in words(page)
    _, page = compared(tmp_path / "other", matching={})
    assert "Told which" not in words(page)


def test_runs_of_tasks_have_no_columns_for_concepts(tmp_path):
    page = parsed(write_comparison(tmp_path, [make_run(tmp_path / "run")]))
    head = head_of(page, "methods")
    assert head[1:5] == ["accuracy", "forgetting", "backward transfer", "bytes up"]


def test_the_band_is_the_spread_over_seeds_where_all_were_evaluated(tmp_path):
    runs, page = compared(tmp_path, a={"seed": 1}, b={"seed": 2, "every": 4})
    picture = pictures(page)[METHODS]
    dots = hints(picture)
    means = [[mean_at(run, number) for run in runs] for number in (4, 8)]
    assert set(dots) == {
        f"concept-matching, after round {number}: {np.mean(pair):.3f}"
        for number, pair in zip((4, 8), means, strict=True)
    }
    edges = [y for _, y in band_of(picture, "concept-matching")]
    spread = np.std(means, axis=1, ddof=1)
    middle = np.mean(means, axis=1)
    expected = [*(middle + spread), *(middle - spread)[::-1]]
    assert edges == pytest.approx(expected)


def test_a_band_ends_where_accuracies_do(tmp_path):
    runs = [make_concept_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for run, value in zip(runs, (0.9, 1.0), strict=True):
        rows = (run / "accuracy.csv").read_text(encoding="utf-8").splitlines()
        changed = [f"{row.rsplit(',', 1)[0]},{value}" for row in rows[1:]]
        (run / "accuracy.csv").write_text("\n".join([rows[0], *changed]))
    picture = pictures(parsed(write_comparison(tmp_path, runs)))[METHODS]
    edges = [y for _, y in band_of(picture, "concept-matching")]
    assert max(edges) == 1.0
    assert min(edges) == pytest.approx(0.95 - 0.05 * 2**0.5)


# ---- broken files


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"cluster": [0]},
            "concepts.json: 0: got .*cluster has not one entry for each",
        ),
        ({"map": [[0.0, "x"], [0.0, 0.0]]}, "concepts.json: 0.map.0.1: got 'x'"),
        ({"map": [[0.0], [0.0]]}, "concepts.json: 0.map.0.1: got nothing"),
        ({"clients": [0, 6]}, "0.clients: got 6, expected a number from 0 to 5"),
        ({"concept": [0, 3]}, "0.concept: got 3, expected a number from 0 to 2"),
        ({"round": 9}, "0.round: got 9, expected a number from 0 to 8"),
        ({"reached": [-2, 0]}, "0.reached.0: got -2"),
        ({"ari": 1.5}, "0.ari: got 1.5"),
        ({"effectiveness": None}, "0.effectiveness: got None"),
    ],
)
def test_a_wrong_entry_of_a_round_is_named(run, changes, message):
    write(run / "concepts.json", [clustered(1, [0, 1], [0, 1]) | changes])
    with pytest.raises(ConfigError, match=message):
        write_report(run)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"concepts.json: the whole: got \[\]"),
        ([{"round": 1}], "concepts.json: 0.clients: got nothing"),
        (
            [clustered(2, [0], [0]), clustered(2, [0], [0])],
            r"concepts.json: round: got \[2, 2\], expected ascending ones",
        ),
    ],
)
def test_rounds_that_make_no_sense_are_named(run, content, message):
    write(run / "concepts.json", content)
    with pytest.raises(ConfigError, match=message):
        write_report(run)


def test_other_files_must_fit_the_summary_too(run):
    path = run / "accuracy.csv"
    good = path.read_text(encoding="utf-8")
    path.write_text(f"{good}8,2,0,3,digits/3,0.5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"accuracy.csv: 72.task: got 3, expected"):
        write_report(run)
    path.write_text(good, encoding="utf-8")
    scenario = json.loads((run / "scenario.json").read_text(encoding="utf-8"))
    scenario["clients"][1].pop()
    write(run / "scenario.json", scenario)
    with pytest.raises(
        ConfigError, match=r"scenario.json: lengths of clients: got \[3, 2"
    ):
        write_report(run)


def test_static_data_are_not_paired_with_a_stream(tmp_path):
    _, page = compared(
        tmp_path,
        matching={"gain": 0.1, "mean_duration": 0},
        alone={"local_only": True, "clustered": False, "mean_duration": 8},
    )
    assert not any("Transfer gain" in name for name in pictures(page))
