"""The scenario of hidden concepts: data sets cut into concepts and clients' chunks."""

from collections.abc import Sequence
from typing import TypeAlias, get_args

import numpy as np
from pydantic import Field

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.partition import Indices, split_in_turn, train_valid_split
from fcl_flower.data.scenarios.groups import Group
from fcl_flower.data.scenarios.plan import SampleSplit, ScenarioSpec, Task, TaskStreams

FEWEST = {"train": 2, "test": 1}
"""The least number of samples that a client needs of a concept, by split.

One of the two training samples is held out for validation.
"""


class ConceptsParams(Params):
    """The settings of the scenario ``concepts``."""

    window: int = Field(320, ge=2)
    """Training samples that a client has in a round."""
    mean_duration: int = Field(1, ge=0)
    """Rounds that a client keeps a concept, on average; 0 for all concepts at once."""
    reveal_ids: bool = False
    """Tell clients the id of their concept, for baselines with task ids."""
    merge_labels: str = ""
    """Data sets whose classes of one name are one class, such as 'a=b=c,d=e'. Their
    concepts differ in the look of a class, or in its name."""


Spec: TypeAlias = ScenarioSpec[ConceptsParams]


def concept_tasks(spec: Spec) -> TaskStreams:
    """Give every client a chunk of every concept.

    Both training and test samples are cut, class by class, into disjoint parts of
    nearly equal size. So the clients' mean test accuracy is that of the whole test set.
    """
    groups = concept_groups(spec.sources, spec.tasks, spec.seed)
    by_concept = [_chunks(spec, group, number) for number, group in enumerate(groups)]
    return tuple(zip(*by_concept, strict=True))


def concept_groups(sources: Sequence[Dataset], concepts: int, seed: int) -> list[Group]:
    """Draw the classes of each concept.

    Each data set is a concept. Each further concept goes to the data set with the most
    classes for each of its concepts. The classes of such a data set are dealt to its
    concepts at random, in nearly equal numbers.
    """
    if concepts < len(sources):
        expected = f"at least one concept for each of the {len(sources)} data sets"
        raise config_error("tasks", concepts, expected)
    parts = [1] * len(sources)
    for _ in range(concepts - len(sources)):
        shares = [s.num_classes / n for s, n in zip(sources, parts, strict=True)]
        parts[int(np.argmax(shares))] += 1
    groups = []
    for number, (source, count) in enumerate(zip(sources, parts, strict=True)):
        if source.num_classes < count:
            total = sum(source.num_classes for source in sources)
            expected = f"at most one concept for each of the {total} classes"
            raise config_error("tasks", concepts, expected)
        labels = np.arange(source.num_classes)
        if count > 1:
            rng = np.random.default_rng(derive(seed, "concept-classes", number))
            labels = rng.permutation(labels)
        for index, share in enumerate(np.array_split(labels, count)):
            name = source.name if count == 1 else f"{source.name}/{index}"
            groups.append(Group(name, source, tuple(sorted(share.tolist()))))
    return groups


def _chunks(spec: Spec, group: Group, number: int) -> list[Task]:
    parts = [_parts(spec, group, number, split) for split in get_args(SampleSplit)]
    tasks = []
    for client, (train, test) in enumerate(zip(*parts, strict=True)):
        rng = np.random.default_rng(derive(spec.seed, "concept-valid", client, number))
        # The split ignores classes, since a chunk may have one sample of a class.
        one_class = np.zeros_like(train)
        rest, held_out = train_valid_split(one_class, spec.valid_fraction, rng)
        valid = train[held_out]
        task = group.task(train=train[rest], valid=valid, test=test, number=number)
        tasks.append(task)
    return tasks


def _parts(spec: Spec, group: Group, number: int, split: SampleSplit) -> list[Indices]:
    members = spec.samples(group.source, split, group.labels)
    limit = len(members) // FEWEST[split]
    if spec.clients > limit:
        raise config_error(
            "clients",
            spec.clients,
            f"at most {limit}, since concept {group.name!r} has {len(members)} {split} "
            "samples",
        )
    y = group.source.split(split).y[members]
    rng = np.random.default_rng(derive(spec.seed, f"concept-{split}", number))
    return [members[part] for part in split_in_turn(y, spec.clients, rng)]
