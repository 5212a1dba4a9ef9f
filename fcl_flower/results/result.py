"""Finished runs as Python objects: arrays, tables, and pages in a notebook."""

import html
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import config_error, require_extra
from fcl_flower.core.types import Array
from fcl_flower.results import tables
from fcl_flower.results.files import json_lines, json_value

if TYPE_CHECKING:
    import pandas as pd

PAGE_HEIGHT = 700
"""The height of a page in a notebook, in pixels."""


class Rows(list[dict[str, Any]]):
    """Rows by column, which a terminal and a notebook show as a table."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], text: str = "") -> None:
        """Make a table of rows with the same columns; ``text`` is its Markdown."""
        super().__init__(dict(row) for row in rows)
        cells = (
            [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
            for row in self
        )
        self._text = text
        if self and not text:
            self._text = tables.markdown([*self[0]], cells)

    @override
    def __str__(self) -> str:
        return self._text

    def _repr_markdown_(self) -> str:
        return self._text


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run, as its folder has it.

    Attributes:
        folder: folder of the run. Without a named output it is a temporary folder,
            which is removed with this object.
        config: configuration with every default decided.
        summary: content of ``summary.json``.
    """

    folder: Path
    config: RunConfig
    summary: Mapping[str, Any]
    _keeps: object = None

    @classmethod
    def load(cls, folder: Path | str, keeps: object = None) -> "Result":
        """Load a finished run.

        The object ``keeps`` lives at least as long as the result.

        Raises:
            ConfigError: the folder holds no finished run, or a file of it is damaged.
        """
        path = Path(folder)
        if not (path / "summary.json").is_file():
            raise config_error("folder", str(folder), "one with a finished run")
        config = RunConfig.read(path / "config.toml", "folder")
        summary = json_value(path / "summary.json")
        return cls(path, config, cast(dict[str, Any], summary), keeps)

    @property
    def accuracy(self) -> Array:
        """The test accuracy, shape (clients, tasks, tasks); NaN where not measured.

        ``accuracy[c, t, i]`` is that of client c on its task i after task t.
        """
        return np.array(self.summary["client_accuracy"], np.float64)

    @property
    def average_accuracy(self) -> float:
        """The test accuracy at the end, mean over clients and tasks; NaN if unknown."""
        return self._number("average_accuracy")

    @property
    def average_incremental_accuracy(self) -> float:
        """The mean over task ends of the accuracy over all classes so far.

        NaN in any scenario but class-incremental.
        """
        return self._number("average_incremental_accuracy")

    @property
    def honest_accuracy(self) -> float:
        """The `average_accuracy` without hostile clients; NaN if there are none."""
        return self._number("honest_accuracy")

    @property
    def forgetting(self) -> float:
        """The mean loss of accuracy since a task's best; NaN if unknown."""
        return self._number("forgetting")

    @property
    def backward_transfer(self) -> float:
        """The mean change of accuracy since a task was learned; NaN if unknown."""
        return self._number("backward_transfer")

    @property
    def bytes_up(self) -> int:
        """The bytes of all messages of clients to the server."""
        return int(self.summary["bytes_up"])

    @property
    def bytes_down(self) -> int:
        """The bytes of all messages of the server to clients."""
        return int(self.summary["bytes_down"])

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The record of each round in order, with its loss and its bytes."""
        lines = json_lines(self.folder / "rounds.jsonl")
        return cast(list[dict[str, Any]], lines)

    def table(self) -> Rows:
        """List each measured accuracy."""
        return Rows(
            {"client": c, "after_task": t, "task": i, "accuracy": float(value)}
            for (c, t, i), value in np.ndenumerate(self.accuracy)
            if not np.isnan(value)
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Make a data frame of `table`; needs pandas."""
        return _data_frame(self.table())

    def report(self) -> Path:
        """Find the run's page: one HTML file that loads nothing."""
        return self.folder / "report.html"

    def save(self, folder: Path | str) -> "Result":
        """Copy the run to a folder that does not exist yet; return the copy."""
        if Path(folder).exists():
            raise config_error("folder", str(folder), "one that does not exist yet")
        shutil.copytree(self.folder, folder)
        return Result.load(folder)

    @override
    def __repr__(self) -> str:
        return (
            f"<Result of {self.config.title}, seed {self.config.run.seed}: accuracy "
            f"{self.average_accuracy:.3f}, forgetting {self.forgetting:.3f}>"
        )

    def _repr_html_(self) -> str:
        return _framed(self.report())

    def _number(self, key: str) -> float:
        value = self.summary.get(key)  # none in a run of a former version
        return float("nan") if value is None else float(value)


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Finished runs of several algorithms on identical scenarios.

    Attributes:
        folder: folder with one folder for each run; temporary as that of `Result`.
        results: runs by seed, then in the order of the rows of the table.
    """

    folder: Path
    results: tuple[Result, ...]
    _keeps: object = None

    def table(self) -> Rows:
        """Make a row for each algorithm: mean and standard deviation over seeds."""
        summaries = [result.summary for result in self.results]
        return Rows(tables.rows(summaries), tables.table(summaries))

    def to_pandas(self) -> "pd.DataFrame":
        """Make a data frame with a row for each run; needs pandas."""
        summaries = [result.summary for result in self.results]
        known = [
            measure
            for measure in tables.MEASURES
            if any(tables.value(summary, measure) is not None for summary in summaries)
        ]
        return _data_frame(
            [
                {key: summary[key] for key in ("label", "seed")}
                | {measure.key: tables.value(summary, measure) for measure in known}
                for summary in summaries
            ]
        )

    def report(self) -> Path:
        """Find the comparison's page: one HTML file that loads nothing."""
        return self.folder / "comparison.html"

    @override
    def __repr__(self) -> str:
        titles = dict.fromkeys(result.config.title for result in self.results)
        return f"<Comparison of {', '.join(titles)}: {len(self.results)} runs>"

    def _repr_html_(self) -> str:
        return _framed(self.report())


def _data_frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    with require_extra("frames", "to_pandas"):
        import pandas as pd
    return pd.DataFrame(rows)


def _framed(page: Path) -> str:
    """Show a page within another one, which its style does not touch."""
    content = html.escape(page.read_text(), quote=True)
    return (
        f'<iframe srcdoc="{content}" width="100%" height="{PAGE_HEIGHT}" '
        'style="border: 0"></iframe>'
    )
