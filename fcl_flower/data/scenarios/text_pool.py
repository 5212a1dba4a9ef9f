"""The tasks of FedSeIT: each draws its labels, and shares no document with another.

Chaudhary et al., Findings of EMNLP 2022, section 3. A pool of tasks is drawn once for
a data set; a run's seed says which client learns which of them, and when.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fcl_flower.core.errors import ConfigError, refuse
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices, split_stratified, train_valid_split
from fcl_flower.data.scenarios.class_groups import Group, only_source
from fcl_flower.data.scenarios.plan import Task, TaskStreams
from fcl_flower.data.scenarios.spec import ScenarioSpec

POOL_SEED = 42
"""The paper's seed of task generation (table 4): the pool is the same in all runs."""


def text_tasks(spec: ScenarioSpec) -> TaskStreams:
    """Return every client's tasks, in the order in which it learns them.

    The labels of a task are drawn without repetition among all labels. The training
    documents of a label that n tasks drew are cut into n disjoint parts of nearly
    equal size, of which ``valid_fraction`` is kept for validation. The test set of a
    task is every test document of its labels. With all labels of the data set, tasks
    differ in their documents only. The seed decides which client learns which task of
    the pool, and when.

    Raises:
        ConfigError: the data set has fewer labels, or a label too few documents.
    """
    source, clients, tasks = only_source(spec, "text"), spec.clients, spec.tasks
    if spec.classes_per_task > source.num_classes:
        raise refuse(
            "classes_per_task",
            spec.classes_per_task,
            f"at most the {source.num_classes} classes of {source.name}",
        )
    # Which documents are used is part of the pool.
    spec, seed = replace(spec, seed=POOL_SEED), spec.seed
    rng = np.random.default_rng(derive(POOL_SEED, "pool", clients * tasks))
    labels = [
        _labels(source, spec.classes_per_task, rng) for _ in range(clients * tasks)
    ]
    parts = _parts(spec, source, labels, rng)
    groups = {drawn: number for number, drawn in enumerate(dict.fromkeys(labels))}
    pool = [_task(spec, source, drawn, groups[drawn], parts, rng) for drawn in labels]
    order = np.random.default_rng(derive(seed, "scenario-order")).permutation(len(pool))
    return tuple(
        tuple(pool[number] for number in row) for row in order.reshape(clients, tasks)
    )


def _labels(source: Dataset, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Return ``count`` labels, ascending, with at least one test document."""
    while True:
        drawn = rng.choice(source.num_classes, size=count, replace=False)
        if np.isin(source.test.y, drawn).any():
            return tuple(sorted(drawn.tolist()))


def _parts(
    spec: ScenarioSpec,
    source: Dataset,
    labels: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
) -> dict[int, Iterator[Indices]]:
    """Return, for each label, the parts of its training documents: one a task."""
    parts: dict[int, Iterator[Indices]] = {}
    for label, count in sorted(Counter(n for drawn in labels for n in drawn).items()):
        members = spec.samples(source, "train", (label,))
        if len(members) < count:
            raise ConfigError(
                f"tasks: got {count} that drew label {source.class_names[label]!r} of "
                f"{source.name}, expected at most one for each of its {len(members)} "
                "training documents: take fewer clients, tasks or classes per task"
            )
        cut = split_stratified(np.zeros(len(members), np.int64), count, rng)
        parts[label] = iter([members[part] for part in cut])
    return parts


def _task(
    spec: ScenarioSpec,
    source: Dataset,
    labels: tuple[int, ...],
    number: int,
    parts: dict[int, Iterator[Indices]],
    rng: np.random.Generator,
) -> Task:
    mine = np.sort(np.concatenate([next(parts[label]) for label in labels]))
    train, valid = train_valid_split(source.train.y[mine], spec.valid_fraction, rng)
    names = "+".join(source.class_names[label] for label in labels)
    return Group(f"{source.name}/{names}", source, labels).task(
        train=mine[train],
        valid=mine[valid],
        test=spec.samples(source, "test", labels),
        number=number,
    )
