"""Class-incremental streams: clients meet new classes together, each some of them.

The protocol of FedET (Liu et al., IJCAI 2023, section 4): every client knows a random
share of the classes of each task, and is tested on all of them. Or that of TARGET and
LANDER: the samples of all of a task's classes are dealt to all clients, see
`fcl_flower.data.scenarios.groups`.
"""

from collections.abc import Sequence
from typing import Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.partition import (
    Indices,
    split_stratified,
)
from fcl_flower.data.scenarios.groups import (
    BY_CLASS,
    Group,
    SplitRule,
    check_sharers,
    class_streams,
    deal_samples,
    deal_tests,
)
from fcl_flower.data.scenarios.plan import ScenarioSpec, Task, TaskStreams


class ClassIncrementalParams(Params):
    """Settings of the scenario ``class-incremental``."""

    split: SplitRule = BY_CLASS
    """How a task is shared out: classes (each client draws some), iid (all samples
    evenly), or dirichlet:BETA (all samples, skewed by class, such as dirichlet:0.5)."""
    class_fraction: float = Field(0.6, gt=0, le=1)
    """Share of each task's classes that a client learns, where classes are drawn."""
    merge_labels: str = ""
    """Data sets whose classes of one name are one class, such as 'a=b=c,d=e'."""

    @model_validator(mode="after")
    def _class_fraction_is_used(self) -> Self:
        usual = type(self).model_fields["class_fraction"].default
        if self.split != BY_CLASS and self.class_fraction != usual:
            raise ValueError(
                f"scenario.class_fraction: got {self.class_fraction}, expected none "
                f"with scenario.split {self.split!r}, by which no classes are drawn"
            )
        return self


Spec: TypeAlias = ScenarioSpec[ClassIncrementalParams]


def class_incremental_tasks(spec: Spec) -> TaskStreams:
    """Draw every client's tasks, in the one order in which all learn them.

    Where classes are drawn, a client draws its share of each task's classes, and the
    training samples of a class are cut into disjoint parts of nearly equal size among
    those that drew it; otherwise the task's training samples are dealt to all clients,
    and each learns the classes that it has samples of. The test samples of all of the
    task's classes are dealt to all clients, class by class, so that the clients
    together test every sample once.
    """
    groups = task_groups(spec)
    train = [_train_parts(spec, number, group) for number, group in enumerate(groups)]
    test = [deal_tests(spec, number, group) for number, group in enumerate(groups)]
    dealt = [list(zip(*parts, strict=True)) for parts in zip(train, test, strict=True)]
    return class_streams(spec, groups, dealt, numbered_by_task=False)


def public_tasks(spec: Spec) -> tuple[Task, ...]:
    """Draw the server's own training samples: a task for each of their data sets."""
    if (source := spec.public) is not None:
        labels = range(source.num_classes)
        return (_public(source, labels, [spec.samples(source, "train", labels)]),)
    if not spec.public_fraction:
        return ()
    found: dict[Dataset, list[int]] = {}
    for group in task_groups(spec):
        found.setdefault(group.source, []).extend(group.labels)
    return tuple(
        _public(source, sorted(labels), [_dealt(spec, source, n)[0] for n in labels])
        for source, labels in found.items()
    )


def task_groups(spec: Spec) -> list[Group]:
    """Draw the classes of each task: of one data set in parts, or a data set each."""
    sources, tasks, size = spec.sources, spec.tasks, spec.classes_per_task
    if len(sources) > 1:
        if tasks != len(sources):
            names = ", ".join(source.name for source in sources)
            expected = f"{len(sources)}, since each of the data sets {names} is a task"
            raise config_error("tasks", tasks, expected)
        if size:
            expected = (
                f"none, since each of {len(sources)} data sets is a task with all its "
                "classes"
            )
            raise config_error("classes_per_task", size, expected)
        return [
            Group(source.name, source, tuple(range(source.num_classes)))
            for source in sources
        ]
    source = sources[0]
    most = source.num_classes // (size or 1)
    if tasks > most:
        raise config_error(
            "tasks",
            tasks,
            f"at most {most}, since {source.name} has {source.num_classes} classes, of "
            f"which each task takes {size or 'some'}",
        )
    order = spec.rng("classes").permutation(source.num_classes)
    parts = np.array_split(order[: size * tasks or None], tasks)
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(part.tolist())))
        for number, part in enumerate(parts)
    ]


def _drawn(spec: Spec, number: int, group: Group) -> list[tuple[int, ...]]:
    rng = spec.rng("class-share", number)
    count = max(1, round(spec.params.class_fraction * len(group.labels)))
    drawn = [
        set(rng.choice(group.labels, count, replace=False).tolist())
        for _ in range(spec.clients)
    ]
    left = [label for label in group.labels if not any(label in d for d in drawn)]
    order = rng.permutation(spec.clients)
    for index, label in enumerate(left):
        drawn[order[index % len(order)]].add(label)
    return [tuple(sorted(labels)) for labels in drawn]


def _train_parts(spec: Spec, number: int, group: Group) -> list[Indices]:
    if spec.params.split == BY_CLASS:
        return _parts_of_drawn(spec, group, _drawn(spec, number, group))
    samples = []
    for label in group.labels:
        found = _dealt(spec, group.source, label)[1]
        check_sharers(1, group.source, label, len(found))
        samples.append(found)
    whole = np.sort(np.concatenate(samples))
    return deal_samples(spec, spec.params.split, number, group, whole)


def _parts_of_drawn(
    spec: Spec, group: Group, drawn: list[tuple[int, ...]]
) -> list[Indices]:
    shares: list[list[Indices]] = [[] for _ in drawn]
    for label in group.labels:
        sharers = [client for client, labels in enumerate(drawn) if label in labels]
        samples = _dealt(spec, group.source, label)[1]
        check_sharers(len(sharers), group.source, label, len(samples))
        rng = spec.rng(f"sharers/{group.source.name}", label)
        parts = split_stratified(np.zeros(len(samples), np.int64), len(sharers), rng)
        # The first one gets what is left over: not the same client each time.
        for client, part in zip(rng.permutation(sharers), parts, strict=True):
            shares[client].append(samples[part])
    return [np.sort(np.concatenate(share)) for share in shares]


def _dealt(spec: Spec, source: Dataset, label: int) -> tuple[Indices, Indices]:
    samples = spec.shuffled_class(source, "train", label)
    fraction = 0.0 if spec.public else spec.public_fraction
    count = max(1, round(fraction * len(samples))) if fraction else 0
    return samples[:count], samples[count:]


def _public(source: Dataset, labels: Sequence[int], samples: Sequence[Indices]) -> Task:
    group = Group(f"{source.name}/public", source, tuple(labels))
    train, none = np.sort(np.concatenate(samples)), np.empty(0, np.int64)
    return group.task(train=train, valid=none, test=none, number=None)
