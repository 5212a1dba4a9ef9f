"""Sets of the Hugging Face Hub, or a local folder, through Flower Datasets.

Needs the extra ``hub``; without it nothing else of the package is lost.
"""

from typing import TYPE_CHECKING

import numpy as np

from fcl_flower.data.arrayset import checked_set
from fcl_flower.data.dataset import DataSet, Split
from fcl_flower.data.hub_texts import PLAIN_LABEL, label_columns, text_columns, text_set
from fcl_flower.data.imageset import Images, ImageSet, image_split
from fcl_flower.errors import ConfigError

if TYPE_CHECKING:
    from datasets import Dataset
    from flwr_datasets import FederatedDataset

_TEST_SPLITS = ("test", "validation", "valid")


def load_hub(name: str, path: str) -> DataSet:
    """Return a set of images of one size, or of texts, with one label each.

    A set with a column of images is one of images; otherwise the texts are the column
    called ``text`` or the only column of texts. The test split is the first found of
    ``test``, ``validation`` and ``valid``. Of several columns of class labels the one
    with the most classes is taken (the fine labels of CIFAR-100); texts may also have
    a column called ``label`` of texts or whole numbers, whose sorted values are then
    the classes.

    Args:
        name: what the set is called from now on.
        path: name on the Hub, or a local folder such as ``SPLIT/CLASS/*.png`` or
            ``SPLIT.jsonl``.

    Raises:
        ConfigError: the extra is not installed, the set cannot be loaded, or it is
            not a classification set of images or texts with a train and a test
            split.
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
    images, classes = _columns(train)
    if len(images) == 1 and classes:
        return _image_set(name, train, test, images[0], classes[0])
    texts, labels = text_columns(train), [*classes, *label_columns(train)]
    if not images and len(texts) == 1 and labels:
        return text_set(name, train, test, texts[0], labels[0])
    raise ConfigError(
        f"dataset: got {name!r} with columns {', '.join(train.features)}, expected one "
        "column of images or of texts, and one of class labels, or of texts one "
        f"called {PLAIN_LABEL}."
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


def _columns(rows: "Dataset") -> tuple[list[str], list[str]]:
    """Return the columns of images and those of class labels, the finest first."""
    from datasets import ClassLabel, Image

    features = rows.features
    images = [key for key, kind in features.items() if isinstance(kind, Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, ClassLabel)]
    return images, sorted(labels, key=lambda key: -features[key].num_classes)


def _image_set(
    name: str, train: "Dataset", test: "Dataset", image: str, label: str
) -> ImageSet:
    """Return the set of images."""
    return checked_set(
        ImageSet,
        name,
        name,
        _arrays(train, f"{name}: train", image, label),
        _arrays(test, f"{name}: test", image, label),
        tuple(train.features[label].names),
    )


def _arrays(rows: "Dataset", where: str, image: str, label: str) -> Split[Images]:
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
    return image_split(x, np.asarray(rows[label]), f"{where} images", f"{where} labels")
