"""How a run is watched: a moving bar in a terminal, plain lines elsewhere."""

from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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


def bars() -> Table:
    """Return a table for rows of `add_bar`."""
    return Table.grid(padding=(0, 1))


def add_bar(table: Table, label: str, progress: Progress) -> None:
    """Add a row that shows how far the run of this name is."""
    done = rounds_done(progress)
    bar = ProgressBar(total=progress["rounds"], completed=done, width=24)
    # No markup: names may have brackets, and lines that are written have none.
    table.add_row(Text(label, "bold"), bar, Text(describe(progress)))


def rounds_done(progress: Progress) -> int:
    """Return how many rounds are complete."""
    finished: int = progress["round"] - (progress["state"] != "finished")
    return max(0, finished)


class Lines:
    """Plain lines, where there is no terminal: one for each complete round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: dict[str, tuple[object, ...]] = {}

    def show(self, label: str, progress: Progress) -> None:
        """Say where the run of this name stands, if that is worth a line."""
        complete = progress["clients_done"] == progress["clients"]
        mark = (progress["round"], progress["state"])
        if complete and mark != self._shown.get(label):
            self._shown[label] = mark
            self.write(f"{label}: {describe(progress)}")

    def write(self, line: str) -> None:
        """Say anything else."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Screen:
    """A live picture in a terminal, lines elsewhere; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._lines = Lines(console)
        self._live = (
            Live(console=console, refresh_per_second=5) if console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:  # noqa: ANN401
        if self._live:
            self._live.__exit__(*problem)


class Display(Screen):
    """Shows one run."""

    def __init__(self, console: Console, label: str) -> None:
        """Show the run named ``label`` on ``console``."""
        super().__init__(console)
        self._label = label

    def show(self, progress: Progress) -> None:
        """Show where the run stands; a plain line only when a round is complete."""
        if self._live is None:
            self._lines.show(self._label, progress)
            return
        table = bars()
        add_bar(table, self._label, progress)
        self._live.update(table)
