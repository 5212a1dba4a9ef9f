"""Which client gets which samples, once it is known who learns which classes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fcl_flower.data.groups import Group
from fcl_flower.data.partition import Indices, deal, hold_out
from fcl_flower.data.plan import Task
from fcl_flower.errors import ConfigError
from fcl_flower.seeds import derive


def share_samples(
    groups: Sequence[Group],
    streams: Sequence[Sequence[int]],
    valid_fraction: float,
    seed: int,
) -> tuple[tuple[Task, ...], ...]:
    """Return every client's tasks.

    No training sample goes to two clients: a group that several of them learn is
    cut, class by class, into nearly equal parts.

    Args:
        groups: the class groups, disjoint.
        streams: for each client the index of each task's group, no group twice.
        valid_fraction: share of a task's training samples kept for validation.
        seed: the run's seed.

    Raises:
        ConfigError: a class has fewer training samples than clients that learn it.
    """
    sharers = Counter(group for stream in streams for group in stream)
    parts = {
        group: iter(_parts(groups[group], count, _rng(seed, "share", group)))
        for group, count in sharers.items()
    }
    return tuple(
        tuple(
            _task(
                groups[group],
                group,
                next(parts[group]),
                valid_fraction,
                _rng(seed, "valid", client, group),
            )
            for group in stream
        )
        for client, stream in enumerate(streams)
    )


def _rng(seed: int, purpose: str, *key: int) -> np.random.Generator:
    return np.random.default_rng(derive(seed, f"samples-{purpose}", *key))


def _parts(group: Group, count: int, rng: np.random.Generator) -> list[Indices]:
    """Return ``count`` disjoint parts of the group's training samples."""
    y = group.source.train.y
    for label in group.labels:
        samples = int(np.count_nonzero(y == label))
        if samples < count:
            raise ConfigError(
                f"clients: got {count} clients that learn class "
                f"{group.source.class_names[label]!r} of {group.source.name}, expected "
                f"at most one for each of its {samples} training samples."
            )
    members = np.flatnonzero(np.isin(y, group.labels))
    return [members[part] for part in deal(y[members], count, rng)]


def _task(
    group: Group,
    number: int,
    part: Indices,
    valid_fraction: float,
    rng: np.random.Generator,
) -> Task:
    source = group.source
    train, valid = hold_out(source.train.y[part], valid_fraction, rng)
    return Task(
        name=group.name,
        dataset=source.name,
        classes=group.labels,
        class_names=tuple(source.class_names[label] for label in group.labels),
        train=part[train],
        valid=part[valid],
        test=np.flatnonzero(np.isin(source.test.y, group.labels)),
        group=number,
    )
