"""A federation of processes whose memory, descriptors and events are written down."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from local_federation import LocalFederation

HERE = Path(__file__).parent
PROGRAMS = {
    "fcl_flower.cli.main": "fcl",
    "fcl_flower.deploy.client": "fcl",
    "flower-superlink": "superlink",
    "flower-supernode": "supernode",
    "flwr-serverapp": "serverapp",
    "worker.py": "worker",
}
"""What is watched of a command's processes, and how the tables call it."""


class WatchedFederation(LocalFederation):
    """The processes, and what is written of them."""

    def __init__(
        self, folder: Path, algorithm: str = "", variables: Mapping[str, str] = {}
    ) -> None:
        """Prepare an empty folder; start nothing."""
        folder.mkdir(parents=True)
        variables = {"OMP_NUM_THREADS": "1", **variables}
        super().__init__(folder, algorithm=algorithm, beside=HERE, variables=variables)
        self.began = time.monotonic()
        for book in ("samples", "events"):
            (folder / f"{book}.jsonl").touch()

    @property
    def now(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.began

    def write(self, book: str, **line: object) -> None:
        """Append a line to one of the books."""
        with (self.folder / f"{book}.jsonl").open("a") as file:
            file.write(json.dumps({"at": round(self.now, 1), **line}) + "\n")

    def join(self, number: int, *more: object) -> None:
        """Start a client, and note it."""
        self.client(number, *more)
        self.write("events", what=f"client-{number} started")

    def watched(self) -> Iterator[tuple[str, psutil.Process]]:
        """Yield the processes that run because of us and last, by what they are."""
        for name in self.started:
            for program, process in self.members(name):
                if part := PROGRAMS.get(program):
                    yield f"{name} {part}", process

    def sample(self) -> None:
        """Write memory, descriptors and threads of all processes."""
        for name, process in self.watched():
            with contextlib.suppress(psutil.Error):
                self.write(
                    "samples",
                    process=name,
                    pid=process.pid,
                    megabytes=round(process.memory_info().rss / 2**20, 1),
                    descriptors=process.num_fds(),
                    threads=process.num_threads(),
                    cpu_seconds=round(sum(process.cpu_times()[:2]), 1),
                )
