"""One self-contained HTML page for a run, or for runs side by side.

A page is made only of the files in the run folder, so it can be remade at any time,
and the same files give the same bytes. It loads nothing: no script, font or picture.
"""

from typing import TYPE_CHECKING

from fcl_flower.core.registry import lazy_names

if TYPE_CHECKING:
    from fcl_flower.results.report.comparison.page import (
        comparison_charts,
        comparison_page,
        require_comparable,
        write_comparison,
    )
    from fcl_flower.results.report.run_page import report_page, run_charts, write_report

__all__ = [
    "comparison_charts",
    "comparison_page",
    "report_page",
    "require_comparable",
    "run_charts",
    "write_comparison",
    "write_report",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "comparison.page": (
            "write_comparison comparison_charts comparison_page require_comparable"
        ),
        "run_page": "write_report run_charts report_page",
    },
)
