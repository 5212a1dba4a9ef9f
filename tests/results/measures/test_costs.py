"""What a run took of machines: its memory, and where it is shown."""

import subprocess
import sys

import numpy as np
import pytest
from pages import head_of, parsed, table_of, words
from run_folders import edit, make_run, summary_of

import fcl_flower as fcl
from fcl_flower.core.errors import WireError
from fcl_flower.exports.sheets import methods_sheet, run_sheets
from fcl_flower.results import tables
from fcl_flower.results.diagnostics.operations import OperationDiagnostics
from fcl_flower.results.measures import memory
from fcl_flower.results.measures.memory import PeakMemory
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.result import Result

MB = 1 << 20


def take(megabytes):
    """Touch memory and give it back to the system."""
    return float(np.ones(megabytes * MB // 8).sum())


def test_the_peak_is_that_of_the_run_alone():
    take(250)  # an earlier run of the process
    peak = PeakMemory()
    before = peak.bytes()
    take(100)
    after = peak.bytes()

    assert 99 * MB < after - before < 110 * MB
    assert before < after
    take(50)
    assert peak.bytes() - after < 5 * MB


@pytest.mark.process
def test_processes_that_were_started_count_while_they_run():
    peak = PeakMemory()
    before = peak.bytes()
    program = "b = b'x' * (80 << 20); del b; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "1\n"
        assert peak.bytes() - before > 80 * MB
        # The next run of a process that is kept begins anew.
        assert PeakMemory().bytes() < peak.bytes() + 5 * MB
        assert memory._peak(child.pid) < 60 * MB
        child.communicate("\n")
    assert memory._peak(child.pid) == 0
    assert peak.bytes() - before < 40 * MB


def test_where_the_system_forgets_no_peak_nothing_is_known(monkeypatch):
    monkeypatch.setattr(memory, "_RESET", "no number")
    assert PeakMemory().bytes() is None


def test_a_run_says_what_it_took(tmp_path):
    size = {"dataset": "digits", "clients": 1, "tasks": 1, "rounds": 1}
    result = fcl.simulate("local", **size, progress=False, output=tmp_path / "run")
    assert result.summary["peak_memory"] > 50 * MB


@pytest.mark.parametrize("metrics", [{}, {"multiply_adds": -1.0}])
def test_a_client_has_to_tell_a_count(metrics):
    with pytest.raises(WireError, match="metrics/multiply_adds: expected a count"):
        OperationDiagnostics().check(metrics)


def test_counts_of_all_clients_and_rounds_are_added_up():
    found = OperationDiagnostics()
    for number in (1, 2):
        told = {(c, 0): {"multiply_adds": 10.0**c} for c in range(3)}
        found.check(told[0, 0])
        found.add_round(number, told, {})
    assert found.summary() == {"multiply_adds": 222}


def test_tables_sheets_and_pages_show_what_is_known(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    other = make_run(tmp_path / "other", label="other")
    for run, count in zip(runs, (1e12, 3e12), strict=True):
        edit(run, "summary.json", peak_memory=5 * 10**8, multiply_adds=int(count))
    folders = [*runs, other]
    summaries = [summary_of(run) for run in folders]
    results = [Result(run, None, summary_of(run)) for run in folders]

    page = words(parsed(write_report(runs[0])))
    comparison = parsed(write_comparison(tmp_path / "out", folders))
    first, second = tables.rows(summaries)
    methods = methods_sheet(results)
    sheets = {one.name: one for one in run_sheets(results)}

    for shown in ("Peak memory", "500 MB", "Multiply-adds", "1e+12"):
        assert shown in page
    head = head_of(comparison, "methods")
    (known, unknown) = table_of(comparison, "methods")
    for title, value in (("peak memory", "500 MB"), ("multiply-adds", "2e+12")):
        assert known[head.index(title)] == value
        assert unknown[head.index(title)] == wording.UNKNOWN
    assert (first["multiply_adds"], second["multiply_adds"]) == (2e12, None)
    column = methods.columns.index("peak_memory")
    assert [row[column] for row in methods.rows] == [5e8, None]
    column = sheets["runs"].columns.index("multiply_adds")
    assert [row[column] for row in sheets["runs"].rows] == [10**12, 3 * 10**12, None]


def test_of_earlier_runs_nothing_is_said(tmp_path):
    run = make_run(tmp_path / "run")
    head = head_of(parsed(write_comparison(tmp_path / "out", [run])), "methods")
    assert not {"peak memory", "multiply-adds"} & {*head}
    assert "Peak memory" not in words(parsed(write_report(run)))
