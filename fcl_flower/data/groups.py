"""Cutting a data set's classes into groups, one group per task."""

from typing import NamedTuple

import numpy as np

from fcl_flower.data.dataset import DataSet

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
    source: DataSet
    labels: tuple[int, ...]


def drawn_groups(source: DataSet, size: int, rng: np.random.Generator) -> list[Group]:
    """Return disjoint groups of ``size`` classes; a remainder is left out."""
    order = rng.permutation(source.num_classes).tolist()
    starts = range(0, len(order) - size + 1, size)
    return [
        Group(f"{source.name}/{number}", source, tuple(sorted(order[at : at + size])))
        for number, at in enumerate(starts)
    ]


def superclass_groups(source: DataSet) -> list[Group]:
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
