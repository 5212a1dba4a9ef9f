"""The pages of runs that have not finished: what there is, and nothing that is not."""

import json

import numpy as np
import pytest
from pages import headings, lines_of, parsed, pictures, prose, require_layout, table_of
from run_folders import make_concept_run, make_run, make_under_way, write

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import (
    comparison_charts,
    run_charts,
    write_comparison,
    write_report,
)
from fcl_flower.results.report.so_far import read_so_far


def tiles(page):
    return {
        tile.find("dt").text: [
            " ".join("".join(dd.itertext()).split()) for dd in tile.iter("dd")
        ]
        for tile in page.iter("div")
        if tile.get("class") == "tile"
    }


def verdicts(page):
    return [p.text for p in page.iter("p") if "verdict" in (p.get("class") or "")]


def test_a_run_under_way_shows_what_it_has_and_how_far_it_is(tmp_path):
    run = make_under_way(tmp_path / "run", finished=5, strategy="fedavg")
    page = parsed(write_report(run))
    require_layout(page)
    told = prose(page)

    assert page.find("head/title").text == "fedavg, under way"
    assert (
        "This run has not finished: it is at task 1 of 0 to 2, round 6 of 12. All "
        "numbers are those so far. It was last heard of on 2026-09-21 at 14:13:20 UTC."
    ) in told
    found = tiles(page)
    assert found["Progress"] == [
        "41 %",
        "of the rounds are finished; in this one 1 of 3 clients have answered",
    ]
    assert found["Time left"][0] == "about 1 min 23 s"
    assert found["Time left"][1].startswith("after 12.5 s")
    assert "forgetting" not in told.lower()
    assert "Average accuracy" not in found
    assert "final" not in told.lower()
    assert " ends " not in told
    assert "end at" not in told
    assert any(one.startswith("Tasks are learned at 0.") for one in headings(page))


def test_the_numbers_so_far_are_those_of_the_finished_rounds(tmp_path):
    whole = make_run(tmp_path / "whole")
    lines = (whole / "rounds.jsonl").read_text(encoding="utf-8").splitlines()[:5]
    run = read_so_far(make_under_way(tmp_path / "run", finished=5))
    up = [sum(json.loads(line)["bytes_up"].values()) for line in lines]

    assert len(run.rounds) == 5
    assert run.summary.bytes_up == sum(up)
    assert run.summary.bytes_by_kind.up["base"] > 0
    done = json.loads((whole / "summary.json").read_text(encoding="utf-8"))
    firsts = [matrix[0][0] for matrix in done["client_accuracy"]]
    assert run.latest[:, 0].tolist() == pytest.approx(firsts)
    assert run.summary.average_accuracy == pytest.approx(sum(firsts) / 3)
    assert run.summary.learning_accuracy == pytest.approx(sum(firsts) / 3)
    assert run.summary.forgetting is None


def test_two_tasks_later_the_latest_accuracies_are_those_of_the_last_test(tmp_path):
    done = make_run(tmp_path / "done")
    summary = json.loads((done / "summary.json").read_text(encoding="utf-8"))
    run = read_so_far(make_under_way(tmp_path / "run", finished=9))
    rows = [matrix[1][:2] for matrix in summary["client_accuracy"]]

    np.testing.assert_allclose(run.latest[:, :2], rows)
    mean = sum(map(sum, rows)) / 6
    assert run.summary.average_accuracy == pytest.approx(mean)


@pytest.mark.parametrize("finished", [0, 1, 4, 11])
def test_a_page_is_well_formed_however_far_the_run_is(tmp_path, finished):
    run = make_under_way(tmp_path / "run", finished=finished, clients=11)
    page = parsed(write_report(run))
    require_layout(page)
    if finished < 4:
        assert "No accuracy was measured so far" in headings(page)
    else:
        best = [one for one in headings(page) if "is so far best" in one]
        assert len(best) == 1


def test_what_has_not_begun_says_so(tmp_path):
    run = make_under_way(tmp_path / "run", finished=0)
    progress = json.loads((run / "progress.json").read_text(encoding="utf-8"))
    waits = {"round": 0, "clients": 0, "clients_done": 0, "left": None}
    write(run / "progress.json", progress | waits)
    page = parsed(write_report(run))

    assert "it is starting" in prose(page)
    assert tiles(page)["Time left"][0] == "\N{EN DASH}"
    assert tiles(page)["Progress"] == ["0 %", "of the rounds are finished"]


def concepts_under_way(folder, **made):
    run = make_concept_run(folder, clustered=False, **made)
    done = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    known = {"client_accuracy": [], "accuracy_matrix": [], "average_accuracy": None}
    write(run / "begun.json", done | known | {"forgetting": None})
    (run / "summary.json").unlink()
    progress = {"round": 9, "rounds": 20, "task": 0, "tasks": 1, "clients_done": 0}
    write(run / "progress.json", progress | {"clients": 6, "seconds": 1, "left": 1})
    return run, done


def test_hidden_concepts_show_the_last_evaluation(tmp_path):
    run, done = concepts_under_way(tmp_path / "run")
    found = read_so_far(run)
    assert found.summary.average_accuracy == pytest.approx(done["average_accuracy"])
    told = prose(parsed(write_report(run)))
    assert "it is at round 9 of 20." in told
    assert "is so far highest" in told


def test_hidden_concepts_under_way_lead_nobody(tmp_path):
    run, _ = concepts_under_way(tmp_path / "run", strategy="fedavg")
    other = make_concept_run(tmp_path / "other")
    page = parsed(write_comparison(tmp_path, [run, other]))
    assert "Accuracy as rounds go by" in headings(page)
    drawn = lines_of(pictures(page)["Average accuracy of every method"])
    assert sorted(drawn) == ["concept-matching", "fedavg seed 1, under way"]


def test_who_was_left_out_is_listed_with_the_last_reason(tmp_path):
    run = make_under_way(tmp_path / "run", finished=5)
    path = run / "rounds.jsonl"
    evil = "base/<b>w</b>: holds NaN"
    lines = [json.loads(line) for line in path.read_text().splitlines()[:5]]
    lines[1] |= {"failed": [2], "reasons": {"2": "no reply in time"}}
    lines[3] |= {"failed": [0, 2], "reasons": {"0": evil, "2": evil}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = parsed(write_report(run))

    assert "2 clients left out of a round, 3 times in all" in headings(page)
    assert table_of(page, "left-out") == [["0", evil, "1", "4"], ["2", evil, "2", "4"]]
    assert tiles(page)["Not used"][0] == "3"


def test_a_finished_run_lists_them_too_and_none_where_there_are_none(tmp_path):
    page = parsed(write_report(make_run(tmp_path / "run")))
    assert not any("left out" in one for one in headings(page))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"task": 3}, "task: got 3"),
        ({"task_learned": 7}, "task_learned: got 7"),
        ({"task_learned": 0, "task": 1}, "task: got 1"),
    ],
)
def test_an_accuracy_of_a_task_that_was_not_learned_is_refused(tmp_path, change, named):
    run = make_under_way(tmp_path / "run", finished=5)
    row = {"round": 5, "task_learned": 1, "client": 0, "task": 0, "name": "x"} | change
    with (run / "accuracy.csv").open("w") as file:
        file.write("round,task_learned,client,task,task_name,accuracy\n")
        file.write(",".join(map(str, row.values())) + ",0.5\n")
    with pytest.raises(ConfigError, match=named):
        read_so_far(run)


def test_what_is_made_of_finished_runs_refuses_one_under_way(tmp_path):
    run = make_under_way(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"summary\.json.*finished run"):
        run_charts(run)
    with pytest.raises(ConfigError, match=r"summary\.json.*finished run"):
        comparison_charts([run, make_run(tmp_path / "other", strategy="fedavg")])


def test_a_comparison_keeps_runs_under_way_out_of_means_and_gains(tmp_path):
    runs = [
        make_run(tmp_path / "a1", seed=1),
        make_run(tmp_path / "a1 alone", seed=1, local_only=True),
        make_run(tmp_path / "b1 alone", strategy="<b>fedavg", local_only=True),
        make_under_way(tmp_path / "a2", seed=2, gain=0.4),
        make_under_way(tmp_path / "b1", seed=1, strategy="<b>fedavg"),
    ]
    without = parsed(write_comparison(tmp_path / "without", runs[:3]))
    page = parsed(write_comparison(tmp_path / "all", runs))
    require_layout(page)

    assert "2 runs under way, in no mean and no gain below" in headings(page)
    assert table_of(page, "methods") == table_of(without, "methods")
    assert [row[:2] for row in table_of(page, "under-way")] == [
        ["fedweit seed 2", "at task 1 of 0 to 2, round 6 of 12"],
        ["<b>fedavg seed 1", "at task 1 of 0 to 2, round 6 of 12"],
    ]
    assert table_of(page, "under-way")[0][-1] == "about 1 min 23 s"
    known = read_so_far(runs[3]).summary.average_accuracy
    assert table_of(page, "under-way")[0][2] == f"{known:.3f}"
    assert page.find("head/title").text == "4 methods on overlapped-cifar100"
    assert verdicts(page) == verdicts(without) != []
    gains = "Transfer gain of every federated method"
    assert pictures(page)[gains] == pictures(without)[gains]
    drawn = lines_of(pictures(page)["Average accuracy of every method"])
    assert sorted(drawn) == [
        *("&lt;b&gt;fedavg local-only", "&lt;b&gt;fedavg seed 1, under way"),
        *("fedweit", "fedweit local-only", "fedweit seed 2, under way"),
    ]


def test_runs_that_are_all_under_way_are_compared_without_a_winner(tmp_path):
    runs = [
        make_under_way(tmp_path / "1", seed=1),
        make_under_way(tmp_path / "2", seed=2),
    ]
    page = parsed(write_comparison(tmp_path, runs))
    require_layout(page)
    told = prose(page)

    assert "Accuracy as tasks go by" in headings(page)
    for word in ("leads", "ends with", "federation gained", "transfer gain"):
        assert word not in told
