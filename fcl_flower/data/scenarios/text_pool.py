"""The tasks of FedSeIT: each draws its labels, and shares no document with another.

Chaudhary et al., Findings of EMNLP 2022, section 3. A pool of tasks is drawn once for
a data set; a run's seed says which client meets which of them, and when.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices, split_stratified, train_valid_split
from fcl_flower.data.scenarios.plan import Task

POOL_SEED = 42
"""The paper's seed of task generation (table 4): the pool is the same in all runs."""


def draw_tasks(
    source: Dataset,
    *,
    clients: int,
    tasks: int,
    classes_per_task: int,
    valid_fraction: float,
    seed: int,
) -> tuple[tuple[Task, ...], ...]:
    """Return every client's tasks, in the order in which it learns them.

    The labels of a task are drawn without repetition among all labels. The training
    documents of a label that n tasks drew are cut into n disjoint parts of nearly
    equal size, of which ``valid_fraction`` is kept for validation. The test set of a
    task is every test document of its labels.

    Args:
        source: images or documents.
        clients: at least 1.
        tasks: per client, at least 1.
        classes_per_task: labels in a task; with all labels of the source, tasks
            differ in their documents only.
        valid_fraction: in (0, 1).
        seed: the run's seed: which client meets which task of the pool, and when.

    Raises:
        ConfigError: the source has fewer labels, or a label too few documents.
    """
    if classes_per_task > source.num_classes:
        raise ConfigError(
            f"classes_per_task: got {classes_per_task}, expected at most the "
            f"{source.num_classes} classes of {source.name}."
        )
    rng = np.random.default_rng(derive(POOL_SEED, "pool", clients * tasks))
    labels = [_labels(source, classes_per_task, rng) for _ in range(clients * tasks)]
    parts = _parts(source, labels, rng)
    groups = {drawn: number for number, drawn in enumerate(dict.fromkeys(labels))}
    pool = [
        _task(source, drawn, groups[drawn], parts, valid_fraction, rng)
        for drawn in labels
    ]
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
    source: Dataset, labels: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> dict[int, Iterator[Indices]]:
    """Return, for each label, the parts of its training documents: one a task."""
    parts: dict[int, Iterator[Indices]] = {}
    for label, count in sorted(Counter(n for drawn in labels for n in drawn).items()):
        members = np.flatnonzero(source.train.y == label)
        if len(members) < count:
            raise ConfigError(
                f"tasks: {count} tasks drew label {source.class_names[label]!r} of "
                f"{source.name}, expected at most one for each of its {len(members)} "
                "training documents: take fewer clients, tasks or classes per task."
            )
        cut = split_stratified(np.zeros(len(members), np.int64), count, rng)
        parts[label] = iter([members[part] for part in cut])
    return parts


def _task(
    source: Dataset,
    labels: tuple[int, ...],
    group: int,
    parts: dict[int, Iterator[Indices]],
    valid_fraction: float,
    rng: np.random.Generator,
) -> Task:
    mine = np.sort(np.concatenate([next(parts[label]) for label in labels]))
    train, valid = train_valid_split(source.train.y[mine], valid_fraction, rng)
    names = tuple(source.class_names[label] for label in labels)
    return Task(
        name=f"{source.name}/{'+'.join(names)}",
        dataset=source.name,
        classes=labels,
        class_names=names,
        train=mine[train],
        valid=mine[valid],
        test=np.flatnonzero(np.isin(source.test.y, labels)),
        group=group,
    )
