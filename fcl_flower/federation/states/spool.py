"""The updates of a round: in memory up to a size, beyond it in a file.

A mean needs one update at a time, and every number of it depends on the order of the
sum and on the total weight, which is known when the last update has come. So updates
wait in the form in which they take least, and are added up by ascending client as if
all had been in memory: the result is the same bit for bit, whoever came first, and a
round that fails has changed nothing.
"""

import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import (
    AnyArray,
    Arrays,
    ReceivedArrays,
    Update,
    group_kind,
    specs,
)
from fcl_flower.federation.transport.codec import decode, encode

IN_MEMORY = 2**28
"""Bytes of a round's updates that stay in memory: a usual round touches no disk."""


class Spool:
    """Keeps updates for as long as somebody holds what `keep` returned.

    The file has no name, its owner alone can read it, and it vanishes with the last
    update in it, or with the process.
    """

    def __init__(self, folder: Path, kinds: Collection[str]) -> None:
        """Hold nothing yet.

        Args:
            folder: on the disk that the file will be on.
            kinds: of the groups that may lie in the file; all others stay in memory.
        """
        self._folder = folder
        self._kinds = frozenset(kinds)
        self._left = IN_MEMORY
        self._file: _File | None = None

    @classmethod
    def of(cls, strategy: ServerStrategy[Any], folder: Path) -> "Spool":
        """Return one for what a strategy averages; see `Spool`."""
        # What holds updates against each other looks at each many times.
        whole = strategy.aggregation.compares
        return cls(folder, () if whole else strategy.averaged_groups)

    def keep(self, update: Update) -> Update:
        """Return the same update, of which groups may lie in the file from now on.

        Each of their tensors is read whenever it is looked at, and held by nobody.

        Raises:
            OSError: the disk is full.
        """
        groups = {
            group: self._kept(arrays) if group_kind(group) in self._kinds else arrays
            for group, arrays in update.payload.items()
        }
        return replace(update, payload=groups)

    def _kept(self, arrays: Arrays) -> Arrays:
        size = sum(map(_nbytes, arrays.values()))
        if size <= self._left:
            self._left -= size
            return arrays
        if self._file is None:
            self._file = _File(self._folder)
        readers = {n: self._file.written(tensor) for n, tensor in arrays.items()}
        return _OnDisk(arrays, readers)


class _OnDisk(ReceivedArrays):
    """Tensors in a file, none of which is kept in memory once it was read."""

    def __init__(
        self, arrays: Arrays, readers: dict[str, Callable[[], AnyArray]]
    ) -> None:
        super().__init__(specs(arrays), lambda name: readers[name]())

    @override
    def __getitem__(self, name: str) -> AnyArray:
        return self._decode(name)


class _File:
    """Encoded tensors one after the other, in a file without a name."""

    def __init__(self, folder: Path) -> None:
        # Not in a `with`: it is open for as long as an update in it is looked at.
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._end = 0
        weakref.finalize(self, self._file.close)

    def written(self, tensor: AnyArray) -> Callable[[], AnyArray]:
        """Append a tensor; return what reads it."""
        encoded = encode(tensor, copy=False)
        start, size = self._end, len(encoded.data)
        form = replace(encoded, data=b"")
        self._file.write(encoded.data)
        self._file.flush()
        self._end += size

        def read() -> AnyArray:
            data = os.pread(self._file.fileno(), size, start)
            return decode(replace(form, data=data), max_bytes=sys.maxsize)

        return read


def _nbytes(tensor: AnyArray) -> int:
    if isinstance(tensor, SparseArray):
        return tensor.values.nbytes + tensor.indices.nbytes
    return tensor.nbytes
