"""What a run took of machines: its memory, and where it is shown."""

from pages import head_of, parsed, table_of, words
from run_folders import edit, make_run, summary_of

from fcl_flower.exports.sheets import methods_sheet, run_sheets
from fcl_flower.results import tables
from fcl_flower.results.report import wording
from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.result import Result


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
