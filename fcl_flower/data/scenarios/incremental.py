"""Class-incremental streams: all clients meet new classes in the same order.

The rule ``classes`` is the protocol of FedET (Liu et al., IJCAI 2023, section 4): every
client learns a random share of the classes of each task, and is tested on all of them.
Other rules are the protocol of TARGET and LANDER: the samples of all of a task's
classes are dealt to all clients, see `fcl_flower.data.scenarios.groups`.
"""

from collections.abc import Sequence
from typing import Annotated, Self, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field, model_validator

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

_SEED = "seed:"
_SEEDS = 2**32


def _known_order(value: str) -> str:
    if value.startswith(_SEED):
        number = value.removeprefix(_SEED)
        if number.isdecimal() and int(number) < _SEEDS:
            return value
    elif not value or all(part.strip().isdecimal() for part in value.split(",")):
        return value
    raise ValueError(
        "label numbers separated by commas, or 'seed:N' with N from 0 to 2^32 - 1"
    )


class ClassIncrementalParams(Params):
    """The settings of the scenario ``class-incremental``."""

    split: SplitRule = BY_CLASS
    """Rule by which clients share a task: classes (each client draws some), iid (all
    samples evenly), or dirichlet:BETA (all samples, skewed by class, such as
    dirichlet:0.5)."""
    class_fraction: float = Field(0.6, gt=0, le=1)
    """Share of each task's classes that a client learns if it draws classes."""
    class_order: Annotated[str, AfterValidator(_known_order)] = ""
    """Order in which the classes of one data set are learned: label numbers from 0,
    separated by commas; or seed:N for numpy.random.RandomState(N).permutation, as in
    papers' code (seed:1993); empty for an order drawn by run.seed."""
    first_task_classes: int = Field(0, ge=0)
    """Classes of the first task, such as 50 (B50). Later tasks share out the others, or
    have classes_per_task each. With 0 the first task has as many as the others."""
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
    """Draw every client's tasks, which all clients learn in the same order.

    With the rule ``classes`` a client draws its share of each task's classes. The
    clients that drew a class share out its training samples in disjoint parts of nearly
    equal size. With other rules a task's training samples are dealt to all clients, and
    a client learns the classes of its samples. The test samples of all of a task's
    classes are dealt to all clients, class by class. So the clients together test every
    sample once.
    """
    groups = task_groups(spec)
    train = [_train_parts(spec, number, group) for number, group in enumerate(groups)]
    test = [deal_tests(spec, number, group) for number, group in enumerate(groups)]
    dealt = [list(zip(*parts, strict=True)) for parts in zip(train, test, strict=True)]
    return class_streams(spec, groups, dealt, numbered_by_task=False)


def public_tasks(spec: Spec) -> tuple[Task, ...]:
    """Draw the server's own training samples, as a task for each data set."""
    if (source := spec.public) is not None:
        labels = range(source.num_classes)
        return (_public(source, labels, [spec.samples(source, "train", labels)]),)
    if not spec.public_fraction:
        return ()
    labels_of: dict[Dataset, list[int]] = {}
    for group in task_groups(spec):
        labels_of.setdefault(group.source, []).extend(group.labels)
    return tuple(
        _public(source, sorted(labels), [_dealt(spec, source, n)[0] for n in labels])
        for source, labels in labels_of.items()
    )


def task_groups(spec: Spec) -> list[Group]:
    """Draw the classes of each task: parts of one data set, or a data set a task."""
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
        for key in ("class_order", "first_task_classes"):
            if value := getattr(spec.params, key):
                expected = (
                    f"none with {len(sources)} data sets, each of which is a task"
                )
                raise config_error(f"scenario.{key}", value, expected)
        return [
            Group(source.name, source, tuple(range(source.num_classes)))
            for source in sources
        ]
    source = sources[0]
    order, first = _class_order(spec, source), spec.params.first_task_classes
    if first > len(order):
        expected = f"at most the {len(order)} classes of {source.name}"
        raise config_error("scenario.first_task_classes", first, expected)
    most = (len(order) - first) // (size or 1) + (first > 0)
    if tasks > most:
        each = f"the first task takes {first} and each later one" if first else ""
        raise config_error(
            "tasks",
            tasks,
            f"at most {most}, since {source.name} has {source.num_classes} classes, of "
            f"which {each or 'each task takes'} {size or 'some'}",
        )
    later = tasks - (first > 0)
    rest = order[first:][: size * later or None]
    parts = [order[:first]] * (first > 0)
    parts += np.array_split(rest, later) if later else []
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(part.tolist())))
        for number, part in enumerate(parts)
    ]


def _class_order(spec: Spec, source: Dataset) -> Indices:
    """Order the classes of a data set by the setting, or by the run's seed.

    The code of iCaRL and its successors draws with NumPy's legacy generator, whose
    numbers are the same in all versions (NEP 19).
    """
    setting, count = spec.params.class_order, source.num_classes
    if not setting:
        return spec.rng("classes").permutation(count)
    if setting.startswith(_SEED):
        legacy = np.random.RandomState(int(setting.removeprefix(_SEED)))
        return legacy.permutation(count)
    order = [int(part) for part in setting.split(",")]
    if sorted(order) != [*range(count)]:
        expected = (
            f"each of the {count} classes of {source.name} once, 0 to {count - 1}"
        )
        raise config_error("scenario.class_order", setting, expected)
    return np.array(order, np.int64)


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
        members = _dealt(spec, group.source, label)[1]
        check_sharers(1, group.source, label, len(members))
        samples.append(members)
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
        # The first parts get the remainder, so the clients are permuted.
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
