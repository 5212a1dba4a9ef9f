"""Class groups as tasks: how classes are grouped, who learns which, from what.

The scenarios ``overlapped``, ``classes`` and ``mixed``: a task is a group of classes of
one data set, and the samples of a group are shared out among the clients that learn it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices, split_stratified, train_valid_split
from fcl_flower.data.scenarios.plan import Task, TaskStreams
from fcl_flower.data.scenarios.spec import ScenarioSpec

CIFAR100_SUPERCLASSES: dict[str, tuple[str, ...]] = {
    name: tuple(classes.split())
    for name, classes in {
        "aquatic_mammals": "beaver dolphin otter seal whale",
        "fish": "aquarium_fish flatfish ray shark trout",
        "flowers": "orchid poppy rose sunflower tulip",
        "food_containers": "bottle bowl can cup plate",
        "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
        "household_electrical_devices": "clock keyboard lamp telephone television",
        "household_furniture": "bed chair couch table wardrobe",
        "insects": "bee beetle butterfly caterpillar cockroach",
        "large_carnivores": "bear leopard lion tiger wolf",
        "large_man-made_outdoor_things": "bridge castle house road skyscraper",
        "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
        "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
        "medium_mammals": "fox porcupine possum raccoon skunk",
        "non-insect_invertebrates": "crab lobster snail spider worm",
        "people": "baby boy girl man woman",
        "reptiles": "crocodile dinosaur lizard snake turtle",
        "small_mammals": "hamster mouse rabbit shrew squirrel",
        "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
        "vehicles_1": "bicycle bus motorcycle pickup_truck train",
        "vehicles_2": "lawn_mower rocket streetcar tank tractor",
    }.items()
}
"""The 20 superclasses of CIFAR-100 (Krizhevsky, 2009) by fine class name."""


class Group(NamedTuple):
    """Classes of one data set that are learnt together.

    Attributes:
        name: data set and group, such as ``cifar100/fish``.
        source: the data set.
        labels: label ids, ascending.
    """

    name: str
    source: Dataset
    labels: tuple[int, ...]


def drawn_groups(source: Dataset, size: int, rng: np.random.Generator) -> list[Group]:
    """Return disjoint groups of ``size`` classes; a remainder is left out."""
    order = rng.permutation(source.num_classes).tolist()
    starts = range(0, len(order) - size + 1, size)
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(order[at : at + size])))
        for number, at in enumerate(starts)
    ]


def superclass_groups(source: Dataset) -> list[Group]:
    """Return CIFAR-100's 20 official groups of 5; none for another data set.

    The set counts as CIFAR-100 when its class names are the official ones, or when
    it is called ``cifar100`` and has 100 classes; then the labels are taken to be
    in the official, alphabetical order.
    """
    official = sorted(
        name for classes in CIFAR100_SUPERCLASSES.values() for name in classes
    )
    if sorted(source.class_names) == official:
        label = {name: i for i, name in enumerate(source.class_names)}
    elif source.name == "cifar100" and source.num_classes == len(official):
        label = {name: i for i, name in enumerate(official)}
    else:
        return []
    return [
        Group(
            f"{source.name}/{name}",
            source,
            tuple(sorted(label[fine] for fine in classes)),
        )
        for name, classes in CIFAR100_SUPERCLASSES.items()
    ]


def overlapped(draw: ScenarioSpec) -> TaskStreams:
    """Give every client its own random choice of groups, in its own order."""
    groups = _groups_of_one(draw, "overlapped")
    streams = [
        draw.rng("order", client).permutation(len(groups))[: draw.tasks].tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def classes(draw: ScenarioSpec) -> TaskStreams:
    """Give every client the same groups, in its own order."""
    groups = _groups_of_one(draw, "classes")
    chosen = draw.rng("choice").permutation(len(groups))[: draw.tasks]
    streams = [
        draw.rng("order", client).permutation(chosen).tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def mixed(draw: ScenarioSpec) -> TaskStreams:
    """Deal the groups of all data sets so that no two clients share one."""
    groups = []
    for number, source in enumerate(draw.sources):
        rng = draw.rng("groups", number)
        drawn = drawn_groups(source, draw.classes_per_task, rng)
        if not drawn:
            raise ConfigError(
                f"classes_per_task: got {draw.classes_per_task}, expected at most the "
                f"{source.num_classes} classes of {source.name}."
            )
        groups += drawn
    wanted = draw.clients * draw.tasks
    if wanted > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks} for each of {draw.clients} clients, expected at "
            f"most {len(groups)} in all, which is what {len(draw.sources)} data sets "
            f"give at {draw.classes_per_task} classes a task."
        )
    order = draw.rng("order").permutation(len(groups))[:wanted]
    return _shared(draw, groups, order.reshape(draw.clients, draw.tasks).tolist())


def _shared(
    draw: ScenarioSpec, groups: Sequence[Group], streams: Sequence[Sequence[int]]
) -> TaskStreams:
    return share_samples(groups, streams, draw.valid_fraction, draw.seed)


def only_source(sources: Sequence[Dataset], scenario: str) -> Dataset:
    """Return the data set of a scenario that takes one.

    Raises:
        ConfigError: there are several.
    """
    if len(sources) > 1:
        names = [source.name for source in sources]
        raise ConfigError(
            f"datasets: got {names}, expected one data set for scenario {scenario}."
        )
    return sources[0]


def _groups_of_one(draw: ScenarioSpec, scenario: str) -> list[Group]:
    """Return the groups of the only data set, at least as many as tasks."""
    source = only_source(draw.sources, scenario)
    groups = superclass_groups(source) if draw.classes_per_task == 5 else []
    groups = groups or drawn_groups(source, draw.classes_per_task, draw.rng("groups"))
    if draw.tasks > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks}, expected at most the {len(groups)} groups of "
            f"{draw.classes_per_task} classes that {source.name} gives."
        )
    return groups


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
    return [members[part] for part in split_stratified(y[members], count, rng)]


def _task(
    group: Group,
    number: int,
    part: Indices,
    valid_fraction: float,
    rng: np.random.Generator,
) -> Task:
    source = group.source
    train, valid = train_valid_split(source.train.y[part], valid_fraction, rng)
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
