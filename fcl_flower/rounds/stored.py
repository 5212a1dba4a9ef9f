"""Groups of tensors in a file, and how they are written there and read."""

import io
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
        file: its name, in the folder of whoever has written it.
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
    """A file that is open for as long as somebody may read it, also without a name."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            WireError: it is not there.
        """
        self.path = path
        try:
            # Not in a `with`: until nobody has it any more.
            self._file = path.open("rb")
        except FileNotFoundError:
            raise WireError(f"state: {path} is missing") from None
        weakref.finalize(self, self._file.close)
        self.size = self._file.seek(0, io.SEEK_END)

    def read(self, start: int, size: int) -> bytes:
        """Read so many bytes, or as many as there are."""
        self._file.seek(start)
        return self._file.read(size)


def size_of(entry: Entry) -> int:
    """Count the bytes of a group."""
    return sum(size for *_, size in entry["tensors"])


def encode_group(file: IO[bytes], arrays: Arrays) -> Entry:
    """Append a group to a file, exactly; the caller adds the file's name and size."""
    start, checksum, tensors = file.tell(), 0, []
    for name, tensor in arrays.items():
        made = encode(tensor)
        checksum = zlib.crc32(made.data, checksum)
        file.write(made.data)
        about = name, made.dtype, list(made.shape), made.form, len(made.data)
        tensors.append(about)
    return Entry(file="", start=start, of=0, checksum=checksum, tensors=tensors)


def copy_group(file: IO[bytes], source: File, entry: Entry) -> Entry:
    """Append a group as it is, even if it is damaged: whoever reads it will see."""
    start = file.tell()
    file.write(source.read(entry["start"], size_of(entry)))
    return {**entry, "start": start}


class StoredArrays(Mapping[str, AnyArray]):
    """A group in a file; its tensors are decoded when one of them is looked at.

    They are held then, or each is decoded again whenever it is looked at.
    """

    def __init__(self, file: File, entry: Entry, *, held: bool = True) -> None:
        """Read nothing yet."""
        self._file, self._entry, self._held = file, entry, held

    def is_at(self, entry: Entry) -> bool:
        """Tell whether nothing is held of a group, and it lies there."""
        return not self._held and self._entry is entry

    def check(self) -> None:
        """Refuse a damaged group by a `WireError`."""
        self.encoded()

    def encoded(self) -> dict[str, Encoded]:
        """Read the tensors as they lie there: each in its smallest exact form.

        Raises:
            WireError: the group is damaged.
        """
        content = self._file.read(self._entry["start"], size_of(self._entry))
        if zlib.crc32(content) != self._entry["checksum"]:
            raise WireError(f"state: {self._file.path} is damaged")
        encoded, start = dict[str, Encoded](), 0
        for name, dtype, shape, form, size in self._entry["tensors"]:
            data = content[start : start + size]
            encoded[name] = Encoded(dtype, tuple(shape), form, data)
            start += size
        return encoded

    @override
    def __getitem__(self, name: str) -> AnyArray:
        return self._arrays[name] if self._held else decode(self.encoded()[name])

    @override
    def __iter__(self) -> Iterator[str]:
        return (name for name, *_ in self._entry["tensors"])

    @override
    def __len__(self) -> int:
        return len(self._entry["tensors"])

    @cached_property
    def _arrays(self) -> dict[str, AnyArray]:
        return {name: decode(found) for name, found in self.encoded().items()}
