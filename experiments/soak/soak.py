"""A federation on this machine for an hour, whose clients come, go, crash and lie.

python experiments/soak/soak.py DIR [--minutes 60]

Starts a server and four clients over TLS, and one run of FedAvg on digits after
another. Client 0 is never disturbed; client 1 is killed with SIGKILL, its worker
alone or all of it; client 2 is stopped and comes back; client 3 lies (`lying.py`). Now
and then the server app is killed and the run resumed. Every 15 seconds memory and
descriptors of all processes go into DIR/samples.jsonl, what happens into
DIR/events.jsonl, each run into DIR/runs.jsonl. Prints the verdict in Markdown
(``verdict.py DIR`` prints it again).
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from verdict import verdict

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import LocalFederation

CLIENTS = (0, 1, 2, 3)
PAUSE = 60.0
"""Seconds that a client sleeps in each training, so that others can use the machine."""
SAMPLE_SECONDS, TICK_SECONDS = 15.0, 1.0
RESTART_SECONDS = 40.0
"""Flower lets a client in again when it has given no sign of life for a while."""
EVENT_SECONDS = 150.0
EVENTS = (
    "worker 1 killed",
    "client 2 stopped",
    "client 1 killed",
    "server app killed",
    "client 2 stopped",
)
LAST_START = 900.0
"""No run starts that could not end before the hour does."""
RUN = (
    *("--strategy", "lying", "--clients", 4, "--tasks", 2, "--rounds", 3),
    *("--classes-per-task", 2, "--set", "federation.timeout=180"),
    *("--set", "federation.max_attempts=5", "--set", "federation.min_updates=1"),
)
PROGRAMS = {
    "fcl_flower.cli.main": "fcl",
    "fcl_flower.deploy.client": "fcl",
    "flower-superlink": "superlink",
    "flower-supernode": "supernode",
    "flwr-serverapp": "serverapp",
    "worker.py": "worker",
}
"""What is watched of a command's processes, and how the tables call it."""


class Soak(LocalFederation):
    """Runs, one after another, and what is written of their processes."""

    def __init__(self, folder: Path) -> None:
        """Prepare an empty folder; start nothing."""
        folder.mkdir(parents=True)
        super().__init__(
            folder,
            algorithm="lying:LYING",
            beside=Path(__file__).parent,
            variables={"OMP_NUM_THREADS": "1", "SOAK_PAUSE": str(PAUSE)},
        )
        self.wanted: dict[str, float] = {}
        self.runs = 0
        self.resumed = 0
        self.began = time.monotonic()
        for book in ("samples", "events", "runs"):
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

    def go_on(self, *, resume: bool = False) -> None:
        """Start the next run, or go on with the one that ended."""
        name = f"run-{self.runs}"
        settings = ("--resume", name) if resume else (*RUN, "--seed", self.runs)
        self.run(*settings, *(() if resume else ("--output", name)))
        self.write("events", what=f"{name} {'resumed' if resume else 'started'}")


def main() -> None:
    """Soak; print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    options = parser.parse_args()
    soak = Soak(options.folder)
    try:
        soak.certificates(len(CLIENTS))
        soak.server()
        for number in CLIENTS:
            soak.join(number)
        soak.go_on()
        last = last_event = 0.0
        events = 0
        while soak.now < options.minutes * 60:
            time.sleep(TICK_SECONDS)
            if soak.now - last > SAMPLE_SECONDS:
                last = soak.now
                soak.sample()
            if soak.now - last_event > EVENT_SECONDS and happen(
                soak, EVENTS[events % len(EVENTS)]
            ):
                last_event = soak.now
                events += 1
            bring_back(soak)
            next_run(soak, may_start=soak.now < options.minutes * 60 - LAST_START)
    finally:
        soak.end()
    print(verdict(options.folder))


def happen(soak: Soak, what: str) -> bool:
    """Let one thing happen, and note it; return whether there was anybody to meet."""
    beginning = {
        "worker 1 killed": "client-1 worker",
        "client 1 killed": "client-1 ",
        "client 2 stopped": "client-2 fcl",
        "server app killed": "server serverapp",
    }[what]
    victims = [one for name, one in soak.watched() if name.startswith(beginning)]
    for process in victims:
        with contextlib.suppress(psutil.Error):
            if what == "client 2 stopped":
                process.terminate()
            else:
                process.kill()
    if victims:
        soak.write("events", what=what, processes=len(victims))
    return bool(victims)


def bring_back(soak: Soak) -> None:
    """Start clients again that have ended, as a supervisor would."""
    for number in CLIENTS:
        name = f"client-{number}"
        if soak.started[name].poll() is None:
            soak.wanted.pop(name, None)
        elif name not in soak.wanted:
            soak.wanted[name] = soak.now + RESTART_SECONDS
        elif soak.now > soak.wanted[name]:
            del soak.wanted[name]
            soak.join(number)


def next_run(soak: Soak, *, may_start: bool) -> None:
    """Note a run that has ended; start the next, or resume one that was killed."""
    run = soak.started.get("run")
    if run is None or run.poll() is None:
        return
    name = f"run-{soak.runs}"
    if run.returncode and soak.resumed < 10:
        soak.resumed += 1
        # One that was killed before its first checkpoint begins again.
        soak.go_on(resume=(soak.folder / name / "checkpoint").is_dir())
        return
    soak.write("runs", run=name, code=run.returncode, resumed=soak.resumed)
    del soak.started["run"]
    soak.runs, soak.resumed = soak.runs + 1, 0
    if may_start:
        soak.go_on()


if __name__ == "__main__":
    main()
