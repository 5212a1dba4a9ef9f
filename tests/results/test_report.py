"""The page of one run must show what the files of the run say."""

import base64
import gzip
import json
import re

import numpy as np
import pytest
from pages import (
    figures,
    lines_of,
    marks_of,
    numbers_of,
    parsed,
    pictures,
    prose,
    require_layout,
    table_of,
    tiles,
    verdicts,
    words,
)
from plotly.offline import get_plotlyjs
from run_folders import (
    diagnostics_of,
    edit,
    make_concept_run,
    make_run,
    make_under_way,
    points,
    rewrite_rounds,
    summary_of,
    synthetic_scenario,
    write,
    write_journal,
)

from fcl_flower.core.diagnostics import Matrix, Points, Table
from fcl_flower.core.errors import ConfigError
from fcl_flower.results.record import read
from fcl_flower.results.report import diagnostics, wording
from fcl_flower.results.report.run_page import run_charts, write_report
from fcl_flower.results.report.wording import MINUS, UNKNOWN

ATTENTION = "Weight of each foreign adapter for each client and task"
OVERLAP = "Overlap of each new task with the finished tasks of other clients"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def page_of(folder):
    return parsed(write_report(folder))


def lines_in(path):
    return [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]


def accuracies(run):
    return np.array(summary_of(run)["client_accuracy"], float)


def shown(values):
    """Write numbers as a table of a picture has them."""
    return [UNKNOWN if np.isnan(v) else f"{v:.3f}".replace("-", MINUS) for v in values]


# ---- the whole page


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (make_run, {"clients": 1, "tasks": 1}),
        (make_run, {"clients": 22, "tasks": 6, "overlap": True}),
        (make_run, {"clients": 2, "tasks": 24, "rounds_per_task": 1}),
        (make_run, {"local_only": True, "attention": False, "gone": (0, 1, 2)}),
        (make_concept_run, {"clients": 1, "concepts": 1, "rounds": 1, "every": 1}),
        (make_concept_run, {"clients": 30, "concepts": 9, "rounds": 60, "every": 10}),
        (make_concept_run, {"mistakes": 1.0}),
        (make_concept_run, {"clustered": False, "mean_duration": 0}),
        (make_under_way, {"finished": 0}),
        (make_under_way, {"finished": 11, "clients": 11}),
    ],
)
def test_a_page_is_well_formed_whatever_the_run(tmp_path, make, size):
    require_layout(page_of(make(tmp_path / "run", **size)))


def test_every_number_of_a_run_is_in_a_table(tmp_path):
    run = make_run(tmp_path / "run", clients=4)
    page, accuracy, rounds = (
        page_of(run),
        accuracies(run),
        lines_in(run / "rounds.jsonl"),
    )
    mean = accuracy.mean(axis=0)
    tasks = [f"task {i}" for i in range(3)]
    assert numbers_of(page, "Accuracy of every task over time") == [
        ["task", *tasks],
        *([str(t), *shown(row)] for t, row in enumerate(mean)),
    ]
    blank = [[cell.replace(UNKNOWN, "") for cell in shown(row)] for row in mean]
    matrix = "Accuracy on every task after every task, mean over 4 clients"
    assert numbers_of(page, matrix) == [
        ["after task", "0", "1", "2"],
        *([str(t), *row] for t, row in enumerate(blank)),
    ]
    last = numbers_of(page, "Final accuracy of every client on every task")[1:]
    assert last == [[str(c), *shown(accuracy[c, 2])] for c in range(4)]
    for what, key in (
        ("Validation accuracy", "valid_accuracy"),
        ("Training loss", "loss"),
    ):
        column = [row[1] for row in numbers_of(page, what)[1:]]
        assert column == shown([one[key] for one in rounds])
    kinds = ["adapters", "base", "masks", "meta"]
    totals = table_of(page, "traffic")
    assert [row[0] for row in totals] == [*kinds, "all", "nominal"]
    up, down = (summary_of(run)[f"bytes_{way}"] for way in ("up", "down"))
    assert totals[-2][1:] == [*map(wording.size, (up, down, up + down))]
    weights = {
        (row, column): weight
        for row, told in diagnostics_of(run)["attention"]["values"].items()
        for column, weight in told.items()
    }
    (_, *columns), *rows = numbers_of(page, ATTENTION)
    assert {
        (row[0], column): value
        for row in rows
        for column, value in zip(columns, row[1:], strict=True)
        if value
    } == {pair: f"{weight:.3f}" for pair, weight in weights.items()}


def test_a_page_needs_nothing_but_itself_and_is_the_same_each_time(run):
    path = write_report(run)
    page, first = parsed(path), path.read_bytes()
    assert not {"link", "img", "iframe"} & {e.tag for e in page.iter()}
    assert not any({"src", "href"} & set(e.keys()) for e in page.iter())
    style = "".join(e.text for e in page.iter("style"))
    assert not re.search(r"url\(|@import|//", style)
    policy = next(e for e in page.iter("meta") if e.get("http-equiv"))
    rules = dict(rule.split(None, 1) for rule in policy.get("content").split(";"))
    assert rules == {
        **dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'"),
        **dict.fromkeys(("script-src", "style-src"), "'unsafe-inline'"),
        "img-src": "data: blob:",
    }
    packed = page.find(".//script[@id='library']").text
    found = base64.b64decode(packed)
    assert gzip.decompress(found).decode() == get_plotlyjs()
    assert b"showSendToCloud: false" in first  # a test in a browser sees the buttons
    assert found[4:8] == bytes(4)  # the time: the same page whenever it is made
    assert write_report(run).read_bytes() == first


def test_a_page_without_pictures_has_no_library(tmp_path):
    run = make_run(tmp_path / "run", clients=1, tasks=1, attention=False)
    rewrite_rounds(run, [])
    path = write_report(run)
    assert not figures(parsed(path))
    assert path.stat().st_size < 20_000


def test_text_from_the_files_cannot_become_markup(run):
    evil = "<script>alert('1')</script> & \"quotes\"\N{LINE SEPARATOR}%{x}"
    edit(run, "summary.json", label=evil, command=evil, params={evil: evil})
    scenario = synthetic_scenario(3, 3)
    scenario["clients"][0][0] |= {"name": evil, "group": evil, "class_names": [evil]}
    write(run / "scenario.json", scenario)
    edit(run, "summary.json", bytes_by_kind={"up": {evil: 7}, "down": {}})
    path = write_report(run)
    page, text = parsed(path), path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert text.count("</script>") == 3
    assert words(page.find("body/header/h1")) == words(page.find("head/title"))
    assert sum("alert('1')" in words(cell) for cell in page.iter("td")) >= 3
    assert evil.split() == table_of(page, "traffic")[0][0].split()


# ---- the head


def test_tiles_show_what_the_summary_knows(run):
    before = {"average_accuracy": 0.4321}
    before |= dict.fromkeys(("forgetting", "backward_transfer", "learning_accuracy"))
    known = {"average_accuracy": 0.51249, "backward_transfer": -0.0104}
    known |= {"learning_accuracy": None, "bytes_up": 12_345_678, "seconds": 3725}
    assert "Task unknown" not in tiles(page_of(run))
    known["inferred_task_accuracy"] = 0.2345
    edit(run, "summary.json", **known, before_aggregation=before)
    page = page_of(run)
    found = {name: figure for name, (figure, _) in tiles(page).items()}
    assert found["Average accuracy"] == "0.512"
    assert [*found][:2] == ["Average accuracy", "Task unknown"]
    assert found["Task unknown"] == "0.234"
    assert found["Backward transfer"] == f"{MINUS}0.010"
    assert "Learning accuracy" not in found
    assert found["Sent up"] == "12.3 MB"
    assert found["Time"] == "1 h 02 min"
    assert found["Before aggregation"] == "0.432"
    assert "12,345,678 bytes" in [e.get("title") for e in page.iter("span")]
    same = before | {"average_accuracy": 0.51249}
    edit(run, "summary.json", before_aggregation=same)
    assert "Before aggregation" not in tiles(page_of(run))


def test_sentences_name_the_best_client_and_what_was_forgotten_most(run):
    accuracy = accuracies(run)
    final = accuracy[:, -1].mean(axis=1)
    lost = (np.nanmax(accuracy[:, :2, :2], axis=1) - accuracy[:, 2, :2]).mean(axis=0)
    worst = int(lost.argmax())
    edit(run, "summary.json", untrained_client_tasks=2)
    first, second, third = verdicts(page_of(run))
    assert first == (
        f"Client {final.argmax()} ends best ({final.max():.3f}), client "
        f"{final.argmin()} worst ({final.min():.3f})."
    )
    told = f"Task {worst} was forgotten most: it ends {lost[worst]:.3f} below its best."
    assert second == told
    assert third.startswith("2 of 9 client-tasks were never trained on")


def test_without_any_forgetting_that_is_said(run):
    same = [0.5, 0.25, 0.75]
    path = run / "accuracy.csv"
    head, *rows = path.read_text(encoding="utf-8").splitlines()
    cells = [row.split(",") for row in rows]
    fixed = [",".join([*rest, str(same[int(rest[3])])]) for *rest, _ in cells]
    path.write_text("\n".join([head, *fixed, ""]), encoding="utf-8")
    write_journal(run)
    told = verdicts(page_of(run))
    assert any(one.startswith("Nothing was forgotten") for one in told)


# ---- sections


def test_a_client_that_vanished_has_no_final_accuracy(tmp_path):
    page = page_of(make_run(tmp_path / "run", gone=(1,)))
    rows = numbers_of(page, "Final accuracy of every client on every task")
    assert rows[2] == ["1", "", "", ""]


def test_of_many_clients_the_best_and_the_worst_are_shown(tmp_path):
    run = make_run(tmp_path / "run", clients=70, tasks=2, attention=False, gone=(7, 8))
    final = accuracies(run)[:, -1].mean(axis=1)
    ranked = [c for c in np.argsort(-final, kind="stable").tolist() if c not in (7, 8)]
    page = page_of(run)
    rows = numbers_of(page, "Final accuracy of every client on every task")[1:]
    assert [int(row[0]) for row in rows] == ranked[:32] + ranked[-32:]
    assert rows[0][1:] == shown(accuracies(run)[ranked[0], -1])
    assert "Shown are the best 32 and the worst 32 of 70 clients." in prose(page)


def test_the_accuracy_over_all_classes_seen_has_gaps(run):
    what = "Accuracy of every task over time"
    assert "all classes so far" not in numbers_of(page_of(run), what)[0]
    seen = {"scenario": "class-incremental", "sample_accuracy": [0.9, None, 0.45]}
    edit(run, "summary.json", **seen)
    rows = numbers_of(page_of(run), what)
    assert rows[0][-1] == "all classes so far"
    assert [row[-1] for row in rows[1:]] == ["0.900", UNKNOWN, "0.450"]


def test_missing_replies_are_listed_with_the_last_reason(run):
    rounds = lines_in(run / "rounds.jsonl")
    evil = "base/<b>w</b>: holds NaN"
    rounds[1] |= {"failed": [2], "reasons": {"2": "late"}, "valid_accuracy": None}
    rounds[3] |= {"failed": [0, 2], "reasons": {"0": evil, "2": evil}}
    rewrite_rounds(run, rounds)
    page = page_of(run)
    _, curve, _ = lines_of(pictures(page)["Validation accuracy"])["validation accuracy"]
    assert [i for i, value in enumerate(curve, 1) if value is None] == [2]
    assert table_of(page, "left-out") == [["0", evil, "1", "4"], ["2", evil, "2", "4"]]


def test_the_scenario_lists_classes_and_counts(run):
    page = page_of(run)
    table = table_of(page, "scenario")
    assert len(table) == 3
    assert "fish_0, fish_1, fish_2, fish_3, fish_4" in table[0][1]
    assert "350 / 50 / 100" in table[0][1]
    assert "3 clients, 3 tasks at most, 25 different classes" in prose(page)
    assert "3,150 training, 450 validation and 900 test examples" in prose(page)


def test_settings_have_the_keys_of_the_summary(run):
    made = {"date": "2026-01-02", "versions": {"torch": None}, "commit": "abc"}
    remarks = {"word vectors": "trained here on 11,314 texts"}
    privacy = {"unit": "client", "observer": "server", "budget": 8.0, "epsilon": 1.5}
    privacy |= {"noise_multiplier": 1.0, "clip": 1.0, "delta": 1e-5}
    params = {"kappa": 0.3, "nested": {"deep": True}}
    changes = {"privacy": privacy, "training": {"epochs": 2}, "environment": made}
    edit(run, "summary.json", **changes, remarks=remarks, params=params)
    page = page_of(run)
    wanted = {
        "strategy": "fedweit",
        "local_only": "false",
        "clients": "3",
        "training.epochs": "2",
        "seed": "1",
        "params.kappa": "0.3",
        "params.nested.deep": "true",
        "privacy.budget": "8.0",
        "environment.date": "2026-01-02",
        "remarks.word vectors": "trained here on 11,314 texts",
        "command": "fcl run studies/overlapped.toml --seed 1",
    }
    assert wanted.items() <= dict(table_of(page, "settings")).items()
    assert tiles(page)["Differential privacy"] == [
        "ε = 1.5",
        "at δ = 1e-05, of a budget of 8; hides all data of a client from the server; "
        "no ε covers the exact scores",
    ]
    assert "Run: 2026-01-02, commit abc. Made from" in words(page.find("body/footer"))


# ---- diagnostics, by their type


def test_matrices_mark_what_the_strategy_marks(tmp_path):
    run = make_run(tmp_path / "run", overlap=True)
    page, told = page_of(run), diagnostics_of(run)
    (_, *columns), *rows = numbers_of(page, OVERLAP)
    names = [row[0] for row in rows]
    assert marks_of(pictures(page)[OVERLAP]) == {
        (names.index(row), columns.index(column))
        for row, found in told["overlap"]["marked"].items()
        for column in found
    }


def test_of_too_many_clients_the_first_are_shown(run):
    values = {f"{c}/1": {f"{c}/0": 0.5} for c in range(100)}
    found = Matrix(title="m", rows="r", columns="c", values=values)
    section = diagnostics.section(found, read(run))
    (chart,) = section.parts
    assert [row[0] for row in chart.table.rows] == [f"{c}/1" for c in range(64)]
    assert sum(cell == "" for row in chart.table.rows for cell in row) == 64 * 63
    assert "Shown are the first 64" in section.note


def test_a_table_is_shown_as_it_is(run):
    values = {"0/1": (0.25, "so")}
    found = Table(title="t", note="n", rows="task", columns=("x", "y"), values=values)
    section = diagnostics.section(found, read(run))
    (table,) = section.parts
    assert [[*table.head], *table.rows] == [["task", "x", "y"], ["0/1", "0.250", "so"]]


def test_points_without_a_truth_bear_the_numbers_of_clients(run):
    frame = {"round": 2, "clients": [4, 7], "cluster": [0, -1], "origin": [0, 0]}
    frame |= {"reached": [0, -1], "map": [[0.0, 1.0], [2.0, 3.0]]}
    found = diagnostics.section(Points(title="t", frames=[frame]), read(run))
    (chart,) = found.parts
    texts = {trace["name"]: trace["text"] for trace in chart.plotly()["data"]}
    assert texts == {"no cluster": ["7"], "cluster 0": ["4"]}
    assert chart.caption == "round 2: 1 cluster"


# ---- hidden concepts


def clustered(number, concept, cluster, **told):
    """Make a round of a map in which client c met ``concept[c]``."""
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


def test_concepts_are_means_over_clients_and_no_task_is_spoken_of(tmp_path):
    folder = make_concept_run(tmp_path / "concepts")
    page = page_of(folder)
    rows = (folder / "accuracy.csv").read_text(encoding="utf-8").splitlines()[1:]
    found = {}
    for row in rows:
        number, _, _, task, _, value = row.split(",")
        found.setdefault((number, int(task)), []).append(float(value))
    assert numbers_of(page, "Accuracy per concept over rounds") == [
        ["round", *(f"digits/{k}" for k in range(3))],
        *([n, *shown(np.mean(found[n, k]) for k in range(3))] for n in "2468"),
    ]
    cells = numbers_of(page, "Final accuracy of every client on every concept")[1:]
    assert [row[1:] for row in cells] == [*map(shown, accuracies(folder)[:, -1])]
    assert not any("task" in name.lower() for name in [*pictures(page), *tiles(page)])


def test_clusterings_are_drawn_round_by_round(tmp_path):
    folder = make_concept_run(tmp_path / "concepts")
    rounds = [
        clustered(1, [0, 0, 0, 1], [0, 0, 1, 1], reached=[2, 2, 1, 1], ari=1.0),
        # Equally many: an update tells more than none.
        clustered(3, [0, 0, 2, 2], [0, 1, 2, -1], reached=[1, 0, 9, -1]),
        clustered(4, [2], [-1], reached=[-1]),
    ]
    edit(folder, "diagnostics.json", map=points(rounds))
    page = page_of(folder)
    maps = [name for name in pictures(page) if name.startswith("Map of")]
    assert maps == [f"Map of the client models of round {r}" for r in (1, 3)]
    hint = "client 3, digits/2: no cluster, started from model 0, reached none"
    assert numbers_of(page, maps[1])[1] == [hint, "3", "0"]
    assert pictures(page)[maps[1]]["data"][-1]["text"] == ["2"]


def test_the_page_says_what_clients_have_of_each_concept(tmp_path):
    page = page_of(make_concept_run(tmp_path / "run"))
    assert dict(table_of(page, "settings"))["hidden.window"] == "20"
    assert table_of(page, "scenario")[0][2].startswith("digits/1")


# ---- runs under way


def test_a_run_under_way_shows_what_it_has_and_how_far_it_is(tmp_path):
    whole = lines_in(make_run(tmp_path / "whole") / "rounds.jsonl")
    page = page_of(make_under_way(tmp_path / "run", finished=5, strategy="fedavg"))
    assert page.find("head/title").text == "fedavg, under way"
    first, second = verdicts(page)
    assert first == (
        "This run has not finished: it is at task 1 of 0 to 2, round 6 of 12. All "
        "numbers are those so far. It was last heard of on 2026-09-21 at 14:13:20 UTC."
    )
    assert "is so far best" in second
    found = tiles(page)
    assert found["Progress"] == [
        "41 %",
        "of the rounds are finished; in this one 1 of 3 clients have answered",
    ]
    assert found["Time left"][0] == "about 1 min 23 s"
    assert "forgetting" not in " ".join(found).lower()
    up = sum(sum(one["bytes_up"].values()) for one in whole[:5])
    assert found["Sent up"][0] == f"{up / 1e6:.1f} MB"


def test_what_has_not_begun_says_so(tmp_path):
    run = make_under_way(tmp_path / "run", finished=0)
    waits = {"round": 0, "clients": 0, "clients_done": 0, "left": None}
    edit(run, "progress.json", **waits)
    page = page_of(run)
    assert "it is starting" in prose(page)
    assert "No accuracy was measured so far" in prose(page)
    assert tiles(page)["Time left"][0] == UNKNOWN
    assert tiles(page)["Progress"] == ["0 %", "of the rounds are finished"]
    (run / "progress.json").unlink()
    assert "Progress" not in tiles(page_of(run))


def test_charts_are_those_of_a_finished_run(run, tmp_path):
    charts = [chart.what for chart in run_charts(run)]
    assert charts == [*pictures(page_of(run))]
    with pytest.raises(ConfigError, match="finished run"):
        run_charts(make_under_way(tmp_path / "other"))
