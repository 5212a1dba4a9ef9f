"""Images or texts of the Hugging Face Hub, or a local folder, by Flower Datasets.

Needs the extra ``hub``; the other data sets do without.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.arrays import ImageDataset, Images, array_dataset, array_split
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.texts import (
    Documents,
    TextDataset,
    label_numbers,
    text_dataset,
    text_split,
)

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets import FederatedDataset

_TEST_SPLITS = ("test", "validation", "valid")
_LABEL = "label"
"""Name of a column of labels that is not one of class labels."""


def load_hub(name: str, path: str) -> Dataset:
    """Load a set of images of one size, or of texts, with one label each.

    ``path`` is a name on the Hub, or a local folder such as ``SPLIT/CLASS/*.png`` or
    ``SPLIT.jsonl``. A set with a column of images is one of images; otherwise the texts
    are the column called ``text`` or the only column of texts. The test split is the
    first found of ``test``, ``validation`` and ``valid``. Of several columns of class
    labels the one with the most classes is taken (the fine labels of CIFAR-100); texts
    may also have a column called ``label`` of texts or whole numbers, whose sorted
    values are then the classes.
    """
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise config_error(
            "dataset", name, 'Flower Datasets: pip install "fcl-flower[hub]"'
        ) from error
    # The order stays as published: shuffling is the scenario's business.
    federated = FederatedDataset(dataset=path, partitioners={}, shuffle=False)
    train = _split(federated, name, ("train",))
    test = _split(federated, name, _TEST_SPLITS)
    images, classes = _columns(train, "Image"), _columns(train, "ClassLabel")
    classes.sort(key=lambda key: -train.features[key].num_classes)
    if len(images) == 1 and classes:
        found, tested = (
            _images(rows, f"{name}: {key}", images[0], classes[0])
            for key, rows in (("train", train), ("test", test))
        )
        names = tuple(train.features[classes[0]].names)
        return array_dataset(ImageDataset, name, name, found, tested, names)
    texts = [key for key in _columns(train, "Value", "string") if key != _LABEL]
    texts = ["text"] if "text" in texts else texts
    plain = _columns(train, "Value", "string", "int")
    labels = [*classes, *(key for key in plain if key == _LABEL)]
    if not images and len(texts) == 1 and labels:
        return _text_set(name, train, test, texts[0], labels[0])
    raise ConfigError(
        f"dataset: got {name!r} with columns {', '.join(train.features)}, expected one "
        "column of images or of texts, and one of class labels, or of texts one "
        f"called {_LABEL}"
    )


def _split(
    federated: "FederatedDataset", name: str, candidates: tuple[str, ...]
) -> "HubDataset":
    from datasets.exceptions import DatasetsError

    reasons = []
    for split in candidates:
        try:
            return federated.load_split(split)
        except (OSError, ValueError, DatasetsError) as error:
            reasons.append(str(error))
    raise ConfigError(
        f"dataset: got {name!r}, expected a reachable set with a split called "
        f"{' or '.join(candidates)} ({reasons[-1]})"
    )


def _columns(rows: "HubDataset", feature: str, *dtypes: str) -> list[str]:
    import datasets

    kind = getattr(datasets, feature)
    return [
        key
        for key, found in rows.features.items()
        if isinstance(found, kind)
        and (not dtypes or any(dtype in found.dtype for dtype in dtypes))
    ]


def _images(rows: "HubDataset", where: str, image: str, label: str) -> Split[Images]:
    pictures = rows[image]
    grey = all(picture.mode in ("1", "L") for picture in pictures)
    sizes = {picture.size for picture in pictures}
    if len(sizes) != 1:
        raise ConfigError(
            f"{where}: got images of {len(sizes)} different sizes, expected one size"
        )
    mode = "L" if grey else "RGB"
    x = np.stack([np.asarray(picture.convert(mode)) for picture in pictures])
    y = np.asarray(rows[label])
    return array_split(ImageDataset, x, y, f"{where} images", f"{where} labels")


def _text_set(
    name: str, train: "HubDataset", test: "HubDataset", text: str, label: str
) -> TextDataset:
    published = getattr(train.features[label], "names", None)
    class_names = tuple(published or sorted(set(map(str, train[label]))))

    def split(key: str, rows: "HubDataset") -> Split[Documents]:
        texts, labels = (
            _column(rows, column, f"{name}: {key}") for column in (text, label)
        )
        if not published:
            where = f"{name}: {label} in {key} row"
            labels = label_numbers(map(str, labels), class_names, where)
        return text_split(texts, labels)

    return text_dataset(
        name, name, split("train", train), split("test", test), class_names
    )


def _column(rows: "HubDataset", key: str, where: str) -> list[Any]:
    values = list(rows[key])
    if None in values:
        raise ConfigError(
            f"{where} row {values.index(None) + 1}: got no {key}, expected one in "
            "every row"
        )
    return values
