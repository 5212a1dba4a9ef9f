"""Image sets of the Hugging Face Hub, or a local folder, through Flower Datasets.

Needs the extra ``hub``; without it nothing else of the package is lost.
"""

from typing import TYPE_CHECKING

import numpy as np

from fcl_flower.data.imageset import ImageSet, Split, checked_set, checked_split
from fcl_flower.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets import FederatedDataset

_TEST_SPLITS = ("test", "validation", "valid")


def load_hub(name: str, path: str) -> ImageSet:
    """Return a set of images of one size with one label each.

    The test images are the first split found of ``test``, ``validation`` and
    ``valid``. Of several label columns the one with the most classes is taken
    (the fine labels of CIFAR-100).

    Args:
        name: what the set is called from now on.
        path: name on the Hub, or a local folder ``SPLIT/CLASS/*.png``.

    Raises:
        ConfigError: the extra is not installed, the set cannot be loaded, or it is
            not an image classification set with a train and a test split.
    """
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise ConfigError(
            f"dataset: got {name!r}, which needs Flower Datasets: "
            'pip install "fcl-flower[hub]".'
        ) from error
    # The order stays as published: shuffling is the scenario's business.
    federated = FederatedDataset(dataset=path, partitioners={}, shuffle=False)
    train = _split(federated, name, ("train",))
    test = _split(federated, name, _TEST_SPLITS)
    image, label = _columns(train, name)
    return checked_set(
        name,
        name,
        _arrays(train, f"{name}: train", image, label),
        _arrays(test, f"{name}: test", image, label),
        tuple(train.features[label].names),
    )


def _split(
    federated: "FederatedDataset", name: str, candidates: tuple[str, ...]
) -> "Dataset":
    """Return the first split of ``candidates`` that the set has."""
    from datasets.exceptions import DatasetsError

    reasons = []
    for split in candidates:
        try:
            return federated.load_split(split)
        except (OSError, ValueError, DatasetsError) as error:
            reasons.append(str(error))
    raise ConfigError(
        f"dataset: got {name!r}, expected a reachable set with a split called "
        f"{' or '.join(candidates)} ({reasons[-1]})."
    )


def _columns(rows: "Dataset", name: str) -> tuple[str, str]:
    """Return the names of the image column and of the finest label column."""
    from datasets import ClassLabel, Image

    features = rows.features
    images = [key for key, kind in features.items() if isinstance(kind, Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, ClassLabel)]
    if len(images) != 1 or not labels:
        raise ConfigError(
            f"dataset: got {name!r} with columns {', '.join(features)}, expected one "
            "column of images and one of class labels."
        )
    return images[0], max(labels, key=lambda key: features[key].num_classes)


def _arrays(rows: "Dataset", where: str, image: str, label: str) -> Split:
    """Return the rows as arrays; one colour image makes the whole split RGB."""
    pictures = rows[image]
    grey = all(picture.mode in ("1", "L") for picture in pictures)
    sizes = {picture.size for picture in pictures}
    if len(sizes) != 1:
        raise ConfigError(
            f"{where}: got images of {len(sizes)} different sizes, expected one size."
        )
    mode = "L" if grey else "RGB"
    x = np.stack([np.asarray(picture.convert(mode)) for picture in pictures])
    return checked_split(
        x, np.asarray(rows[label]), f"{where} images", f"{where} labels"
    )
