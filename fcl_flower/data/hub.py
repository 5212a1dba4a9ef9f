"""Images or texts of the Hugging Face Hub, or a local folder, by Flower Datasets.

Needs the extra ``hub``; the other data sets do without.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.arrays import ImageDataset, Images, array_dataset, array_split
from fcl_flower.data.datasets import Dataset, Split, fractions
from fcl_flower.data.pictures import Mode, pixels, upright
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
    from PIL.Image import Image

_TEST_SPLITS = ("test", "validation", "valid")
LARGEST = 256
"""Pixels of a side to which images of different sizes are scaled at most."""
_LABEL = "label"
"""Name of a column of labels that is not one of class labels."""


def load_hub(name: str, path: str) -> Dataset:
    """Load a set of images, or of texts, with one label each.

    ``path`` is a name on the Hub, or a local folder such as ``SPLIT/CLASS/*.png`` or
    ``SPLIT.jsonl``. A set with a column of images is one of images; otherwise the texts
    are the column called ``text`` or the only column of texts. The test split is the
    first found of ``test``, ``validation`` and ``valid``. Of several columns of class
    labels the one with the most classes is taken (the fine labels of CIFAR-100); texts
    may also have a column called ``label`` of texts or whole numbers, whose sorted
    values are then the classes. Images of different sizes are scaled to the median
    height and width of the training images, each at most `LARGEST`.
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
        both = (list(train[images[0]]), list(test[images[0]]))
        mode, size = _common(both)
        found, tested = (
            array_split(
                ImageDataset,
                _pixels(pictures, mode, size, f"{name}: {key} image"),
                np.asarray(rows[classes[0]]),
                f"{name}: {key} images",
                f"{name}: {key} labels",
            )
            for key, pictures, rows in zip(
                ("train", "test"), both, (train, test), strict=True
            )
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


def _common(
    splits: Sequence[Sequence["Image"]],
) -> tuple[Mode, tuple[int, int] | None]:
    """Find the mode of all pictures, and the size to scale to; None for their own."""
    every = [picture for pictures in splits for picture in pictures]
    grey = all(one.mode in ("1", "L", "F") or one.mode[0] == "I" for one in every)
    sizes = {upright(picture) for picture in every}
    if len(sizes) == 1:
        return "L" if grey else "RGB", None
    middle = np.median([upright(picture) for picture in splits[0]], 0)
    width, height = np.minimum(middle, LARGEST).astype(int).tolist()
    return "L" if grey else "RGB", (width, height)


def _pixels(
    pictures: Sequence["Image"], mode: Mode, size: tuple[int, int] | None, where: str
) -> Images:
    found: list[Images] = []
    for row, picture in enumerate(pictures):
        try:
            found.append(pixels(picture, mode, size))
        # A damaged file makes Pillow raise many unrelated types.
        except Exception as error:
            raise ConfigError(
                f"{where} {row} cannot be read ({error}), expected a single picture"
            ) from error
    if len({one.dtype for one in found}) > 1:
        found = [fractions(one) for one in found]
    # Of one type by now, which the checker cannot see.
    return cast(Images, np.stack(found))


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
            numbered = enumerate(map(str, labels), 1)
            labels = label_numbers(numbered, class_names, where)
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
