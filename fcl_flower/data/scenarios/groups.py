"""Tasks of class groups: scenarios ``overlapped``, ``classes``, ``mixed``, ``text``.

A task is a group of classes of one data set. The clients that learn a group share out
its samples. The scenario ``text`` has the tasks of FedSeIT (Chaudhary et al., Findings
of EMNLP 2022, section 3): each task draws its labels, and shares no document with
another task. A pool of such tasks is drawn once for a data set. A run's seed says which
client learns which task of the pool, and when.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.partition import (
    Indices,
    split_dirichlet,
    split_in_turn,
    split_stratified,
    train_valid_split,
)
from fcl_flower.data.scenarios.plan import ScenarioSpec, Task, TaskStreams

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
"""The 20 superclasses of CIFAR-100 (Krizhevsky, 2009) with their fine classes."""


class Group(NamedTuple):
    """A group of classes of a data set that make a task, such as ``cifar100/fish``."""

    name: str
    source: Dataset
    labels: tuple[int, ...]

    def task(
        self,
        *,
        train: Indices,
        valid: Indices,
        test: Indices,
        number: int | None,
        labels: tuple[int, ...] | None = None,
    ) -> Task:
        """Make a task of the group, or of the ``labels`` of it.

        ``number`` is the same for tasks that learn the same classes.
        """
        labels = self.labels if labels is None else labels
        names = tuple(self.source.class_names[label] for label in labels)
        return Task(
            self.name, self.source.name, labels, names, train, valid, test, number
        )

    def held_out_task(
        self,
        part: Indices,
        test: Indices,
        number: int,
        fraction: float,
        rng: np.random.Generator,
    ) -> Task:
        """Make a task of a part of the training samples and the part's classes.

        A ``fraction`` of the part is held out for validation.
        """
        y = self.source.train.y[part]
        rest, held_out = train_valid_split(y, fraction, rng)
        return self.task(
            train=part[rest],
            valid=part[held_out],
            test=test,
            number=number,
            labels=tuple(np.unique(y).tolist()),
        )


def drawn_groups(source: Dataset, size: int, rng: np.random.Generator) -> list[Group]:
    """Draw disjoint groups of ``size`` classes; a remainder is left out."""
    order = rng.permutation(source.num_classes).tolist()
    starts = range(0, len(order) - size + 1, size)
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(order[at : at + size])))
        for number, at in enumerate(starts)
    ]


def superclass_groups(source: Dataset) -> list[Group]:
    """Return CIFAR-100's 20 official groups of 5 classes; empty for other data sets.

    A data set is CIFAR-100 if it has the official class names, or is called
    ``cifar100`` and has 100 classes. In the second case its labels are taken to be in
    the official, alphabetical order.
    """
    official = sorted(name for five in CIFAR100_SUPERCLASSES.values() for name in five)
    names = source.class_names
    if source.name == "cifar100" and len(names) == 100 and set(names) != {*official}:
        names = tuple(official)
    if sorted(names) != official:
        return []
    return [
        Group(f"{source.name}/{name}", source, tuple(sorted(map(names.index, five))))
        for name, five in CIFAR100_SUPERCLASSES.items()
    ]


def overlapped(spec: ScenarioSpec) -> TaskStreams:
    """Give every client its own random choice of groups, in its own order."""
    groups = _groups_of_one(spec, "overlapped")
    streams = [
        spec.rng("order", client).permutation(len(groups))[: spec.tasks].tolist()
        for client in range(spec.clients)
    ]
    return share_samples(spec, groups, streams)


def classes(spec: ScenarioSpec) -> TaskStreams:
    """Give every client the same groups, in its own order."""
    groups = _groups_of_one(spec, "classes")
    chosen = spec.rng("choice").permutation(len(groups))[: spec.tasks]
    streams = [
        spec.rng("order", client).permutation(chosen).tolist()
        for client in range(spec.clients)
    ]
    return share_samples(spec, groups, streams)


def mixed(spec: ScenarioSpec) -> TaskStreams:
    """Deal the groups of all data sets so that no two clients share one."""
    size, groups = spec.classes_per_task, []
    for number, source in enumerate(spec.sources):
        drawn = drawn_groups(source, size, spec.rng("groups", number))
        if not drawn:
            expected = f"at most the {source.num_classes} classes of {source.name}"
            raise config_error("classes_per_task", size, expected)
        groups += drawn
    tasks_of_all = spec.clients * spec.tasks
    if tasks_of_all > len(groups):
        raise ConfigError(
            f"tasks: got {spec.tasks} for each of {spec.clients} clients, expected at "
            f"most {len(groups)} in all, which is what {len(spec.sources)} data sets "
            f"give at {size} classes a task"
        )
    order = spec.rng("order").permutation(len(groups))[:tasks_of_all]
    streams = order.reshape(spec.clients, spec.tasks).tolist()
    return share_samples(spec, groups, streams)


def only_source(spec: ScenarioSpec, scenario: str) -> Dataset:
    """Return the only data set of a scenario; refuse several."""
    if len(spec.sources) > 1:
        names = [source.name for source in spec.sources]
        raise config_error("datasets", names, f"one data set for scenario {scenario}")
    return spec.sources[0]


def _groups_of_one(spec: ScenarioSpec, scenario: str) -> list[Group]:
    source, size = only_source(spec, scenario), spec.classes_per_task
    groups = superclass_groups(source) if size == 5 else []
    groups = groups or drawn_groups(source, size, spec.rng("groups"))
    if spec.tasks > len(groups):
        raise config_error(
            "tasks",
            spec.tasks,
            f"at most the {len(groups)} groups of {size} classes of {source.name}",
        )
    return groups


EVENLY = "iid"


def share_samples(
    spec: ScenarioSpec,
    groups: Sequence[Group],
    streams: Sequence[Sequence[int]],
    rule: str = EVENLY,
) -> TaskStreams:
    """Deal the training samples of each group to the clients that learn it.

    A group is cut, class by class, into disjoint parts: nearly equal ones, or skewed
    ones by the rule ``dirichlet:BETA``. ``streams`` holds the indices of each client's
    groups, each at most once.
    """
    parts = {
        number: iter(_parts(spec, groups[number], number, count, rule))
        for number, count in Counter(chain.from_iterable(streams)).items()
    }

    def task(client: int, number: int) -> Task:
        group = groups[number]
        test = spec.samples(group.source, "test", group.labels)
        rng = np.random.default_rng(derive(spec.seed, "samples-valid", client, number))
        part = next(parts[number])
        return group.held_out_task(part, test, number, spec.valid_fraction, rng)

    return tuple(
        tuple(task(client, number) for number in stream)
        for client, stream in enumerate(streams)
    )


def _parts(
    spec: ScenarioSpec, group: Group, number: int, count: int, rule: str
) -> list[Indices]:
    members = spec.samples(group.source, "train", group.labels)
    y = group.source.train.y[members]
    if rule != EVENLY:
        _check_size(count, len(members), group, "training")
        return _skewed(rule, group, members, count, spec.rng("dirichlet", number))
    for label in group.labels:
        check_sharers(count, group.source, label, int(np.count_nonzero(y == label)))
    rng = np.random.default_rng(derive(spec.seed, "samples-share", number))
    return [members[part] for part in split_stratified(y, count, rng)]


def check_sharers(clients: int, source: Dataset, label: int, samples: int) -> None:
    """Refuse a class that more clients learn than it has training samples."""
    if samples < clients:
        raise ConfigError(
            f"clients: got {clients} clients that learn class "
            f"{source.class_names[label]!r} of {source.name}, expected at most one for "
            f"each of its {samples} training samples"
        )


BY_CLASS = "classes"
MOST_DRAWS = 1000
MOST_BETA = 1e6
"""The largest beta: larger ones are not more even, and the draw would overflow."""


def _known_share(value: str) -> str:
    if value != EVENLY:
        dirichlet_beta(value)
    return value


def _known(value: str) -> str:
    try:
        return value if value == BY_CLASS else _known_share(value)
    except ValueError as error:
        raise ValueError(f"'{BY_CLASS}', {error}") from error


ShareRule = Annotated[str, AfterValidator(_known_share)]
SplitRule = Annotated[str, AfterValidator(_known)]


def dirichlet_beta(rule: str) -> float:
    """Parse BETA of a rule ``dirichlet:BETA``."""
    name, _, number = rule.partition(":")
    try:
        beta = float(number)
    except ValueError:
        beta = math.nan
    if name != "dirichlet" or not 0 < beta <= MOST_BETA:
        expected = f"'{EVENLY}' or 'dirichlet:BETA' with BETA above 0"
        raise ValueError(f"{expected} and at most {MOST_BETA:g}")
    return beta


def deal_samples(
    spec: ScenarioSpec[Any], rule: str, number: int, group: Group, samples: Indices
) -> list[Indices]:
    """Deal a task's training samples to all clients, at least one to each.

    The rule is ``iid`` or ``dirichlet:BETA``. The skewed shares are those of TARGET
    (Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937) and LANDER (Tran et al.,
    CVPR 2024, https://arxiv.org/abs/2403.14101). A class is shared out by a Dirichlet
    distribution over the clients, which is drawn anew for each task. The draw is
    repeated until every client has a sample. For even shares the papers' released code
    cuts shuffled samples; this function deals them class by class, which avoids skew by
    chance.
    """
    clients, labels = spec.clients, group.source.train.y[samples]
    _check_size(clients, len(samples), group, "training")
    if rule == EVENLY:
        rng = spec.rng("iid", number)
        parts = split_in_turn(labels, clients, rng)
        # The first parts get the remainder, so the clients are permuted.
        return [samples[parts[place]] for place in rng.permutation(clients)]
    return _skewed(rule, group, samples, clients, spec.rng("dirichlet", number))


def _skewed(
    rule: str, group: Group, samples: Indices, clients: int, rng: np.random.Generator
) -> list[Indices]:
    labels, beta = group.source.train.y[samples], dirichlet_beta(rule)
    for _ in range(MOST_DRAWS):
        parts = split_dirichlet(labels, clients, beta, rng)
        if all(map(len, parts)):
            return [samples[part] for part in parts]
    raise config_error(
        "scenario.split",
        rule,
        f"a larger BETA or fewer clients than {clients}, since in {MOST_DRAWS} draws "
        f"a client always had no sample of task {group.name!r}",
    )


def deal_tests(spec: ScenarioSpec[Any], number: int, group: Group) -> list[Indices]:
    """Deal a task's test samples to all clients, class by class."""
    samples = spec.samples(group.source, "test", group.labels)
    _check_size(spec.clients, len(samples), group, "test")
    rng = spec.rng("test", number)
    parts = split_in_turn(group.source.test.y[samples], spec.clients, rng)
    return [samples[part] for part in parts]


def _check_size(clients: int, samples: int, group: Group, split: str) -> None:
    if samples < clients:
        raise config_error(
            "clients",
            clients,
            f"at most {samples}, since task {group.name!r} has that many {split} "
            "samples",
        )


def class_streams(
    spec: ScenarioSpec[Any],
    groups: Sequence[Group],
    dealt: Sequence[Sequence[tuple[Indices, Indices]]],
    *,
    numbered_by_task: bool,
) -> TaskStreams:
    """Make the clients' tasks of the training and test samples in ``dealt``.

    ``dealt`` has a list for each task with a pair (train, test) for each client. Tasks
    with the same classes get the same group number. Numbers count groups in the order
    of tasks and then clients, or of clients and then tasks.
    """
    keys = [
        [(number, tuple(np.unique(group.source.train.y[part]))) for part, _ in parts]
        for number, (group, parts) in enumerate(zip(groups, dealt, strict=True))
    ]
    ordered = keys if numbered_by_task else zip(*keys, strict=True)
    distinct = dict.fromkeys(chain.from_iterable(ordered))
    numbers = {key: number for number, key in enumerate(distinct)}
    return tuple(
        tuple(
            group.held_out_task(
                *dealt[number][client],
                numbers[keys[number][client]],
                spec.valid_fraction,
                spec.rng("valid", client, number),
            )
            for number, group in enumerate(groups)
        )
        for client in range(spec.clients)
    )


POOL_SEED = 42
"""The paper's seed of task generation (table 4); the pool is the same in all runs."""


def text_tasks(spec: ScenarioSpec) -> TaskStreams:
    """Draw a pool of tasks, and deal them to the clients.

    The labels of a task are drawn without repetition among all labels. The training
    documents of a label that n tasks drew are cut into n disjoint, nearly equal parts.
    The test set of a task has every test document of its labels. If a task has all
    labels of the data set, tasks differ in their documents only. The seed decides which
    client learns which task of the pool, and when.
    """
    source, clients, tasks = only_source(spec, "text"), spec.clients, spec.tasks
    if spec.classes_per_task > source.num_classes:
        raise config_error(
            "classes_per_task",
            spec.classes_per_task,
            f"at most the {source.num_classes} classes of {source.name}",
        )
    # The pool's seed also draws which documents are used.
    spec, seed = replace(spec, seed=POOL_SEED), spec.seed
    rng = np.random.default_rng(derive(POOL_SEED, "pool", clients * tasks))
    drawn = [
        _labels(source, spec.classes_per_task, rng) for _ in range(clients * tasks)
    ]
    parts = _pool_parts(spec, source, drawn, rng)
    numbers = {labels: number for number, labels in enumerate(dict.fromkeys(drawn))}
    pool = []
    for labels in drawn:
        names = "+".join(source.class_names[label] for label in labels)
        group = Group(f"{source.name}/{names}", source, labels)
        train = np.sort(np.concatenate([next(parts[label]) for label in labels]))
        test = spec.samples(source, "test", labels)
        number, fraction = numbers[labels], spec.valid_fraction
        pool.append(group.held_out_task(train, test, number, fraction, rng))
    order = np.random.default_rng(derive(seed, "scenario-order")).permutation(len(pool))
    return tuple(
        tuple(pool[number] for number in row) for row in order.reshape(clients, tasks)
    )


def _labels(source: Dataset, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    while True:
        drawn = rng.choice(source.num_classes, size=count, replace=False)
        if np.isin(source.test.y, drawn).any():
            return tuple(sorted(drawn.tolist()))


def _pool_parts(
    spec: ScenarioSpec,
    source: Dataset,
    labels: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
) -> dict[int, Iterator[Indices]]:
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
