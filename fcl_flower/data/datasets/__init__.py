"""Whole data sets and where they come from."""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy import lazy_names

if TYPE_CHECKING:
    from fcl_flower.data.datasets.arrays import (
        ImageDataset,
        TabularDataset,
        TimeSeriesDataset,
        from_arrays,
    )
    from fcl_flower.data.datasets.base import Dataset, Split
    from fcl_flower.data.datasets.registry import (
        known_datasets,
        load_dataset,
        registered,
    )
    from fcl_flower.data.datasets.text import TextDataset

__all__ = [
    "Dataset",
    "ImageDataset",
    "Split",
    "TabularDataset",
    "TextDataset",
    "TimeSeriesDataset",
    "from_arrays",
    "known_datasets",
    "load_dataset",
    "registered",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Dataset Split",
        "arrays": "ImageDataset TabularDataset TimeSeriesDataset from_arrays",
        "text": "TextDataset",
        "registry": "known_datasets load_dataset registered",
    },
)
