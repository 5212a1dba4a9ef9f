"""Rounds of a real federation on this machine, alone and beside hostile connections.

``python measure.py FOLDER`` starts a server and two clients over TLS, runs FedAvg on
digits without an attack, then beside each of several, and prints a row of a table for
each: the median seconds of a round, and the most memory and descriptors of the server.
"""

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import LocalFederation

HERE = Path(__file__).parent
ATTACKS: dict[str, list[str]] = {
    "none": [],
    "from one address": ["--addresses", "1"],
    "from 200 addresses": ["--addresses", "200"],
    "bodies of 60 MiB": ["--addresses", "200", "--kinds", "large-body"],
}


@contextlib.contextmanager
def federation(folder: Path, descriptors: int) -> Iterator[LocalFederation]:
    """Yield a server, which may open so many files, and two clients."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    one = LocalFederation(folder)
    try:
        one.certificates(clients=2)
        one.server(prepare=limit)
        for number in (0, 1):
            one.client(number)
        for number in (0, 1):
            one.until(f"client-{number}", "SuperNode ID")
        yield one
    finally:
        one.end()


def seconds_of_rounds(
    one: LocalFederation, name: str, count: int, watch: "Watch"
) -> list[float]:
    """Return the seconds of each round of a run."""
    one.run(
        *("--strategy", "fedavg", "--dataset", "digits", "--tasks", 1),
        *("--rounds", count, "--clients", 2, "--seed", 1, "--output", name),
    )
    while not one.ended("run"):
        watch.look()
        time.sleep(0.5)
    one.finish("run")
    lines = (one.folder / name / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    if any(row["failed"] for row in rows):
        raise SystemExit("a client was left out")
    return [float(row["seconds"]) for row in rows]


class Watch:
    """The most memory and descriptors that the server and its SuperLink have had."""

    def __init__(self, one: LocalFederation) -> None:
        """Watch the server of a federation."""
        self.server = psutil.Process(one.started["server"].pid)
        self.family = {
            "server": self.server,
            "SuperLink": one.member("server", "flower-superlink"),
        }
        self.descriptors = 0
        self.megabytes = dict.fromkeys(self.family, 0.0)

    def look(self) -> None:
        """Note what they have now."""
        self.descriptors = max(self.descriptors, self.server.num_fds())
        for name, process in self.family.items():
            now = process.memory_info().rss / 2**20
            self.megabytes[name] = max(self.megabytes[name], now)


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
    with federation(given.folder, given.descriptors) as one:
        print(
            "| attack | seconds of a round | server | SuperLink | descriptors | last |"
        )
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for number, name in enumerate(given.only):
            watch = Watch(one)
            attack = None
            log = given.folder / f"attack-{number}.log"
            if ATTACKS[name]:
                attack = subprocess.Popen(
                    [
                        *(sys.executable, str(HERE / "attack.py")),
                        *(f"127.0.0.1:{one.port}", "--seconds", "3600"),
                        *("--connections", str(given.connections), *ATTACKS[name]),
                    ],
                    stdout=log.open("w"),
                    stderr=subprocess.DEVNULL,  # warnings of what was ended
                )
                time.sleep(15)
            try:
                seconds = seconds_of_rounds(one, f"run-{number}", given.rounds, watch)
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
