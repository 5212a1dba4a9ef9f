"""Cutting data sets into concepts, and every concept into one chunk for each client."""

from collections.abc import Sequence

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices, split_in_turn, train_valid_split
from fcl_flower.data.scenarios.class_groups import Group
from fcl_flower.data.scenarios.plan import Task

LEAST = 2
"""Training samples of a concept that a client needs: one of them is held out."""


def concept_groups(sources: Sequence[Dataset], concepts: int, seed: int) -> list[Group]:
    """Return the classes of each concept.

    Each data set is a concept. Where more are wanted, one after the other goes to the
    set that has most classes for each of its concepts, and the classes of such a set
    are dealt to its concepts at random, in nearly equal numbers.

    Args:
        sources: the data sets.
        concepts: how many there shall be.
        seed: the run's seed.

    Raises:
        ConfigError: there are more data sets than concepts, or too few classes.
    """
    if concepts < len(sources):
        raise ConfigError(
            f"tasks: got {concepts} concepts, expected at least one for each of the "
            f"{len(sources)} data sets."
        )
    parts = [1] * len(sources)
    for _ in range(concepts - len(sources)):
        shares = [s.num_classes / n for s, n in zip(sources, parts, strict=True)]
        parts[int(np.argmax(shares))] += 1
    groups = []
    for number, (source, count) in enumerate(zip(sources, parts, strict=True)):
        if source.num_classes < count:
            raise ConfigError(
                f"tasks: got {concepts} concepts, expected at most one for each of "
                f"the {sum(s.num_classes for s in sources)} classes."
            )
        labels = np.arange(source.num_classes)
        if count > 1:
            rng = np.random.default_rng(derive(seed, "concept-classes", number))
            labels = rng.permutation(labels)
        for place, share in enumerate(np.array_split(labels, count)):
            name = source.name if count == 1 else f"{source.name}/{place}"
            groups.append(Group(name, source, tuple(sorted(share.tolist()))))
    return groups


def concept_chunks(
    groups: Sequence[Group], clients: int, valid_fraction: float, seed: int
) -> tuple[tuple[Task, ...], ...]:
    """Return for every client its chunk of each concept.

    Training and test samples alike are cut into disjoint parts of nearly equal size,
    class by class, so that the clients' mean test accuracy is that of the whole test
    set.

    Args:
        groups: the concepts.
        clients: number of clients.
        valid_fraction: share of a chunk's training samples kept for validation.
        seed: the run's seed.

    Raises:
        ConfigError: a concept has too few samples for so many clients.
    """
    by_concept = [
        _chunks(group, number, clients, valid_fraction, seed)
        for number, group in enumerate(groups)
    ]
    return tuple(zip(*by_concept, strict=True))


def _chunks(
    group: Group, number: int, clients: int, valid_fraction: float, seed: int
) -> list[Task]:
    source = group.source
    train, test = (
        _parts(group, split, clients, least, seed, number)
        for split, least in (("train", LEAST), ("test", 1))
    )
    tasks = []
    for client, (mine, tested) in enumerate(zip(train, test, strict=True)):
        rng = np.random.default_rng(derive(seed, "concept-valid", client, number))
        # Not class by class, since a chunk may hold a single sample of some classes.
        kept, held = train_valid_split(
            np.zeros(len(mine), np.int64), valid_fraction, rng
        )
        tasks.append(
            Task(
                name=group.name,
                dataset=source.name,
                classes=group.labels,
                class_names=tuple(source.class_names[label] for label in group.labels),
                train=mine[kept],
                valid=mine[held],
                test=tested,
                group=number,
            )
        )
    return tasks


def _parts(
    group: Group, split: str, clients: int, least: int, seed: int, number: int
) -> list[Indices]:
    samples = group.source.train if split == "train" else group.source.test
    members = np.flatnonzero(np.isin(samples.y, group.labels))
    if len(members) < clients * least:
        raise ConfigError(
            f"clients: got {clients}, expected at most {len(members) // least}, since "
            f"concept {group.name!r} has {len(members)} {split} samples."
        )
    rng = np.random.default_rng(derive(seed, f"concept-{split}", number))
    return [members[part] for part in split_in_turn(samples.y[members], clients, rng)]
