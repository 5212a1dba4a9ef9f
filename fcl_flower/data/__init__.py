"""Data sets, local data, and scenarios that deal classes to clients and tasks.

It may import `models` and all rooms below it.
"""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from fcl_flower.data.arrays import (
        ImageDataset,
        TabularDataset,
        TimeSeriesDataset,
        from_arrays,
    )
    from fcl_flower.data.datasets import Dataset, Split
    from fcl_flower.data.registry import known_datasets, load_dataset, registered
    from fcl_flower.data.texts import TextDataset

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
        "arrays": "ImageDataset TabularDataset TimeSeriesDataset from_arrays",
        "datasets": "Dataset Split",
        "registry": "known_datasets load_dataset registered",
        "texts": "TextDataset",
    },
)
