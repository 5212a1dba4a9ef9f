"""Pages of what goes on, served while a command runs."""

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fcl_flower.core.errors import ConfigError

if TYPE_CHECKING:
    from fcl_flower.simulation.study import Study


def live_run(
    port: int | None, folder: Path, console: Console
) -> AbstractContextManager[None]:
    """Serve the page of a run on a port while it goes on; None: do not."""
    from fcl_flower.results.monitors import LivePage, live
    from fcl_flower.results.report.run_page import report_page
    from fcl_flower.simulation.progress import write_line

    page = LivePage(lambda goes_on: report_page(folder, live=goes_on), [folder])
    return live(port, page, partial(write_line, console))


def live_study(
    port: int | None, study: "Study", folder: Path, console: Console
) -> AbstractContextManager[None]:
    """Serve the page of a study's runs so far while they go on; None: do not."""
    from fcl_flower.results.monitors import LivePage, live
    from fcl_flower.results.record import is_run
    from fcl_flower.results.report.comparison import comparison_page
    from fcl_flower.simulation.progress import write_line
    from fcl_flower.simulation.study_runs import run_folder

    folders = [run_folder(folder, config) for config in study.runs()]

    def draw(goes_on: bool) -> str:
        known = [*filter(is_run, folders)]
        if not known:
            raise ConfigError(f"{folder}: no run has begun")
        return comparison_page(folder, known, live=goes_on)

    return live(port, LivePage(draw, folders), partial(write_line, console))
