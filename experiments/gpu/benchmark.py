"""Speed on a device, part by part, each with seconds that it may take.

python benchmark.py OUTPUT [--device cuda] [--data-root FOLDER] [--quick]

A part that fails, or is not over in time, has a cell that says so, and takes no other
with it. What is in ``measurements.jsonl`` is not measured again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "benchmarks"))

from measurement import fcl, options  # noqa: E402
from results import Results, Row, machine, table  # noqa: E402
from users import NAME, write_users  # noqa: E402

from fcl_flower.config.parsing import Scalar  # noqa: E402

VISITS = {
    "the bare loop": None,
    "in process": ("--backend", "in-process"),
    "in Flower's runtime, four share the device": ("--backend", "flower"),
}
"""Sides of a visit, with the options of ours."""
LARGE = "lenet"
"""The network of four clients that share the device."""


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        clients: small ones.
        images: of each.
        rounds: of a run, at least 2; the first one counts for nothing.
        features: images through the encoder.
        seconds: that a single run may take.
        overlapped: seconds for FedWeIT on Overlapped-CIFAR-100.
        width: of its LeNet.
        most: its training images of a class; 0 for all.
    """

    clients: int = 64
    images: int = 50
    rounds: int = 5
    features: int = 4096
    seconds: float = 35.0
    overlapped: float = 60.0
    width: float = 1.0
    most: int = 0


FULL = Size()
QUICK = Size(4, 10, 2, 2, 60.0, 30.0, 0.1, 10)


@dataclass(frozen=True)
class Bench:
    """Where and how much is measured."""

    device: str
    data: Path
    size: Size
    work: Path

    def run(self, command: Sequence[str], seconds: float) -> Row:
        """Run a command; return its seconds, and why it has not ended well."""
        began = time.perf_counter()
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.work / "log").open("w+") as log:
            try:
                done = subprocess.run(
                    command, env=env, stdout=log, stderr=log, timeout=seconds
                )
                failed = f"failed with code {done.returncode}" * bool(done.returncode)
            except subprocess.TimeoutExpired:
                failed = f"not over after {seconds:.0f} s"
            log.seek(0)
            lines = log.read().splitlines() or [""]
        spent = time.perf_counter() - began
        return {"seconds": spent, "failed": failed, "said": lines[-1]}


def visits(bench: Bench, network: str, side: str) -> Row:
    """Measure milliseconds a visit of one side: a round's seconds, by its clients."""
    size = bench.size
    clients = size.clients if network == "small" else 4
    counts = clients, size.images, size.rounds
    with tempfile.TemporaryDirectory() as folder:
        data, output = Path(folder, "data"), Path(folder, "run")
        write_users(data, clients, size.images, digits=network == "small")
        command = [sys.executable, str(HERE / "bare.py"), str(data / f"{NAME}.npz")]
        command += [network, bench.device, *map(str, counts)]
        ours = VISITS[side]
        if ours is not None:
            given = options(settings(bench, network, clients, size.rounds))
            where = ("--data-root", data, "--output", output)
            command = fcl("simulate", *where, *given, *ours)
        if side.startswith("in Flower"):
            share = "0.25" if bench.device == "cuda" else "0"
            command += ["--workers", "4", "--gpus-per-client", share]
        done = bench.run(command, size.seconds)
        if done["failed"]:
            return done
        seconds = _said(done)["seconds"] if ours is None else _round(output)
    return {"failed": "", "value": 1000 * seconds / clients}


def _round(output: Path) -> float:
    """Return the median seconds of a run's rounds after the first."""
    lines = (output / "rounds.jsonl").read_text().splitlines()
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:])


def settings(
    bench: Bench, network: str, clients: int, rounds: int
) -> dict[str, Scalar]:
    """Return the settings of our side: the work of `bare.py`."""
    return {
        "strategy.name": "fedavg",
        "scenario.name": "classes",
        "scenario.clients": clients,
        "scenario.tasks": 1,
        "scenario.classes_per_task": 10,
        "scenario.valid_fraction": 0.0,
        "data.datasets": NAME,
        "model.name": network,
        "model.head": "single",
        "training.batch_size": 10,
        "training.lr_patience": 0,
        "training.optimizer": "sgd",
        "training.learning_rate": 0.01,
        "training.device": bench.device,
        "federation.rounds_per_task": rounds,
        "privacy.scores": False,
        "run.seed": 1,
    }


def overlapped(bench: Bench) -> Row:
    """Count the rounds of FedWeIT that fit: five clients, ten tasks, LeNet."""
    if not (bench.data / "images" / "cifar100.npz").exists():
        return {"failed": "not run: no images/cifar100.npz in --data-root"}
    output = bench.work / "overlapped"
    command = fcl(
        *("simulate", "--strategy", "fedweit", "--dataset", "cifar100"),
        *("--data-root", bench.data, "--output", output),
        *("--clients", 5, "--tasks", 10, "--rounds", 20, "--model", LARGE),
        *("--set", "scenario.classes_per_task=5"),
        *("--set", f"model.width={bench.size.width}"),
        *("--set", f"scenario.max_train_per_class={bench.size.most}"),
        *("--set", f"training.device={bench.device}"),
    )
    done = bench.run(command, bench.size.overlapped)
    file = output / "rounds.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    if not lines:
        return {"failed": f"{done['failed']}, no round is over"}
    seconds = [json.loads(line)["seconds"] for line in lines]
    return {"failed": "", "value": sum(seconds) / len(lines), "rounds": len(lines)}


def features(bench: Bench) -> Row:
    """Measure images a second through ViT-S/14."""
    command = [sys.executable, str(HERE / "features.py"), bench.device]
    done = bench.run([*command, str(bench.size.features)], bench.size.seconds)
    return done if done["failed"] else {**done, "value": _said(done)["a_second"]}


def _said(done: Row) -> Row:
    found: Row = json.loads(done["said"])
    return found


def parts(size: Size) -> dict[str, tuple[str, Callable[[Bench], Row]]]:
    """Return the parts by name, each with the unit of its number."""
    unit = "ms a visit"
    small = f"{size.clients} small clients"
    found = {
        **{f"{small}: {side}": ("small", side) for side in list(VISITS)[:2]},
        **{f"LeNet, four clients: {side}": (LARGE, side) for side in VISITS},
    }
    return {
        **{
            name: (unit, partial(visits, network=n, side=s))
            for name, (n, s) in found.items()
        },
        "FedWeIT on Overlapped-CIFAR-100": ("s a round", overlapped),
        "features of a ViT-S/14": ("images a second", features),
    }


def report(results: Results, size: Size) -> str:
    """Return the table; a part without a row was not run."""
    lines = []
    for name, (unit, _) in parts(size).items():
        rows = results.of(part=name)
        cell = "not run"
        if rows:
            cell = rows[0]["failed"] or f"{rows[0]['value']:.3g} {unit}"
        if rows and "rounds" in rows[0]:
            cell += f", {rows[0]['rounds']} rounds"
        lines.append([name, cell])
    return table(("part", "measured"), lines)


def main() -> None:
    """Measure, and write ``results.md``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device: got cuda, expected cpu, as torch finds no accelerator")
    size = QUICK if given.quick else FULL
    results = Results(given.output / "measurements.jsonl")
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(given.device, given.data_root.absolute(), size, Path(work))
        for name, (_, measure) in parts(size).items():
            results.once({"part": name}, partial(measure, bench))
    card = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    where = f"{card}; {machine(results.rows)}{', quick' * given.quick}.\n"
    text = f"{report(results, size)}\n{where}"
    (given.output / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
