"""Runs side by side: is what the page says of federation what the numbers say?"""

import json
import math
import re

import numpy as np
import pytest
from pages import (
    band_of,
    head_of,
    headings,
    hints,
    lines_of,
    parsed,
    pictures,
    require_layout,
    table_of,
    words,
)
from run_folders import edit, make_run, summary_of, synthetic_scenario, write

from fcl_flower.core.errors import ConfigError
from fcl_flower.results import tables
from fcl_flower.results.report import write_comparison
from fcl_flower.results.report.html import numbers


def pair_of_runs(folder, gain, **size):
    return [
        make_run(
            folder / f"local-only={local_only}", local_only=local_only, gain=g, **size
        )
        for local_only, g in ((False, gain), (True, 0.0))
    ]


def final_gains(federated, local_only):
    """Return the gain of each client, worked out with loops from the summaries."""
    accuracies = [summary_of(run)["client_accuracy"] for run in (federated, local_only)]
    return [
        sum(x - y for x, y in zip(a[-1], b[-1], strict=True)) / len(a[-1])
        for a, b in zip(*accuracies, strict=True)
    ]


def verdicts(page):
    return {
        words(p): p.get("class").removeprefix("verdict").strip()
        for p in page.iter("p")
        if (p.get("class") or "").startswith("verdict")
    }


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
    ((sentence, shown),) = verdicts(parsed(path)).items()
    assert sentence.startswith(start)
    assert shown == tone
    gains = final_gains(*runs)
    mean = sum(gains) / 5
    assert f"{abs(mean):.3f} final accuracy over fedweit local-only" in sentence
    assert f"better for {sum(g > 0 for g in gains)} of 5 clients" in sentence
    # Student's t for 4 degrees of freedom is 2.776.
    margin = 2.776 * np.std(gains, ddof=1) / math.sqrt(5)
    assert f"interval {numbers.signed(mean - margin)} to " in sentence
    assert "one seed" in sentence
    clear = "The transfer gain is clearly above zero for {} of 1 federated method"
    assert clear.format(int(tone == "good")) in headings(parsed(path))


def test_a_single_client_is_no_evidence(tmp_path):
    runs = pair_of_runs(tmp_path, 0.2, clients=1, tasks=1)
    ((sentence, tone),) = verdicts(parsed(write_comparison(tmp_path, runs))).items()
    assert "no telling whether federation did it" in sentence
    assert tone == ""


def test_clients_that_vanished_leave_nothing_to_say(tmp_path):
    runs = pair_of_runs(tmp_path, 0.2, gone=(0, 1, 2))
    ((sentence, _),) = verdicts(parsed(write_comparison(tmp_path, runs))).items()
    assert "nothing can be said" in sentence


def test_the_gain_is_drawn_overall_and_per_task(tmp_path):
    runs = pair_of_runs(tmp_path, 0.01)
    page = parsed(write_comparison(tmp_path, runs))
    gains = final_gains(*runs)
    overall = pictures(page)["Transfer gain of every federated method"]
    dots = hints(overall)
    for client, gain in enumerate(gains):
        assert dots[f"fedweit, {client}: {gain:+.3f}"][1][0] == pytest.approx(gain)
    mean, spread = sum(gains) / 3, np.std(gains, ddof=1)
    disc, (place, _) = dots[f"fedweit: mean {mean:+.3f}"]
    assert place == pytest.approx(mean)
    assert disc["error_x"]["array"] == pytest.approx([spread])
    label = f"{numbers.signed(mean)} ± {spread:.3f}"
    assert overall["layout"]["yaxis"]["ticktext"] == [f"fedweit<br>{label}"]
    matrices = [np.array(summary_of(run)["client_accuracy"], float) for run in runs]
    per_task = (matrices[0] - matrices[1])[:, -1].mean(axis=0)
    told = hints(pictures(page)["Transfer gain of fedweit per task"])
    assert {f"task {i}: {g:+.3f}" for i, g in enumerate(per_task)} <= set(told)


def test_the_table_sets_the_summaries_side_by_side(tmp_path):
    runs = pair_of_runs(tmp_path, 0.05)
    page = parsed(write_comparison(tmp_path, runs))
    rows = table_of(page, "methods")
    for run, row in zip(runs, rows, strict=True):
        summary = summary_of(run)
        assert row[:2] == [summary["label"], f"{summary['average_accuracy']:.3f}"]
        assert row[5:7] == [numbers.size(summary[f"bytes_{w}"]) for w in ("up", "down")]


def test_the_accuracies_before_the_aggregation_are_a_column_where_known(tmp_path):
    runs = pair_of_runs(tmp_path, 0.05)
    assert "before aggregation" not in words(parsed(write_comparison(tmp_path, runs)))
    edit(runs[0], "summary.json", before_aggregation={"average_accuracy": 0.1234})
    page = parsed(write_comparison(tmp_path, runs))
    heads = head_of(page, "methods")
    rows = table_of(page, "methods")
    column = heads.index("before aggregation")
    assert column == heads.index("accuracy") + 1
    assert [row[column] for row in rows] == ["0.123", "\N{EN DASH}"]


def test_lines_of_methods_are_the_average_accuracy_so_far(tmp_path):
    runs = pair_of_runs(tmp_path, 0.05)
    page = parsed(write_comparison(tmp_path, runs))
    dots = hints(pictures(page)["Average accuracy of every method"])
    accuracy = np.array(summary_of(runs[0])["client_accuracy"], float)
    for t in range(3):
        assert f"fedweit, after task {t}: {accuracy[:, t, : t + 1].mean():.3f}" in dots
    lines = lines_of(pictures(page)["Average accuracy of every method"])
    dashes = {name: line["line"]["dash"] for name, (_, _, line) in lines.items()}
    assert dashes == {"fedweit": "solid", "fedweit local-only": "dash"}


def test_without_a_local_only_run_nothing_is_claimed(tmp_path):
    runs = [
        make_run(tmp_path / "a", strategy="fedavg"),
        make_run(tmp_path / "b", strategy="fedweit", local_only=True),
        make_run(tmp_path / "c", strategy="fedweit", seed=2),
    ]
    page = parsed(write_comparison(tmp_path, runs))
    assert not verdicts(page)
    assert "What federation gained is not known" in headings(page)


def test_seeds_of_one_label_are_one_row_with_their_spread(tmp_path):
    runs = [
        run
        for seed in (1, 2, 3)
        for run in pair_of_runs(tmp_path / str(seed), 0.2, seed=seed)
    ]
    page = parsed(write_comparison(tmp_path, runs))
    rows = table_of(page, "methods")
    finals = [summary_of(run)["average_accuracy"] for run in runs[::2]]
    expected = f"{np.mean(finals):.3f} ± {np.std(finals, ddof=1):.3f}"
    assert [row[0] for row in rows] == ["fedweit", "fedweit local-only"]
    assert rows[0][1] == expected
    picture = pictures(page)["Average accuracy of every method"]
    deviation = np.std(finals, ddof=1)
    corners = band_of(picture, "fedweit")
    assert [x for x, _ in corners] == [0, 1, 2, 2, 1, 0]
    assert [y for _, y in corners[2:4]] == pytest.approx(
        [np.mean(finals) + deviation, np.mean(finals) - deviation]
    )
    ((sentence, _),) = verdicts(page).items()
    gains = [np.mean(final_gains(*runs[k : k + 2])) for k in (0, 2, 4)]
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
    assert f"fedweit: mean {expected:+.3f}" in hints(
        pictures(page)["Transfer gain of every federated method"]
    )


def test_runs_with_one_label_are_told_apart_by_isolation(tmp_path):
    runs = [
        make_run(tmp_path / "a", label="weit"),
        make_run(tmp_path / "b", label="weit", local_only=True),
    ]
    page = parsed(write_comparison(tmp_path, runs))
    rows = [row[0] for row in table_of(page, "methods")]
    assert rows == ["weit", "weit local-only"]


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


def test_runs_of_different_tasks_are_refused(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", strategy="fedavg")]
    scenario = synthetic_scenario(3, 3)
    scenario["clients"].reverse()
    write(runs[1] / "scenario.json", scenario)
    with pytest.raises(ConfigError, match="expected the identical scenario"):
        write_comparison(tmp_path, runs)


def test_an_empty_comparison_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="runs is empty"):
        write_comparison(tmp_path, [])


# ---- what the runs were


def test_the_table_has_the_gain_that_the_terminal_shows(tmp_path):
    runs = [
        run
        for seed in (1, 2)
        for run in pair_of_runs(tmp_path / str(seed), 0.1, seed=seed)
    ]
    page = parsed(write_comparison(tmp_path, runs))
    column = head_of(page, "methods").index("transfer gain")
    found = [row[column] for row in table_of(page, "methods")]
    shown = tables.rows([summary_of(run) for run in runs])
    gain = tables.format_mean_std(shown[0]["transfer_gain"], "+.3f")
    assert found == [gain, ""]
    assert re.fullmatch(r"\+0\.\d{3} ± 0\.\d{3}", gain)


def test_without_pairs_the_table_has_no_column_for_their_gain(tmp_path):
    page = parsed(write_comparison(tmp_path, [make_run(tmp_path / "a")]))
    assert "transfer gain" not in head_of(page, "methods")


def test_validation_accuracies_are_drawn_over_rounds(tmp_path):
    runs = [
        run
        for seed in (1, 2)
        for run in pair_of_runs(tmp_path / str(seed), 0.1, seed=seed)
    ]
    page = parsed(write_comparison(tmp_path, runs))
    require_layout(page)
    picture = pictures(page)["Validation accuracy of every method"]
    x, y, _ = lines_of(picture)["fedweit"]
    recorded = [
        [
            json.loads(line)["valid_accuracy"]
            for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for run in runs[::2]
    ]
    assert x == [*range(1, 13)]
    assert y == pytest.approx(np.mean(recorded, axis=0))


def test_rounds_without_a_validation_accuracy_leave_no_picture(tmp_path):
    run = make_run(tmp_path / "a")
    path = run / "rounds.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join(json.dumps(json.loads(s) | {"valid_accuracy": None}) for s in lines),
        encoding="utf-8",
    )
    page = parsed(write_comparison(tmp_path, [run]))
    assert "Validation accuracies are not known" in headings(page)


def test_each_run_is_linked_with_model_length_command_and_versions(tmp_path):
    runs = [
        make_run(tmp_path / "a b#1", clients=2),
        make_run(tmp_path / "c", seed=2, clients=2),
    ]
    (runs[0] / "report.html").write_text("", encoding="utf-8")
    made = {"date": "2026-01-02", "versions": {"torch": "2.6"}, "commit": "abc"}
    edit(runs[0], "summary.json", environment=made)
    page = parsed(write_comparison(tmp_path / "out", runs))
    assert table_of(page, "runs") == [
        [
            *("fedweit", "1", "lenet", "12 rounds"),
            "fcl run studies/overlapped.toml --seed 1",
            "2026-01-02, torch 2.6, commit abc",
        ],
        [
            *("fedweit", "2", "lenet", "12 rounds"),
            "fcl run studies/overlapped.toml --seed 1",
            "\N{EN DASH}",
        ],
    ]
    links = [link.get("href") for link in page.iter("a")]
    assert links == ["../a%20b%231/report.html"] * 2  # of the method and of the run
    assert "model lenet, 2 clients, 3 tasks, 12 rounds, seeds 1, 2" in words(
        page.find("body/header/p")
    )


def test_a_single_seed_is_said_to_have_no_deviation(tmp_path):
    page = words(parsed(write_comparison(tmp_path, [make_run(tmp_path / "a")])))
    assert "of a single seed, so that no deviation is known" in page
    assert "Of a single seed: no deviation is known." in page
    assert "standard deviation over seeds" not in page
