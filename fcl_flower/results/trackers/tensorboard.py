"""TensorBoard: event files in the run's folder, ``tensorboard --logdir FOLDER``."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.trackers.base import Tracker


class TensorBoard(Tracker):
    """Scalars by round; configuration and final measures as texts."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Begin anew in ``FOLDER/tensorboard``: a resumed run tells all again."""
        place = folder / "tensorboard"
        shutil.rmtree(place, ignore_errors=True)
        self._writer = SummaryWriter(str(place))
        self._writer.add_text("config", f"```toml\n{config.to_toml()}\n```")

    @override
    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    @override
    def finish(self, measures: Mapping[str, float], report: Path) -> None:
        rows = [f"| {name} | {value} |" for name, value in measures.items()]
        table = "\n".join(["| measure | value |", "| --- | --- |", *rows])
        self._writer.add_text("summary", f"{table}\n\nReport: {report.absolute()}")

    @override
    def close(self) -> None:
        self._writer.close()
