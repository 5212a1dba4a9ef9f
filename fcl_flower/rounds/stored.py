"""Groups of tensors in a file, and how they are written there and read."""

import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, TypedDict

from typing_extensions import override

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import AnyArray, Arrays
from fcl_flower.rounds.codec import Encoded, decode, encode


class Entry(TypedDict):
    """The place of a group, which is none for a group without tensors.

    Attributes:
        file: its name, in the folder of the writer; empty for a file without a name.
        start: of the group in the file.
        of: bytes of all groups that were written into that file.
        checksum: CRC-32 of the group's bytes.
        tensors: name, dtype, shape, form and bytes of each.
    """

    file: str
    start: int
    of: int
    checksum: int
    tensors: list[tuple[str, str, list[int], str, int]]


class File:
    """A file that stays open while it has a reader, even if it loses its name."""

    def __init__(self, file: IO[bytes], name: object) -> None:
        """Take over an open file; ``name`` is for messages."""
        self.content, self.name = file, name
        weakref.finalize(self, file.close)

    @classmethod
    def opened(cls, path: Path) -> "File":
        """Open a file for reading.

        Raises:
            WireError: the file is missing.
        """
        try:
            return cls(path.open("rb"), path)
        except FileNotFoundError:
            raise WireError(f"state: {path} is missing") from None

    def read(self, start: int, size: int) -> bytes:
        """Read so many bytes, or as many as there are."""
        self.content.seek(start)
        return self.content.read(size)


def size_of(entry: Entry) -> int:
    """Count the bytes of a group."""
    return sum(size for *_, size in entry["tensors"])


def write_group(file: IO[bytes], arrays: Arrays) -> Entry:
    """Append a group to a file, exactly; the caller adds the file's name and size.

    A group of another file is copied as it is; damage is found when it is read.
    """
    entry = Entry(file="", start=file.tell(), of=0, checksum=0, tensors=[])
    if isinstance(arrays, StoredArrays):
        file.write(arrays.file.read(arrays.entry["start"], size_of(arrays.entry)))
        return {**arrays.entry, "start": entry["start"]}
    for name, array in arrays.items():
        made = encode(array)
        file.write(made.data)
        entry["checksum"] = zlib.crc32(made.data, entry["checksum"])
        about = (name, made.dtype, list(made.shape), made.form, len(made.data))
        entry["tensors"].append(about)
    return entry


class StoredArrays(Mapping[str, AnyArray]):
    """A group in a file; nothing is read before one of its tensors is looked at.

    All of them are decoded and held then, unless ``held`` is False. In that case each
    look reads and decodes one tensor, and the caller must know that the file is whole.
    """

    def __init__(self, file: File, entry: Entry, *, held: bool = True) -> None:
        """Read nothing yet."""
        self.file, self.entry, self.held = file, entry, held

    def encoded(self) -> dict[str, Encoded]:
        """Read the tensors in the form that they have in the file.

        Raises:
            WireError: the group is damaged.
        """
        content = self.file.read(self.entry["start"], size_of(self.entry))
        if zlib.crc32(content) != self.entry["checksum"]:
            raise WireError(f"state: {self.file.name} is damaged")
        found, begin = dict[str, Encoded](), 0
        for name, dtype, shape, form, size in self.entry["tensors"]:
            data = content[begin : begin + size]
            found[name] = Encoded(dtype, tuple(shape), form, data)
            begin += size
        return found

    @override
    def __getitem__(self, name: str) -> AnyArray:
        if self.held:
            return self._arrays[name]
        begin = self.entry["start"]
        for other, dtype, shape, form, size in self.entry["tensors"]:
            if other == name:
                data = self.file.read(begin, size)
                return _decoded(Encoded(dtype, tuple(shape), form, data))
            begin += size
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return (name for name, *_ in self.entry["tensors"])

    @override
    def __len__(self) -> int:
        return len(self.entry["tensors"])

    @cached_property
    def _arrays(self) -> dict[str, AnyArray]:
        return {name: _decoded(tensor) for name, tensor in self.encoded().items()}


def _decoded(tensor: Encoded) -> AnyArray:
    # The dense form of an old adapter may take more than a peer may claim.
    return decode(tensor, sys.maxsize)
