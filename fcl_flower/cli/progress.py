"""How a run is watched: a moving bar in a terminal, plain lines elsewhere."""

from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from fcl_flower.results.report.html.numbers import duration, size
from fcl_flower.runtime.processes import Progress


def describe(progress: Progress) -> str:
    """Return where a run stands in one line."""
    if not progress["round"]:
        return "starting"
    accuracy, finished = progress["accuracy"], progress["state"] == "finished"
    clients = f"clients {progress['clients_done']}/{progress['clients']}"
    parts = [
        f"task {progress['task'] + 1}/{progress['tasks']}",
        f"round {progress['round']}/{progress['rounds']}",
        *([] if finished else [clients]),
        "accuracy so far " + ("-" if accuracy is None else f"{accuracy:.3f}"),
        f"up {size(progress['bytes_up'])}",
        f"down {size(progress['bytes_down'])}",
    ]
    done = progress["round"] - 1
    if finished:
        parts.append(f"finished in {duration(progress['seconds'])}")
    elif done:
        left = progress["seconds"] / done * (progress["rounds"] - done)
        parts.append(f"{duration(left)} left")
    return "  ".join(parts)


class Display:
    """Shows one run at a time; use it as a context manager."""

    def __init__(self, console: Console, label: str) -> None:
        """Show the run named ``label`` on ``console``."""
        self._console = console
        self._label = label
        self._live = (
            Live(console=console, refresh_per_second=5) if console.is_terminal else None
        )
        self._shown: tuple[object, ...] = ()

    def __enter__(self) -> "Display":
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:  # noqa: ANN401
        if self._live:
            self._live.__exit__(*problem)

    def show(self, progress: Progress) -> None:
        """Show where the run stands; a plain line only when a round is complete."""
        if self._live:
            done = progress["round"] - (progress["state"] != "finished")
            line = Table.grid(padding=(0, 1))
            bar = ProgressBar(
                total=progress["rounds"], completed=max(0, done), width=24
            )
            line.add_row(f"[bold]{self._label}[/bold]", bar, describe(progress))
            self._live.update(line)
            return
        complete = progress["clients_done"] == progress["clients"]
        mark = (progress["round"], progress["state"])
        if complete and mark != self._shown:
            self._shown = mark
            self._console.print(
                f"{self._label}: {describe(progress)}", highlight=False, soft_wrap=True
            )
