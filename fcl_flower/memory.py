"""Where a client's private state lives between two messages."""

import hashlib
import json
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from flwr.app import Context
from typing_extensions import override

from fcl_flower import wire
from fcl_flower.codec import Encoded, decode, encode
from fcl_flower.errors import WireError
from fcl_flower.types import Arrays, Payload, Tensor

MANIFEST = "manifest"


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
    damaged file is found by its checksum. A group that is the very object that was
    loaded is not written again.
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
        self._files: dict[str, dict[str, object]] = {}
        self._loaded: dict[str, Arrays] = {}

    @override
    def load(self) -> Payload | None:
        """Return what was saved last; None before the first time.

        Raises:
            WireError: a file is missing or damaged; the message names it.
        """
        manifest = self._folder / MANIFEST
        if not manifest.exists():
            return None
        self._files = _open_manifest(manifest)
        self._loaded = {g: self._read(entry) for g, entry in self._files.items()}
        return dict(self._loaded)

    @override
    def save(self, payload: Payload) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = {
            group: self._files[group]
            if self._loaded.get(group) is arrays
            else self._write(arrays)
            for group, arrays in payload.items()
        }
        text = json.dumps(files)
        self._replace(MANIFEST, f"{_digest(text.encode())}\n{text}\n".encode())
        self._files, self._loaded = files, dict(payload)
        kept = {MANIFEST, *(str(entry["file"]) for entry in files.values())}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def _write(self, arrays: Arrays) -> dict[str, object]:
        encoded = {name: encode(tensor) for name, tensor in arrays.items()}
        content = b"".join(e.data for e in encoded.values())
        file = f"{_digest(content)}.bin"
        self._replace(file, content)
        return {
            "file": file,
            "tensors": [
                [name, e.dtype, list(e.shape), e.form, len(e.data)]
                for name, e in encoded.items()
            ],
        }

    def _read(self, entry: dict[str, object]) -> Arrays:
        path = self._folder / str(entry["file"])
        if not path.exists():
            raise WireError(f"client memory: {path} is missing")
        content = path.read_bytes()
        if _digest(content) != path.stem:
            raise WireError(f"client memory: {path} is damaged (checksum differs)")
        arrays: dict[str, Tensor] = {}
        start = 0
        for name, dtype, shape, form, size in entry["tensors"]:  # type: ignore[attr-defined]
            data = content[start : start + size]
            arrays[name] = decode(Encoded(dtype, tuple(shape), form, data))
            start += size
        return arrays

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


def _open_manifest(path: Path) -> dict[str, dict[str, object]]:
    digest, _, text = path.read_bytes().partition(b"\n")
    if digest.decode("ascii", "replace") != _digest(text.removesuffix(b"\n")):
        raise WireError(f"client memory: {path} is damaged (checksum differs)")
    files: dict[str, dict[str, object]] = json.loads(text)
    return files


def _sync(folder: Path) -> None:
    """Force the names in a folder to the disk, as the files' contents were."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
