"""Class-incremental streams: clients meet new classes together, each some of them.

The protocol of FedET (Liu et al., IJCAI 2023, section 4): every client knows a random
share of the classes of each task, and is tested on all of them. Classes of different
data sets may be one class of the single head.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import (
    Indices,
    split_in_turn,
    split_stratified,
    train_valid_split,
)
from fcl_flower.data.scenarios.class_groups import Group
from fcl_flower.data.scenarios.plan import Task, TaskStreams
from fcl_flower.data.scenarios.spec import ScenarioSpec

_NONE: Indices = np.empty(0, np.int64)


def class_incremental_tasks(draw: ScenarioSpec) -> TaskStreams:
    """Return every client's tasks, in the one order in which all learn them.

    A client draws its share of each task's classes. The training samples of a class
    are cut into disjoint parts of nearly equal size among those that drew it; the test
    samples of all of the task's classes are dealt to all clients, class by class, so
    that the clients together test every sample once.

    Raises:
        ConfigError: the classes do not suffice for the tasks, or the samples for the
            clients.
    """
    groups = task_groups(draw)
    drawn = [_drawn(draw, number, group) for number, group in enumerate(groups)]
    # Two clients that drew the same classes of a task learn the same.
    numbers: dict[tuple[int, tuple[int, ...]], int] = {}
    for labels in zip(*drawn, strict=True):
        for key in enumerate(labels):
            numbers.setdefault(key, len(numbers))
    by_task = []
    for number, (group, of_clients) in enumerate(zip(groups, drawn, strict=True)):
        train = _train_parts(draw, group, of_clients)
        test = _test_parts(draw, number, group)
        tasks = []
        for client, labels in enumerate(of_clients):
            part, rng = train[client], draw.rng("valid", client, number)
            labelled = group.source.train.y[part]
            kept, held = train_valid_split(labelled, draw.valid_fraction, rng)
            same = numbers[number, labels]
            tasks.append(
                _task(group, labels, part[kept], part[held], test[client], same)
            )
        by_task.append(tasks)
    return tuple(zip(*by_task, strict=True))


def public_tasks(draw: ScenarioSpec) -> tuple[Task, ...]:
    """Return the server's own training samples: a task for each of their data sets."""
    if (source := draw.public) is not None:
        kept = [_training(draw, source, label) for label in range(source.num_classes)]
        return (_public(source, range(source.num_classes), kept),)
    if not draw.incremental.public_fraction:
        return ()
    found: dict[str, list[Group]] = {}
    for group in task_groups(draw):
        found.setdefault(group.source.name, []).append(group)
    tasks = []
    for groups in found.values():
        source = groups[0].source
        labels = sorted(label for group in groups for label in group.labels)
        shares = [_dealt(draw, source, label)[0] for label in labels]
        tasks.append(_public(source, labels, shares))
    return tuple(tasks)


def same_labels(
    text: str, sources: Sequence[Dataset]
) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Return what (dataset, label id) pairs stand for, where it is not themselves.

    Classes of one name are one class, that of the first data set of the group that has
    it.

    Args:
        text: groups of names of data sets, such as ``yelp=amazon,a=b=c``.
        sources: all data sets, those of the server included.

    Raises:
        ConfigError: a group is not of different data sets of the run, a data set is in
            two groups, or one has no class name in common with those before it.
    """
    known = {source.name: source for source in sources}
    groups = [
        [name.strip() for name in group.split("=")]
        for group in text.split(",")
        if group.strip()
    ]
    names = [name for group in groups for name in group]
    for name in names:
        if name not in known:
            raise _refused(
                text, f"data sets of the run, not {name!r}: {', '.join(known)}"
            )
    if len(set(names)) < len(names) or any(len(group) == 1 for group in groups):
        raise _refused(text, "groups of two or more names, each of them once")
    same = {}
    for group in groups:
        first: dict[str, tuple[str, int]] = {}
        for name in group:
            class_names = known[name].class_names
            if first and first.keys().isdisjoint(class_names):
                raise _refused(
                    text,
                    f"a class name that {name!r} has in common with those before it",
                )
            for label, class_name in enumerate(class_names):
                one = first.setdefault(class_name, (name, label))
                if one[0] != name:
                    same[name, label] = one
    return MappingProxyType(same)


def _refused(text: str, expected: str) -> ConfigError:
    return ConfigError(f"same-labels: got {text!r}, expected {expected}.")


def task_groups(draw: ScenarioSpec) -> list[Group]:
    """Return the classes of each task: of one data set in parts, or a data set each.

    Raises:
        ConfigError: there are not as many tasks as data sets, or too few classes.
    """
    sources, tasks, size = draw.sources, draw.tasks, draw.classes_per_task
    if len(sources) > 1:
        if tasks != len(sources):
            raise ConfigError(
                f"tasks: got {tasks}, expected {len(sources)}, since each of the data "
                f"sets {', '.join(source.name for source in sources)} is one task."
            )
        if size:
            raise ConfigError(
                f"classes_per_task: got {size}, expected none, since each of "
                f"{len(sources)} data sets is one task with all its classes."
            )
        return [
            Group(source.name, source, tuple(range(source.num_classes)))
            for source in sources
        ]
    source = sources[0]
    most = source.num_classes // (size or 1)
    if tasks > most:
        raise ConfigError(
            f"tasks: got {tasks}, expected at most {most}, since {source.name} has "
            f"{source.num_classes} classes, of which each task takes {size or 'some'}."
        )
    order = draw.rng("classes").permutation(source.num_classes)
    parts = np.array_split(order[: size * tasks or None], tasks)
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(part.tolist())))
        for number, part in enumerate(parts)
    ]


def _drawn(draw: ScenarioSpec, number: int, group: Group) -> list[tuple[int, ...]]:
    """Return which of a task's classes each client draws, ascending; all are drawn."""
    rng = draw.rng("class-share", number)
    count = max(1, round(draw.incremental.class_share * len(group.labels)))
    drawn = [
        set(rng.choice(group.labels, count, replace=False).tolist())
        for _ in range(draw.clients)
    ]
    left = [label for label in group.labels if not any(label in d for d in drawn)]
    order = rng.permutation(draw.clients)
    for place, label in enumerate(left):
        drawn[order[place % len(order)]].add(label)
    return [tuple(sorted(labels)) for labels in drawn]


def _train_parts(
    draw: ScenarioSpec, group: Group, drawn: list[tuple[int, ...]]
) -> list[Indices]:
    """Return each client's training samples of its classes."""
    shares: list[list[Indices]] = [[] for _ in drawn]
    for label in group.labels:
        sharers = [client for client, labels in enumerate(drawn) if label in labels]
        samples = _dealt(draw, group.source, label)[1]
        if len(samples) < len(sharers):
            raise ConfigError(
                f"clients: got {len(sharers)} clients that learn class "
                f"{group.source.class_names[label]!r} of {group.source.name}, expected "
                f"at most one for each of its {len(samples)} training samples."
            )
        rng = draw.rng(f"sharers/{group.source.name}", label)
        parts = split_stratified(np.zeros(len(samples), np.int64), len(sharers), rng)
        # Whoever comes first gets what is left over: not the same one each time.
        for client, part in zip(rng.permutation(sharers), parts, strict=True):
            shares[client].append(samples[part])
    return [np.sort(np.concatenate(share)) for share in shares]


def _dealt(draw: ScenarioSpec, source: Dataset, label: int) -> tuple[Indices, Indices]:
    """Return the training samples of a class that the server has, and the clients'."""
    samples = _training(draw, source, label)
    fraction = 0.0 if draw.public else draw.incremental.public_fraction
    count = max(1, round(fraction * len(samples))) if fraction else 0
    return samples[:count], samples[count:]


def _training(draw: ScenarioSpec, source: Dataset, label: int) -> Indices:
    """Return the training samples of a class that are used, in a shuffled order."""
    return _shuffled(draw, source, "train", label, draw.incremental.train_samples)


def _shuffled(
    draw: ScenarioSpec, source: Dataset, split: str, label: int, most: int
) -> Indices:
    y = source.train.y if split == "train" else source.test.y
    # By name, so that the samples are the same in whatever order data sets come.
    rng = draw.rng(f"{split}/{source.name}", label)
    return rng.permutation(np.flatnonzero(y == label))[: most or None]


def _test_parts(draw: ScenarioSpec, number: int, group: Group) -> list[Indices]:
    """Return each client's test samples, of all classes of the task."""
    most = draw.incremental.test_samples
    chosen = [_shuffled(draw, group.source, "test", n, most) for n in group.labels]
    samples = np.sort(np.concatenate(chosen))
    if len(samples) < draw.clients:
        raise ConfigError(
            f"clients: got {draw.clients}, expected at most {len(samples)}, since task "
            f"{group.name!r} has {len(samples)} test samples."
        )
    labels = group.source.test.y[samples]
    parts = split_in_turn(labels, draw.clients, draw.rng("test", number))
    return [samples[part] for part in parts]


def _public(source: Dataset, labels: Sequence[int], samples: Sequence[Indices]) -> Task:
    group = Group(f"{source.name}/public", source, tuple(labels))
    train = np.sort(np.concatenate(samples))
    return _task(group, group.labels, train, _NONE, _NONE, None)


def _task(
    group: Group,
    labels: tuple[int, ...],
    train: Indices,
    valid: Indices,
    test: Indices,
    number: int | None,
) -> Task:
    return Task(
        name=group.name,
        dataset=group.source.name,
        classes=labels,
        class_names=tuple(group.source.class_names[label] for label in labels),
        train=train,
        valid=valid,
        test=test,
        group=number,
    )
