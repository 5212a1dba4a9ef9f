"""Rounds of a real federation on this machine, alone and beside hostile connections.

``python measure.py FOLDER`` starts a server and two clients over TLS, runs FedAvg on
digits without an attack, then beside each of several, and prints a row of a table for
each: the median seconds of a round, and the most memory and descriptors of the server.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from fcl_flower.runtime.processes import free_port

HERE = Path(__file__).parent
ATTACKS: dict[str, list[str]] = {
    "none": [],
    "from one address": ["--addresses", "1"],
    "from 200 addresses": ["--addresses", "200"],
    "bodies of 60 MiB": ["--addresses", "200", "--kinds", "large-body"],
}


class Federation:
    """A server and two clients that run until the context ends."""

    def __init__(self, folder: Path, descriptors: int) -> None:
        """Prepare a folder; the server may open so many files."""
        self.folder = folder
        self.descriptors = descriptors
        self.port, self.control = free_port(), free_port()
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a command of ours with a log."""

        def limit() -> None:
            if name == "server":
                most = self.descriptors
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

        with (self.folder / f"{name}.log").open("w") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=limit,
            )
        return self.started[name]

    def until(self, name: str, text: str) -> None:
        """Wait until a command has said something."""
        end = time.monotonic() + 240
        while text not in (self.folder / f"{name}.log").read_text():
            if self.started[name].poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} did not say {text!r}")
            time.sleep(0.2)

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Run server and clients while the context lasts."""
        made = self.start("certs", "certs", "certs", "--host", "localhost")
        made.wait()
        self.start("keys", "certs", "certs", "--clients", 2).wait()
        self.start(
            "server",
            *("server", "--certs", "certs", "--host", "127.0.0.1"),
            *("--port", self.port, "--control-port", self.control),
            *("--state", "server"),
        )
        try:
            self.until("server", "registered client-1.pub")
            for number in (0, 1):
                self.start(
                    f"client-{number}",
                    *("client", "--server", f"localhost:{self.port}"),
                    *("--number", number, "--certs", "certs"),
                    *("--state", f"state-{number}"),
                )
            for number in (0, 1):
                self.until(f"client-{number}", "SuperNode ID")
            yield
        finally:
            for process in self.started.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in self.started.values():
                process.wait(60)

    def rounds(self, name: str, count: int, watch: "Watch") -> list[float]:
        """Return the seconds of each round of a run."""
        run = self.start(
            "run",
            *("run", "--server", f"127.0.0.1:{self.control}", "--certs", "certs"),
            *("--strategy", "fedavg", "--dataset", "digits", "--tasks", 1),
            *("--rounds", count, "--clients", 2, "--seed", 1, "--output", name),
        )
        while run.poll() is None:
            watch.look()
            time.sleep(0.5)
        if run.returncode:
            raise SystemExit((self.folder / "run.log").read_text()[-2000:])
        lines = (self.folder / name / "rounds.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        if any(row["failed"] for row in rows):
            raise SystemExit("a client was left out")
        return [float(row["seconds"]) for row in rows]


class Watch:
    """The most memory and descriptors that the server and its SuperLink have had."""

    def __init__(self, server: int) -> None:
        """Watch a process and those that it started."""
        self.server = psutil.Process(server)
        self.descriptors = 0
        self.megabytes: dict[str, float] = {}

    def look(self) -> None:
        """Note what they have now."""
        self.descriptors = max(self.descriptors, self.server.num_fds())
        family = {"server": self.server}
        for child in self.server.children():
            family["SuperLink"] = child
        for name, process in family.items():
            now = process.memory_info().rss / 2**20
            self.megabytes[name] = max(self.megabytes.get(name, 0), now)


def main() -> None:
    """Read the command line, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--descriptors", type=int, default=1024, help="of the server")
    parser.add_argument("--only", choices=ATTACKS, nargs="*", default=list(ATTACKS))
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    federation = Federation(given.folder.absolute(), given.descriptors)
    os.environ["PYTHONPATH"] = str(HERE.parents[1])
    with federation.up():
        print(
            "| attack | seconds of a round | server | SuperLink | descriptors | last |"
        )
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for number, name in enumerate(given.only):
            watch = Watch(federation.started["server"].pid)
            attack = None
            log = given.folder / f"attack-{number}.log"
            if ATTACKS[name]:
                attack = subprocess.Popen(
                    [
                        *(sys.executable, str(HERE / "attack.py")),
                        *(f"127.0.0.1:{federation.port}", "--seconds", "3600"),
                        *("--connections", str(given.connections), *ATTACKS[name]),
                    ],
                    stdout=log.open("w"),
                    stderr=subprocess.DEVNULL,  # warnings of what was ended
                )
                time.sleep(15)
            try:
                seconds = federation.rounds(f"run-{number}", given.rounds, watch)
            finally:
                if attack is not None:
                    attack.terminate()
                    attack.wait()
            last = log.read_text().splitlines()[-1] if attack is not None else ""
            print(
                f"| {name} | {statistics.median(seconds):.1f} "
                f"({min(seconds):.1f} to {max(seconds):.1f}) "
                f"| {watch.megabytes['server']:.0f} MB "
                f"| {watch.megabytes['SuperLink']:.0f} MB "
                f"| {watch.descriptors} | {last} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
