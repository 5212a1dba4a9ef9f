"""Runs side by side: is what the page says of federation what the numbers say?"""

import math
import re

import numpy as np
import pytest
from pages import (
    head_of,
    lines_of,
    numbers_of,
    parsed,
    pictures,
    prose,
    require_layout,
    table_of,
    verdicts,
    words,
)
from run_folders import (
    edit,
    make_concept_run,
    make_run,
    make_under_way,
    summary_of,
    synthetic_scenario,
    write,
)

from fcl_flower.core.errors import ConfigError
from fcl_flower.results import tables
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import (
    comparison_charts,
    require_comparable,
    write_comparison,
)

METHODS = "Average accuracy of every method"


def pair_of_runs(folder, gain, **size):
    return [
        make_run(
            folder / f"local-only={local_only}", local_only=local_only, gain=g, **size
        )
        for local_only, g in ((False, gain), (True, 0.0))
    ]


def pairs_of_seeds(folder, gain, seeds=(1, 2)):
    return [run for s in seeds for run in pair_of_runs(folder / str(s), gain, seed=s)]


def final_gains(federated, local_only):
    """Work out the gain of each client by loops."""
    accuracies = [summary_of(run)["client_accuracy"] for run in (federated, local_only)]
    return [
        sum(x - y for x, y in zip(a[-1], b[-1], strict=True)) / len(a[-1])
        for a, b in zip(*accuracies, strict=True)
    ]


def text(value):
    return wording.fraction(value)


# ---- the sentences


@pytest.mark.parametrize(
    ("gain", "start", "tone"),
    [
        (0.2, "Federation helped fedweit: +0.", "good"),
        (-0.2, "Federation hurt fedweit: \N{MINUS SIGN}0.", "bad"),
        (0.0, "No clear effect of federation on fedweit: ", ""),
    ],
)
def test_one_sentence_says_whether_federation_helped(tmp_path, gain, start, tone):
    runs = pair_of_runs(tmp_path, gain, clients=5)
    path = write_comparison(tmp_path / "out", runs)
    assert path == tmp_path / "out" / "comparison.html"
    sentence, shown = next(iter(verdicts(parsed(path)).items()))
    assert sentence.startswith(start)
    assert shown == tone
    gains = final_gains(*runs)
    mean = sum(gains) / 5
    assert f"{abs(mean):.3f} final accuracy over fedweit local-only" in sentence
    assert f"better for {sum(g > 0 for g in gains)} of 5 clients" in sentence
    # Student's t for 4 degrees of freedom is 2.776.
    margin = 2.776 * np.std(gains, ddof=1) / math.sqrt(5)
    assert f"interval {wording.signed(mean - margin)} to " in sentence
    assert "one seed" in sentence


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ({"clients": 1, "tasks": 1}, "no telling whether federation did it"),
        ({"gone": (0, 1, 2)}, "nothing can be said about federation"),
    ],
)
def test_too_little_is_no_evidence(tmp_path, size, told):
    page = parsed(write_comparison(tmp_path, pair_of_runs(tmp_path, 0.2, **size)))
    sentence, tone = next(iter(verdicts(page).items()))
    assert told in sentence
    assert tone == ""


# ---- gains


def test_seeds_of_one_label_are_one_row_with_their_spread(tmp_path):
    runs = pairs_of_seeds(tmp_path, 0.2, seeds=(1, 2, 3))
    page = parsed(write_comparison(tmp_path, runs))
    finals = [summary_of(run)["average_accuracy"] for run in runs[::2]]
    expected = f"{np.mean(finals):.3f} ± {np.std(finals, ddof=1):.3f}"
    rows = table_of(page, "methods")
    assert [row[0] for row in rows] == ["fedweit", "fedweit local-only"]
    assert rows[0][1] == expected
    assert numbers_of(page, METHODS)[-1][1] == expected
    gains = [np.mean(final_gains(*runs[k : k + 2])) for k in (0, 2, 4)]
    sentence = next(iter(verdicts(page)))
    assert sentence.startswith(f"Federation helped fedweit: {np.mean(gains):+.3f}")
    assert "3 of 3 seeds" in sentence
    assert "one seed" not in sentence


def test_a_client_missing_in_one_run_does_not_sway_the_gain_over_seeds(tmp_path):
    runs = [
        make_run(
            tmp_path / f"{seed}{local_only}",
            seed=seed,
            local_only=local_only,
            gone=(0,) if local_only and seed == 1 else (),
        )
        for seed in (1, 2)
        for local_only in (False, True)
    ]
    page = parsed(write_comparison(tmp_path, runs))
    accuracies = [
        np.array(summary_of(run)["client_accuracy"], float)[:, -1] for run in runs
    ]
    expected = np.mean([np.nanmean(accuracies[k] - accuracies[k + 1]) for k in (0, 2)])
    assert f"{wording.signed(expected)} final accuracy" in next(iter(verdicts(page)))


def test_static_data_are_not_paired_with_a_stream(tmp_path):
    runs = [
        make_concept_run(tmp_path / "a", gain=0.1, mean_duration=0),
        make_concept_run(tmp_path / "b", local_only=True, mean_duration=8),
    ]
    first = next(iter(verdicts(parsed(write_comparison(tmp_path, runs)))))
    assert "nothing can be said about federation" in first


# ---- the table


def test_the_table_sets_the_summaries_side_by_side(tmp_path):
    runs = pair_of_runs(tmp_path, 0.05)
    before = dict.fromkeys(("forgetting", "backward_transfer", "learning_accuracy"))
    before |= {"average_accuracy": 0.1234}
    edit(runs[0], "summary.json", before_aggregation=before)
    page = parsed(write_comparison(tmp_path, runs))
    head = head_of(page, "methods")
    for run, row in zip(runs, table_of(page, "methods"), strict=True):
        summary, cells = summary_of(run), dict(zip(head, row, strict=True))
        assert cells["method"] == summary["label"]
        assert cells["average accuracy"] == f"{summary['average_accuracy']:.3f}"
        assert cells["sent up"] == wording.size(summary["bytes_up"])
        known = "before_aggregation" in summary
        assert cells["before aggregation"] == ("0.123" if known else wording.UNKNOWN)
    assert "clustering" not in head
    assert "forward transfer" not in head


def test_the_table_has_the_gain_that_the_terminal_shows(tmp_path):
    runs = pairs_of_seeds(tmp_path, 0.1)
    page = parsed(write_comparison(tmp_path, runs))
    column = head_of(page, "methods").index("transfer gain")
    gain = tables.rows([summary_of(run) for run in runs])[0]["transfer_gain"]
    shown = tables.format_mean_std(gain, "+.3f")
    assert [row[column] for row in table_of(page, "methods")] == [
        shown,
        wording.UNKNOWN,
    ]
    assert re.fullmatch(r"\+0\.\d{3} ± 0\.\d{3}", shown)


def test_concepts_have_columns_and_runs_with_given_ids_are_named(tmp_path):
    runs = [
        make_concept_run(tmp_path / "a", mistakes=0.3),
        make_concept_run(tmp_path / "b", label="ids", clustered=False, reveal_ids=True),
    ]
    page = parsed(write_comparison(tmp_path, runs))
    column = head_of(page, "methods").index("clustering")
    ari = summary_of(runs[0])["concepts"]["ari"]
    found = [row[column] for row in table_of(page, "methods")]
    assert found == [f"{ari:.3f}", wording.UNKNOWN]
    assert "Concept ids given to clients and server: ids." in prose(page)
    assert "3 concepts" in words(page.find("body/header/p"))


# ---- lines


def test_lines_are_the_average_accuracy_so_far(tmp_path):
    runs = pair_of_runs(tmp_path, 0.05)
    page = parsed(write_comparison(tmp_path, runs))
    accuracy = [np.array(summary_of(run)["client_accuracy"], float) for run in runs]
    assert numbers_of(page, METHODS) == [
        ["task", "fedweit", "fedweit local-only"],
        *(
            [str(t), *(text(a[:, t, : t + 1].mean()) for a in accuracy)]
            for t in (0, 1, 2)
        ),
    ]
    lines = lines_of(pictures(page)[METHODS])
    dashes = {name: line["line"]["dash"] for name, (_, _, line) in lines.items()}
    assert dashes == {"fedweit": "solid", "fedweit local-only": "dash"}


def test_lines_over_rounds_are_where_all_seeds_were_evaluated(tmp_path):
    runs = [
        make_concept_run(tmp_path / "a", seed=1),
        make_concept_run(tmp_path / "b", seed=2, every=4),
    ]
    page = parsed(write_comparison(tmp_path, runs))
    means = []
    for run in runs:
        rows = (run / "accuracy.csv").read_text(encoding="utf-8").splitlines()[1:]
        cells = [row.split(",") for row in rows]
        means.append(
            [np.mean([float(c[5]) for c in cells if c[0] == n]) for n in ("4", "8")]
        )
    middle, spread = np.mean(means, axis=0), np.std(means, axis=0, ddof=1)
    assert numbers_of(page, METHODS)[1:] == [
        [n, f"{text(middle[i])} ± {text(spread[i])}"] for i, n in enumerate(("4", "8"))
    ]


# ---- which runs


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"clients": 4}, "clients is 4, expected 3"),
        ({"tasks": 2}, "tasks is 2, expected 3"),
        ({}, "label 'fedweit' is used by two runs with the same seed"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(tmp_path, other, message):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", **other)]
    with pytest.raises(ConfigError, match=message):
        write_comparison(tmp_path, runs)
    assert not (tmp_path / "comparison.html").exists()


def test_runs_of_different_tasks_and_no_runs_are_refused(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", strategy="fedavg")]
    scenario = synthetic_scenario(3, 3)
    scenario["clients"].reverse()
    write(runs[1] / "scenario.json", scenario)
    with pytest.raises(ConfigError, match="expected the identical scenario"):
        write_comparison(tmp_path, runs)
    with pytest.raises(ConfigError, match="runs is empty"):
        write_comparison(tmp_path, [])


def test_each_run_is_linked_with_model_and_length(tmp_path):
    runs = [
        make_run(tmp_path / "a b#1", clients=2),
        make_run(tmp_path / "c", seed=2, clients=2),
    ]
    (runs[0] / "report.html").write_text("", encoding="utf-8")
    page = parsed(write_comparison(tmp_path / "out", runs))
    assert table_of(page, "runs") == [
        ["fedweit", "1", "lenet", "12 rounds"],
        ["fedweit", "2", "lenet", "12 rounds"],
    ]
    links = [link.get("href") for link in page.iter("a")]
    assert links == ["../a%20b%231/report.html"] * 2  # of the method and of the run
    assert "model lenet, 2 clients, 3 tasks, 12 rounds, seeds 1, 2" in words(
        page.find("body/header/p")
    )


def test_runs_under_way_have_rows_of_their_own_and_are_in_no_mean(tmp_path):
    runs = [
        make_run(tmp_path / "a1", seed=1),
        make_run(tmp_path / "a1 alone", seed=1, local_only=True),
        make_under_way(tmp_path / "a2", seed=2, gain=0.4),
        make_under_way(tmp_path / "b1", seed=1, strategy="<b>fedavg"),
    ]
    without = parsed(write_comparison(tmp_path / "without", runs[:2]))
    page = parsed(write_comparison(tmp_path / "all", runs))
    require_layout(page)
    column = head_of(page, "methods").index("average accuracy")
    rows = {row[0]: row for row in table_of(page, "methods")}
    for row in table_of(without, "methods"):
        assert rows[row[0]] == row
    at = "at task 1 of 0 to 2, round 6 of 12about 1 min 23 s left"
    assert [*rows][1] == f"fedweit seed 2, under way{at}"
    assert rows[f"fedweit seed 2, under way{at}"][column].startswith("0.")
    assert [*verdicts(page).items()] == [*verdicts(without).items()]
    assert sorted(lines_of(pictures(page)[METHODS])) == [
        *("&lt;b&gt;fedavg seed 1, under way", "fedweit", "fedweit local-only"),
        "fedweit seed 2, under way",
    ]
    require_comparable(runs[:2])
    assert [c.what for c in comparison_charts(runs[:2])] == [*pictures(without)]
    alone = parsed(write_comparison(tmp_path / "alone", runs[2:]))
    assert not verdicts(alone)
    for refuse in (require_comparable, comparison_charts):
        with pytest.raises(ConfigError, match="finished run"):
            refuse(runs)
