"""A scenario of your own: all clients learn the same tasks, each on its share.

Every class is dealt out evenly among the clients, and all of them learn the same groups
of classes in the same order: the federation that plain averaging is made for.

    python examples/custom_scenario.py

You see the progress of two runs, then a table: FedAvg, and training alone.
"""

import argparse

import numpy as np

import fcl_flower as fcl
from fcl_flower.data.scenarios.groups import drawn_groups
from fcl_flower.data.scenarios.plan import ScenarioSpec, Task
from fcl_flower.data.scenarios.registry import ScenarioEntry


def draw(spec: ScenarioSpec) -> tuple[tuple[Task, ...], ...]:
    """Return the tasks of each client, in the order in which it learns them."""
    (source,) = spec.sources
    groups = drawn_groups(source, spec.classes_per_task, spec.rng("groups"))
    streams: list[list[Task]] = [[] for _ in range(spec.clients)]
    for number, group in enumerate(groups[: spec.tasks]):
        test = np.flatnonzero(np.isin(source.test.y, group.labels))
        shares = [
            np.array_split(spec.shuffled_class(source, "train", label), spec.clients)
            for label in group.labels
        ]
        for stream, of_classes in zip(streams, zip(*shares, strict=True), strict=True):
            cuts = [round(len(part) * spec.valid_fraction) for part in of_classes]
            pairs = list(zip(of_classes, cuts, strict=True))
            valid = np.sort(np.concatenate([part[:cut] for part, cut in pairs]))
            train = np.sort(np.concatenate([part[cut:] for part, cut in pairs]))
            task = group.task(train=train, valid=valid, test=test, number=number)
            stream.append(task)
    return tuple(map(tuple, streams))


def main() -> None:
    """Compare FedAvg with training alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()

    entry = ScenarioEntry(draw, "the same tasks for all, samples dealt out evenly")
    with fcl.scenarios.SCENARIOS.registered("even", entry):
        comparison = fcl.compare(
            ["fedavg"],
            scenario="even",
            dataset="digits",
            clients=4,
            tasks=3,
            rounds=given.rounds,
        )
    print(comparison.table())


if __name__ == "__main__":
    main()
