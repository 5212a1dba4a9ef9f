"""Where a client's private state lives between two messages."""

import json
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypedDict

from flwr.app import Context
from typing_extensions import override

from fcl_flower import wire
from fcl_flower.codec import Encoded, decode, encode
from fcl_flower.errors import WireError
from fcl_flower.types import Arrays, Payload, Tensor

MANIFEST = "manifest"


class _Entry(TypedDict):
    """One group in the manifest; a tensor is name, dtype, shape, form and bytes."""

    file: str
    checksum: int
    tensors: list[tuple[str, str, list[int], str, int]]


class _Manifest(TypedDict):
    number: int
    groups: dict[str, _Entry]


class ClientMemory(ABC):
    """Remembers one payload, always at full precision."""

    @abstractmethod
    def load(self) -> Payload | None:
        """Return what was saved last; None before the first time."""

    @abstractmethod
    def save(self, payload: Payload) -> None:
        """Replace what is remembered."""


class ContextMemory(ClientMemory):
    """Flower's own ``context.state``: kept by the SuperNode, lost with its process.

    In simulation every node's state lies in the driver and travels with each
    message, so that large states of many clients want `FolderMemory`.
    """

    def __init__(self, context: Context) -> None:
        """Remember in ``context``."""
        self._context = context

    @override
    def load(self) -> Payload | None:
        # Its own state: old adapters may take more in dense form than a peer may.
        return wire.unpack(self._context.state, max_bytes=sys.maxsize) or None

    @override
    def save(self, payload: Payload) -> None:
        self._context.state = wire.Packer().payload(payload)


class FolderMemory(ClientMemory):
    """A folder with one file a group and a manifest that is replaced last.

    A crash at any moment leaves the old state or the new one, never a mixture; a
    damaged file is found by its checksum. A group is read when it is first looked
    into, and not written again when it is the very object that was loaded: a client
    with many old tasks touches the files of those that it works on.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        """Remember in ``folder``, which need not exist yet.

        Args:
            folder: one client's own folder.
            durable: force each file to the disk, so that even a power cut loses
                nothing; a simulation does without.
        """
        self._folder = folder
        self._durable = durable
        self._entries: dict[str, _Entry] = {}
        self._loaded: dict[str, Arrays] = {}
        self._number = 0

    @override
    def load(self) -> Payload | None:
        """Return what was saved last; None before the first time.

        Raises:
            WireError: the manifest is damaged, or a file is missing. A damaged file
                raises the same when it is looked into; the message names it.
        """
        manifest = self._folder / MANIFEST
        if not manifest.exists():
            return None
        found = _open_manifest(manifest)
        self._number = found["number"]
        self._entries = found["groups"]
        self._loaded = {
            group: _StoredArrays(self._folder / entry["file"], entry)
            for group, entry in self._entries.items()
        }
        return dict(self._loaded)

    @override
    def save(self, payload: Payload) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._number:
            self.load()  # its number: no file of the old state may be written over
        self._number += 1
        entries = {
            group: self._entries[group]
            if self._loaded.get(group) is arrays
            else self._write(f"{self._number}-{place}.bin", arrays)
            for place, (group, arrays) in enumerate(payload.items())
        }
        text = json.dumps({"number": self._number, "groups": entries})
        self._replace(MANIFEST, f"{zlib.crc32(text.encode())}\n{text}\n".encode())
        self._entries, self._loaded = entries, dict(payload)
        kept = {MANIFEST, *(entry["file"] for entry in entries.values())}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def _write(self, file: str, arrays: Arrays) -> _Entry:
        encoded = {name: encode(tensor) for name, tensor in arrays.items()}
        content = b"".join(e.data for e in encoded.values())
        self._replace(file, content)
        tensors = [
            (name, e.dtype, list(e.shape), e.form, len(e.data))
            for name, e in encoded.items()
        ]
        return {"file": file, "checksum": zlib.crc32(content), "tensors": tensors}

    def _replace(self, name: str, content: bytes) -> None:
        temporary = self._folder / f"{name}.new"
        with temporary.open("wb") as file:
            file.write(content)
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(self._folder / name)
        if self._durable:
            _sync(self._folder)


class _StoredArrays(Mapping[str, Tensor]):
    """One group as it lies in its file; read whole when first looked into."""

    def __init__(self, path: Path, entry: _Entry) -> None:
        if not path.exists():
            raise WireError(f"client memory: {path} is missing")
        self._path = path
        self._entry = entry

    @override
    def __getitem__(self, name: str) -> Tensor:
        return self._arrays[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    @override
    def __len__(self) -> int:
        return len(self._entry["tensors"])

    @cached_property
    def _arrays(self) -> dict[str, Tensor]:
        content = self._path.read_bytes()
        if zlib.crc32(content) != self._entry["checksum"]:
            raise WireError(f"client memory: {self._path} is damaged")
        arrays: dict[str, Tensor] = {}
        start = 0
        for name, dtype, shape, form, size in self._entry["tensors"]:
            data = content[start : start + size]
            arrays[name] = decode(Encoded(dtype, tuple(shape), form, data))
            start += size
        return arrays


def _open_manifest(path: Path) -> _Manifest:
    checksum, _, text = path.read_bytes().partition(b"\n")
    if checksum != str(zlib.crc32(text.removesuffix(b"\n"))).encode():
        raise WireError(f"client memory: {path} is damaged")
    found: _Manifest = json.loads(text)
    return found


def _sync(folder: Path) -> None:
    """Force the names in a folder to the disk, as the files' contents were."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
