"""Where a client's private state lives between two messages."""

import hashlib
import json
import os
from abc import ABC, abstractmethod
from pathlib import Path

from flwr.app import Context
from typing_extensions import override

from fcl_flower import wire
from fcl_flower.codec import Encoded, decode, encode
from fcl_flower.errors import WireError
from fcl_flower.types import Arrays, Payload, Tensor

MANIFEST = "manifest.json"


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
        return wire.unpack(self._context.state) or None

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
        self._files = json.loads(manifest.read_text())
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
        self._replace(MANIFEST, json.dumps(files).encode())
        self._files, self._loaded = files, dict(payload)
        kept = {MANIFEST, *(str(entry["file"]) for entry in files.values())}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()

    def _write(self, arrays: Arrays) -> dict[str, object]:
        encoded = {name: encode(tensor) for name, tensor in arrays.items()}
        content = b"".join(e.data for e in encoded.values())
        digest = hashlib.sha256(content).hexdigest()
        self._replace(f"{digest}.bin", content)
        return {
            "file": f"{digest}.bin",
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
        if hashlib.sha256(content).hexdigest() != path.stem:
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
