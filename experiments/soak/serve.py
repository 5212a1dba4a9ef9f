"""Three simulated days of `fcl serve`, whose clients get tasks and vanish by chance.

python experiments/soak/serve.py DIR [--hours 72] [--seconds 20] [--seed 0]

A simulated hour lasts so many seconds. Each client has a table of its own for each
task. In each hour a client gets a new task with the chance `ARRIVES`. With the chance
`VANISHES` all of it is killed with SIGKILL, and comes back one to six hours later.
Once a day server and service are killed, too, and started again. At the end the
service learns what is left. Then memory, descriptors and disk of the three thirds are
compared, and every task of every client is predicted by `fcl.load` from its state.
Prints the tables in Markdown.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
from verdict import read_lines
from watch import WatchedFederation

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError
from fcl_flower.prediction.model import Model
from fcl_flower.service.status import ServiceStatus

CLIENTS, DAY = 3, 24
ARRIVES, VANISHES, LONGEST = 1 / 10, 1 / 15, 6
GROWTH = 1.1
"""A part may have that multiple of its memory of the second day, on the last."""
PATIENCE = 1800.0
RUN = (
    *("--strategy", "fedavg", "--model", "mlp", "--set", "model.num_features=3"),
    *("--classes-per-task", 2, "--rounds", 2, "--set", "federation.timeout=60"),
)


class Days(WatchedFederation):
    """A server, a service and clients with tasks of their own."""

    def __init__(self, folder: Path, hour: float, seed: int) -> None:
        """Prepare an empty folder with the first task of each client."""
        super().__init__(folder)
        self.hour, self.random = hour, Random(seed)
        self.away: dict[int, int] = {}
        for number in range(CLIENTS):
            self.deliver(number)

    def tasks(self, number: int) -> list[Path]:
        """List the tasks that a client has got."""
        return sorted((self.folder / f"data-{number}").glob("task-*"))

    def deliver(self, number: int) -> None:
        """Give a client its next task: two clouds, by a rename."""
        task = len(self.tasks(number)) + 1
        place = self.folder / f"data-{number}"
        part = place / f".task-{task:02}"
        part.mkdir(parents=True)
        rng = np.random.default_rng([number, task])
        corners = 2 * rng.normal(size=(2, 3))
        for split, count in (("train", 60), ("test", 100)):
            rows = ["a,b,c,label"]
            for row in range(count):
                a, b, c = corners[row % 2] + rng.normal(size=3)
                rows.append(f"{a},{b},{c},{('well', 'ill')[row % 2]}")
            (part / f"{split}.csv").write_text("\n".join(rows) + "\n")
        part.rename(place / f"task-{task:02}")
        self.write("events", what="task arrived")

    def serve(self) -> None:
        """Start the service, or let it go on."""
        address = f"127.0.0.1:{self.control}"
        deadline, look = f"{LONGEST * self.hour:g}s", f"{self.hour / 10:g}s"
        policy = ("--quorum", 0.6, "--deadline", deadline, "--look", look)
        where = ("--server", address, "--certs", "certs", "--output", "service")
        self.fcl("service", "serve", *RUN, *policy, *where)

    def come(self, number: int) -> None:
        """Start a client with its data."""
        self.join(number, "--data", f"data-{number}")

    def status(self) -> ServiceStatus | None:
        """Read what the service does; None before its beginning."""
        try:
            return ServiceStatus.read(self.folder / "service")
        except ConfigError:
            return None

    def pass_hour(self, number: int) -> None:
        """Let happen what an hour brings."""
        for client in range(CLIENTS):
            if self.random.random() < ARRIVES:
                self.deliver(client)
            if client in self.away:
                if number >= self.away[client]:
                    del self.away[client]
                    self.come(client)
            elif self.random.random() < VANISHES:
                self.away[client] = number + self.random.randint(1, LONGEST)
                self.kill(f"client-{client}")
                self.write("events", what="client vanished")
        if number % DAY == 0:
            self.kill("service")
            self.kill("server")
            self.server()
            self.serve()
            self.write("events", what="server and service restarted")
        deadline = self.began + number * self.hour
        while time.monotonic() < deadline:
            time.sleep(min(5.0, max(0.0, deadline - time.monotonic())))
            self.sample()
        self.write("disk", hour=number, **self.disk())

    def disk(self) -> dict[str, int]:
        """Measure the folders that server and clients write to, in bytes."""
        places = ("state-server", "service", *(f"state-{n}" for n in range(CLIENTS)))
        return {
            place: sum(
                path.stat().st_size
                for path in (self.folder / place).rglob("*")
                if path.is_file()
            )
            for place in places
        }

    def learn_rest(self) -> None:
        """Wait until all tasks are learned.

        Raises:
            RuntimeError: that takes too long.
        """
        for client in sorted(self.away):
            self.come(client)
        deadline = time.monotonic() + PATIENCE
        while not self.done():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.status()}\n{self.tails()}")
            time.sleep(1)

    def done(self) -> bool:
        """Tell whether each client has told all of its tasks, and they are learned."""
        found = self.status()
        if found is None or found.state != "waiting":
            return False
        tasks = {number: len(self.tasks(number)) for number in range(CLIENTS)}
        return tasks == {n: c.learned for n, c in found.clients.items()}


def main() -> None:
    """Let the days pass; print what they left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hours", type=int, default=3 * DAY)
    parser.add_argument("--seconds", type=float, default=20, help="Of an hour.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    days = Days(given.folder, given.seconds, given.seed)
    try:
        days.certificates(CLIENTS)
        days.server()
        for client in range(CLIENTS):
            days.come(client)
        days.serve()
        days.began = time.monotonic()
        for number in range(1, given.hours + 1):
            days.pass_hour(number)
        days.learn_rest()
    finally:
        days.end()
    print(verdict(given.folder))


def verdict(folder: Path) -> str:
    """Return the tables of what a folder's days left, in Markdown."""
    processes, flat = _processes(folder)
    predictions, right = _predictions(folder)
    happened = [line["what"] for line in read_lines(folder / "events.jsonl")]
    counts = {what: happened.count(what) for what in sorted(set(happened))}
    return "\n".join(
        [
            *("", *processes, "", *_disk(folder), "", *predictions, ""),
            "Happened: " + ", ".join(f"{what} {n}x" for what, n in counts.items()),
            "",
            f"Memory and descriptors: {'flat' if flat else 'NOT FLAT'}. Predictions of "
            f"finished tasks: {'as tested' if right else 'NOT AS TESTED'}.",
        ]
    )


def _processes(folder: Path) -> tuple[list[str], bool]:
    """Compare the three thirds of the time, over all restarts of a process."""
    end = read_lines(folder / "disk.jsonl")[-1]["at"]
    parts: dict[str, list[list[dict[str, float]]]] = defaultdict(lambda: [[], [], []])
    for line in read_lines(folder / "samples.jsonl"):
        if line["at"] < end:
            parts[line["process"]][int(3 * line["at"] / end)].append(line)
    head = "| process | MB: first third | second | last | descriptors | second | last |"
    rows, flat = [head + " |", "| --- " * 8 + "|"], True
    for name, thirds in sorted(parts.items()):
        if not all(thirds):
            continue
        memory, files = (
            [median(line[key] for line in third) for third in thirds]
            for key in ("megabytes", "descriptors")
        )
        good = memory[2] <= GROWTH * memory[1] and files[2] <= files[1] + 4
        flat = flat and good
        cells = [name, *(f"{n:.0f}" for n in [*memory, *files])]
        rows.append(f"| {' | '.join(cells)} | {'flat' if good else 'grows'} |")
    return rows, flat


def _disk(folder: Path) -> list[str]:
    """Tell the bytes of each folder at the end of each third."""
    lines = read_lines(folder / "disk.jsonl")
    thirds = [lines[len(lines) * n // 3 - 1] for n in (1, 2, 3)]
    rows = ["| folder | MB: first third | second | last |", "| --- " * 4 + "|"]
    for place in [key for key in lines[0] if key not in ("at", "hour")]:
        sizes = " | ".join(f"{line[place] / 1e6:.2f}" for line in thirds)
        rows.append(f"| {place} | {sizes} |")
    return rows


def _predictions(folder: Path) -> tuple[list[str], bool]:
    """Predict all tasks from the clients' states; compare with their last test."""
    summary = json.loads((folder / "service" / "summary.json").read_text())
    rows = [
        "| client | tasks | accuracy in the last test, by task | predicted |",
        "| --- " * 4 + "|",
    ]
    right = True
    for number in range(CLIENTS):
        last = summary["client_accuracy"][number][-1]
        tested = [accuracy for accuracy in last if accuracy is not None]
        model = fcl.load(folder / f"state-{number}")
        tasks = sorted((folder / f"data-{number}").glob("task-*"))
        found = [
            _accuracy(model, task / "test.csv", index)
            for index, task in enumerate(tasks)
        ]
        right = right and found == tested
        shown = [", ".join(f"{one:.2f}" for one in part) for part in (tested, found)]
        rows.append(f"| {number} | {len(tasks)} | {' | '.join(shown)} |")
    return rows, right


def _accuracy(model: Model, table: Path, task: int) -> float:
    lines = table.read_text().split()[1:]
    names = [line.rpartition(",")[2] for line in lines]
    answers = model.predict(table, task)
    right = sum(one.name == name for one, name in zip(answers, names, strict=True))
    return right / len(names)


if __name__ == "__main__":
    main()
