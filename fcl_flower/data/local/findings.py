"""Findings in clients' local data that are suspicious, though a run accepts them."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fcl_flower.config.run_config import LookAlikes
from fcl_flower.core.errors import CANDIDATES
from fcl_flower.data.arrays import ImageDataset, TabularDataset
from fcl_flower.data.labels import look_alikes, spelled_apart
from fcl_flower.data.local.client import LocalTask

IMBALANCE = 10
"""The least ratio of two classes' training samples that is a finding."""
FEWEST = 20
"""The least number of rows for which a column that separates classes is no chance."""
DARK = 0.1
"""The brightest pixel of a task's images below which it is a finding; white is 1."""

Clients: TypeAlias = Mapping[str, Sequence[LocalTask]]


def class_counts(task: LocalTask) -> dict[str, int]:
    """Count a task's training and validation samples of each class."""
    y = np.concatenate([task.data.train.y, task.valid.y])
    counts = np.bincount(y, minlength=task.data.num_classes).tolist()
    by_name = dict(zip(task.data.class_names, counts, strict=True))
    return {name: by_name[name] for name in task.classes}


def findings(clients: Clients, rule: LookAlikes) -> Iterator[str]:
    """Yield a sentence for each flaw that a user may want to mend before a run.

    Args:
        clients: loaded tasks by the client's name.
        rule: what the run does with class names that look alike; with ``refuse`` they
            are findings.
    """
    if rule == "refuse":
        yield from _look_alikes(clients)
    for client, tasks in clients.items():
        for task in tasks:
            for finding in _of_task(task):
                yield f"{client}, {task.data.name}: {finding}"


def _look_alikes(clients: Clients) -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for client, tasks in clients.items():
        for task in tasks:
            for name in task.classes:
                places[name].append(f"{client}, {task.data.name}")
    for group in look_alikes(places):
        spelled = zip(group, spelled_apart(group), strict=True)
        names = " and ".join(f"{text} ({places[name][0]})" for name, text in spelled)
        yield (
            f"classes look alike, {names}: write them alike; or --set data.labels=merge"
            " takes them as one, keep as different ones"
        )


def _of_task(task: LocalTask) -> Iterator[str]:
    counts = class_counts(task)
    ordered = sorted(counts, key=counts.__getitem__)
    smallest, largest = ordered[0], ordered[-1]
    if counts[largest] >= IMBALANCE * counts[smallest]:
        yield (
            f"class {largest!r} has {counts[largest]:,} training samples, {smallest!r} "
            f"{counts[smallest]:,}: accuracy says little of a rare class"
        )
    yield from _duplicates(task)
    yield from _contradictions(task)
    if isinstance(task.data, TabularDataset):
        yield from _columns(task)
    if isinstance(task.data, ImageDataset) and task.data.train.x.dtype != np.uint8:
        brightest = float(task.data.train.x.max())
        if brightest < DARK:
            yield (
                f"the brightest pixel is {brightest:.1%} of white, as with 12 bits in "
                "16: scale the images alike at all clients"
            )


def _duplicates(task: LocalTask) -> Iterator[str]:
    learned = {_key(x) for split in (task.data.train, task.valid) for x in split.x}
    same = sum(_key(x) in learned for x in task.data.test.x)
    if same:
        yield (
            f"{same:,} of {len(task.data.test.y):,} test samples are also training "
            "samples: accuracy is too high, since the model may remember them"
        )


def _contradictions(task: LocalTask) -> Iterator[str]:
    parts = (task.data.train, task.valid, task.data.test)
    labels: dict[int, set[int]] = defaultdict(set)
    for part in parts:
        for x, y in zip(part.x, part.y.tolist(), strict=True):
            labels[_key(x)].add(y)
    if odd := [names for names in labels.values() if len(names) > 1]:
        names = " and ".join(repr(task.data.class_names[y]) for y in sorted(odd[0])[:2])
        yield (
            f"{len(odd):,} samples are there with several labels, such as {names}: no "
            "model can tell these apart"
        )


def _key(sample: str | npt.NDArray[np.generic]) -> int:
    return hash(sample if isinstance(sample, str) else sample.tobytes())


_SAME = "the same number everywhere: leave it out"


def _columns(task: LocalTask) -> Iterator[str]:
    parts = (task.data.train, task.valid, task.data.test)
    x = np.concatenate([part.x for part in parts])
    y = np.concatenate([part.y for part in parts])
    names = task.columns or tuple(str(n) for n in range(1, x.shape[1] + 1))
    columns_by_flaw = defaultdict[str, list[str]](list)
    for name, values in zip(names, x.T, strict=True):
        if (values == values[0]).all():
            flaw = _SAME
        elif (np.diff(np.sort(values)) == 1).all():
            flaw = "the number of the sample: leave it out"
        elif len(y) >= FEWEST and _separates(values, y):
            flaw = "all that tells the classes apart: leave it out if it comes of them"
        else:
            continue
        columns_by_flaw[flaw].append(name)
    equal = defaultdict[bytes, list[str]](list)
    for name, values in zip(names, x.T, strict=True):
        equal[values.tobytes()].append(name)
    for same in equal.values():
        if len(same) > 1 and not {*same} & {*columns_by_flaw.get(_SAME, ())}:
            listed = " and ".join(map(repr, same[:CANDIDATES]))
            yield f"columns {listed} are equal: leave all but one out"
    for flaw, columns in columns_by_flaw.items():
        others = len(columns) - CANDIDATES
        more = f" (and {others} others)" if others > 0 else ""
        yield f"column {', '.join(map(repr, columns[:CANDIDATES]))}{more} is {flaw}"


def _separates(values: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> bool:
    """Tell whether the classes' ranges of values do not overlap."""
    ranges = sorted((values[y == c].min(), values[y == c].max()) for c in set(y))
    ordered = (before[1] < after[0] for before, after in pairwise(ranges))
    return len(ranges) > 1 and all(ordered)
