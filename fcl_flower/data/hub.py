"""Data sets of images or texts from the Hugging Face Hub, or from a local folder.

Flower Datasets loads them, so this module needs the extra ``hub``.
"""

import os
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
"""The largest side, in pixels, to which images of different sizes are scaled."""
_LABEL = "label"
"""The name of a column of labels that has no declared classes."""


def load_hub(name: str, path: str) -> Dataset:
    """Load a data set of images, or of texts, with one label each.

    ``path`` is a name on the Hub, or a local folder such as ``SPLIT/CLASS/*.png`` or
    ``SPLIT.jsonl``.

    - Samples: the only column of images; else the column ``text``, or the only column
      of texts. Images of different sizes are scaled to the median height and width of
      the training images, each at most `LARGEST`.
    - Labels: the column of class labels with the most classes, such as the fine labels
      of CIFAR-100. Texts may instead have a column ``label`` of texts or whole numbers,
      whose sorted values are the classes.
    - Test split: the first of ``test``, ``validation`` and ``valid`` that exists.
    """
    # Before the import, which reads it: by default the names of data sets are reported.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        from flwr_datasets import FederatedDataset
    except ImportError as error:
        raise config_error(
            "dataset", name, 'Flower Datasets: pip install "fcl-flower[hub]"'
        ) from error
    # The published order stays, since the scenario shuffles.
    federated = FederatedDataset(dataset=path, partitioners={}, shuffle=False)
    train = _split(federated, name, ("train",))
    test = _split(federated, name, _TEST_SPLITS)
    images, classes = _columns(train, "Image"), _columns(train, "ClassLabel")
    classes.sort(key=lambda key: -train.features[key].num_classes)
    if len(images) == 1 and classes:
        pictures_of_splits = (list(train[images[0]]), list(test[images[0]]))
        mode, size = _common(pictures_of_splits)
        train_split, test_split = (
            array_split(
                ImageDataset,
                _pixels(pictures, mode, size, f"{name}: {key} image"),
                np.asarray(rows[classes[0]]),
                f"{name}: {key} images",
                f"{name}: {key} labels",
            )
            for key, pictures, rows in zip(
                ("train", "test"), pictures_of_splits, (train, test), strict=True
            )
        )
        names = tuple(train.features[classes[0]].names)
        return array_dataset(ImageDataset, name, name, train_split, test_split, names)
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
        for key, column in rows.features.items()
        if isinstance(column, kind)
        and (not dtypes or any(dtype in column.dtype for dtype in dtypes))
    ]


def _common(
    splits: Sequence[Sequence["Image"]],
) -> tuple[Mode, tuple[int, int] | None]:
    """Find the mode of all pictures and the size to scale to; None keeps their size."""
    pictures = [picture for split in splits for picture in split]
    grey = all(p.mode in ("1", "L", "F") or p.mode[0] == "I" for p in pictures)
    sizes = {upright(picture) for picture in pictures}
    if len(sizes) == 1:
        return "L" if grey else "RGB", None
    middle = np.median([upright(picture) for picture in splits[0]], 0)
    width, height = np.minimum(middle, LARGEST).astype(int).tolist()
    return "L" if grey else "RGB", (width, height)


def _pixels(
    pictures: Sequence["Image"], mode: Mode, size: tuple[int, int] | None, where: str
) -> Images:
    images: list[Images] = []
    for row, picture in enumerate(pictures):
        try:
            images.append(pixels(picture, mode, size))
        # A damaged file makes Pillow raise many unrelated types.
        except Exception as error:
            raise ConfigError(
                f"{where} {row} cannot be read ({error}), expected a single picture"
            ) from error
    if len({image.dtype for image in images}) > 1:
        images = [fractions(image) for image in images]
    # All images have one dtype by now, which the type checker cannot see.
    return cast(Images, np.stack(images))


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
