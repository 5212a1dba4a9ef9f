"""(a) What a client's visit costs: pfl-research's CIFAR-10 benchmark, side by side.

1000 users with 50 images each, 50 of them a round, one epoch in batches of ten, and the
same network, optimizer and rate on every side. A side is run for few and for many
rounds: what they differ by is the cost of visits, and the rest is the start.
"""

import json
import math
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import users
from measurement import SIDES, environment, fcl, measured, options
from results import Results, Row, of_a_further, ratios, spread, table

from fcl_flower.config.parsing import Scalar

BARE, PFL = "bare loop", "pfl"
BATCH_SIZE = 10
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        users: that there are.
        images: of each user, all of them for training.
        cohort: users of a round.
        rounds: of the short and of the long run; `report` needs both.
    """

    users: int = 1000
    images: int = 50
    cohort: int = 50
    rounds: tuple[int, ...] = (2, 12)

    @property
    def settings(self) -> dict[str, Scalar]:
        """Return the settings of our runs."""
        return {
            "strategy.name": "fedavg",
            "scenario.name": "classes",
            "scenario.clients": self.users,
            "scenario.tasks": 1,
            "scenario.classes_per_task": users.CLASSES,
            "scenario.valid_fraction": 0.0,
            "data.datasets": users.NAME,
            "model.name": "simple-cnn",
            "model.head": "single",
            "training.batch_size": BATCH_SIZE,
            "training.lr_patience": 0,
            "training.optimizer": "sgd",
            "training.learning_rate": LEARNING_RATE,
            "federation.client_fraction": self.cohort / self.users,
            "privacy.scores": False,
            "run.seed": 1,
        }


FULL, QUICK = Size(), Size(users=100, cohort=10, rounds=(1, 4))


@dataclass(frozen=True)
class Place:
    """Where a run finds its data and leaves its output.

    Attributes:
        data: folder with the users' pictures.
        output: a folder that is not there yet.
        pfl_python: the interpreter that has pfl; empty for none.
    """

    data: Path
    output: Path
    pfl_python: str


Command = Callable[[Size, int, Place], Sequence[str]]


def our_run(backend: str, workers: int = 1) -> Command:
    """Return how our FedAvg is started on a backend."""
    more = () if workers == 1 else ("--workers", workers)

    def command(size: Size, rounds: int, place: Place) -> Sequence[str]:
        settings = {**size.settings, "federation.rounds_per_task": rounds}
        return fcl(
            *("simulate", "--backend", backend, "--data-root", place.data),
            *(*options(settings), *more, "--output", place.output),
        )

    return command


def script(name: str, *, pfl: bool = False) -> Command:
    """Return how a side of one file is started, by this Python or that with pfl."""

    def command(size: Size, rounds: int, place: Place) -> Sequence[str]:
        python = place.pfl_python if pfl else sys.executable
        counts = (size.users, size.images, size.cohort, rounds)
        file = place.data / f"{users.NAME}.npz"
        return [python, str(SIDES / name), *map(str, (file, *counts))]

    return command


def plain_flower(size: Size, rounds: int, place: Place) -> Sequence[str]:
    """Return how Flower's own FedAvg is started."""
    settings = {
        **size.settings,
        "strategy.name": "timed",
        "federation.rounds_per_task": rounds,
        "data.root": str(place.data.absolute()),
    }
    file = str(SIDES / "plain_simulation.py")
    return [sys.executable, file, str(place.output), json.dumps(settings)]


def work_told(output: Path) -> Row:
    """Return what a side says itself that it did, in the last line of its log."""
    found: Row = json.loads(_last_line(output))
    return found


def work_of_flower(output: Path) -> Row:
    """Return what the clients of Flower's own FedAvg told."""
    rounds = json.loads(_last_line(output))
    visits = [client for one in rounds for client in one["clients"]]
    return _work(
        [visit["num-examples"] for visit in visits],
        statistics.mean(visit["loss"] for visit in rounds[-1]["clients"]),
    )


def work_of_ours(output: Path) -> Row:
    """Return what a run of ours has written down."""
    lines = (output / "rounds.jsonl").read_text().splitlines()
    rounds = [json.loads(line) for line in lines]
    plan = json.loads((output / "scenario.json").read_text())["clients"]
    images = [plan[client][0]["train"] for one in rounds for client in one["clients"]]
    return _work(images, rounds[-1]["loss"])


def _last_line(output: Path) -> str:
    """Return the last line that the side of an output has printed."""
    return output.with_suffix(".log").read_text().splitlines()[-1]


def _work(images: Sequence[int], loss: float) -> Row:
    steps = sum(math.ceil(count / BATCH_SIZE) for count in images)
    visits = len(images)
    return {"visits": visits, "samples": sum(images), "steps": steps, "loss": loss}


@dataclass(frozen=True)
class Side:
    """One of those that are compared.

    Attributes:
        command: starts it.
        work: reads what it did, from its output.
    """

    command: Command
    work: Callable[[Path], Row]


EVERY = {
    BARE: Side(script("bare.py"), work_told),
    "ours, in process": Side(our_run("in-process"), work_of_ours),
    "ours, two workers": Side(our_run("in-process", 2), work_of_ours),
    PFL: Side(script("with_pfl.py", pfl=True), work_told),
    "ours, in Flower's runtime": Side(our_run("flower"), work_of_ours),
    "Flower's FedAvg, in its runtime": Side(plain_flower, work_of_flower),
}


def measure(
    results: Results,
    size: Size,
    repeats: int,
    pfl_python: str,
    sides: Mapping[str, Side] = EVERY,
) -> None:
    """Measure every side in turn, several times."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder, "data"), Path(folder, "output"), pfl_python)
        pictures = users.write_users(place.data, size.users, size.images)
        for repeat in range(repeats):
            for name, side in sides.items():
                for rounds in size.rounds if name != PFL or pfl_python else ():
                    results.once(
                        {
                            **_key(size),
                            "side": name,
                            "repeat": repeat,
                            "rounds": rounds,
                        },
                        partial(_one, side, size, rounds, place, pictures),
                    )


def _key(size: Size) -> Row:
    return {"part": "a", **{k: v for k, v in asdict(size).items() if k != "rounds"}}


def _one(side: Side, size: Size, rounds: int, place: Place, pictures: str) -> Row:
    shutil.rmtree(place.output, ignore_errors=True)
    log = place.output.with_suffix(".log")
    env = environment(place.output.with_name("installed"))
    command = side.command(size, rounds, place)
    if command[0] == place.pfl_python:  # another Python, with packages of its own
        env["PYTHONPATH"] = str(SIDES)
    cost = measured(command, env, log)
    work = side.work(place.output)
    visits = size.cohort * rounds
    samples = visits * size.images
    wanted = {
        "visits": visits,
        "samples": samples,
        "steps": visits * math.ceil(size.images / BATCH_SIZE),
    }
    if not (wanted.items() <= work.items() and math.isfinite(work["loss"])):
        raise RuntimeError(f"got {work}, expected {wanted} and a loss: {command}")
    return {**work, **asdict(cost), "pictures": pictures}


def report(results: Results, size: Size) -> str:
    """Return the table: costs of a visit and of the start, beside the bare loop's."""
    lines, bare = [], _visits(results, size, BARE)
    for name in EVERY:
        found = _visits(results, size, name)
        if not found:
            why = "not run: pfl is not installed" if name == PFL else "not run"
            lines.append([name, why, "", "", "", ""])
            continue
        cpu, base = (
            [one["cpu"] for one in runs] for runs in (found, bare[: len(found)])
        )
        lines.append(
            [
                name,
                spread(cpu),
                ratios(cpu, base),
                spread([one["wall"] for one in found]),
                spread([one["start"] for one in found]),
                f"{max(one['memory'] for one in found) / 1e9:.2f} GB",
            ]
        )
    head = (
        "side",
        "processor s a visit",
        f"ratio to the {BARE}",
        "wall s a visit",
        "processor s of the start",
        "memory of all processes",
    )
    pictures = {row["pictures"] for row in results.of(**_key(size))}
    return (
        f"{size.users} users with {size.images} images ({', '.join(pictures)}), "
        f"{size.cohort} a round; {size.rounds[0]} and {size.rounds[1]} rounds.\n\n"
        + table(head, lines)
    )


def _visits(results: Results, size: Size, side: str) -> list[Row]:
    """Return what a visit costs, and the start, of each repeat of a side."""
    found = []
    few, many = (
        results.of(**_key(size), side=side, rounds=rounds) for rounds in size.rounds
    )
    costs = (of_a_further("visits", of, few, many) for of in ("cpu", "wall"))
    for short, long, cpu, wall in zip(few, many, *costs, strict=True):
        start = short["cpu"] - cpu * short["visits"]
        memory = long["memory"]
        found.append({"cpu": cpu, "wall": wall, "start": start, "memory": memory})
    return found
