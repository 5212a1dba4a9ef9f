"""Where a state is kept between two messages, or two runs of a process.

Both sides use it: a client for its private state, the server for its checkpoint.
"""

import json
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from logging import WARNING
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypedDict

from flwr.app import ConfigRecord, Context
from typing_extensions import override

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.files import make_private_folder, replace_file, sync_folder
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.core.types import AnyArray, Arrays, Payload
from fcl_flower.federation import messages
from fcl_flower.federation.codec import Bytes, Encoded, decode, encode
from fcl_flower.flower.identity import log

MANIFEST = "manifest-"
FORMAT: Final = 1
"""Of a manifest and of the files that it names."""
VERSIONS = 2
"""How many are kept: a round that is repeated starts from the state before it."""
BESIDE: Final = ("asked", "copies")
"""What is kept beside an algorithm's state, in groups whose names begin so: requests
that are pending, and models that are known, with what rounding has left of them."""


class Saved(NamedTuple):
    """What was saved in a round; ``beside`` the state by a name of `BESIDE`."""

    round: int
    state: Payload
    beside: Mapping[str, Payload] = MappingProxyType({})


class _Entry(TypedDict):
    file: str
    checksum: int
    tensors: list[tuple[str, str, list[int], str, int]]


class _Manifest(TypedDict):
    round: int
    groups: dict[str, _Entry]


class StateStore(ABC):
    """Keeps states, always at full precision."""

    def load(self, before: int = sys.maxsize) -> Saved | None:
        """Load what was saved last, but in an earlier round than ``before``.

        None where there is nothing.
        """
        found = self._load(before)
        if found is None:
            return None
        number, groups = found
        state, beside = dict[str, Arrays](), dict[str, dict[str, Arrays]]()
        for group, arrays in groups.items():
            name, _, rest = group.partition("/")
            if name in BESIDE:
                beside.setdefault(name, {})[rest] = arrays
            else:
                state[group] = arrays
        return Saved(number, state, beside)

    def save(
        self,
        state: Payload,
        server_round: int,
        beside: Mapping[str, Payload] = MappingProxyType({}),
    ) -> None:
        """Save a state; those of this round and of later ones are dropped."""
        for group in state:
            if group.partition("/")[0] in BESIDE:
                raise ContractError(
                    f"state: got the group {group!r}, expected a name that does not "
                    f"begin with {' or '.join(BESIDE)}, as what is kept beside it does"
                )
        kept = {
            f"{name}/{group}": arrays
            for name, groups in beside.items()
            for group, arrays in groups.items()
        }
        self._save({**state, **kept}, server_round)

    @abstractmethod
    def last(self, group: str) -> Arrays:
        """Load a group as it was saved last, in whatever round; empty if it was not.

        A round that is repeated starts from the state before it, but what its first
        attempt has cost is spent.
        """

    @abstractmethod
    def _load(self, before: int) -> tuple[int, Payload] | None: ...

    @abstractmethod
    def _save(self, groups: Payload, server_round: int) -> None: ...


class ContextStateStore(StateStore):
    """Flower's own ``context.state``: kept by the SuperNode, lost with its process.

    In simulation every node's state lies in the driver and travels with each
    message, so that large states of many clients want `FolderStateStore`. It holds one
    version only: a round that is repeated starts from what its first attempt left.
    """

    def __init__(self, context: Context) -> None:
        """Keep states in ``context``."""
        self._context = context

    @override
    def last(self, group: str) -> Arrays:
        found = self._load(sys.maxsize)
        return {} if found is None else found[1].get(group, {})

    @override
    def _load(self, before: int) -> tuple[int, Payload] | None:
        records = self._context.state
        if MANIFEST not in records.config_records:
            return None
        number = int(str(records.config_records[MANIFEST]["round"]))
        # Its own state: old adapters may take more in dense form than a peer may.
        return number, messages.decode_payload(records, max_bytes=sys.maxsize)

    @override
    def _save(self, groups: Payload, server_round: int) -> None:
        records = messages.MessageEncoder().payload(groups)
        records[MANIFEST] = ConfigRecord({"round": server_round})
        if messages.SPEC in self._context.state:
            records[messages.SPEC] = self._context.state[messages.SPEC]
        self._context.state = records


class FolderStateStore(StateStore):
    """A folder with a file for each group and a manifest for each of two versions.

    Its owner alone can read it. A crash at any moment leaves the old state or the new
    one, never a mixture; a damaged file is found by its checksum, and the version
    before it is taken instead. A group is not written again when it is the very object
    that was loaded, and unless ``durable`` not read before it is looked into: a client
    with many old tasks touches the files of those that it works on. A group without
    tensors is a line of the manifest, and has no file.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        """Keep states in ``folder``, one client's own, which need not exist yet.

        ``durable`` forces each file to the disk, so that even a power cut loses
        nothing, and checks every file when loading; a simulation does without.
        """
        self._folder = folder
        self._durable = durable
        self._entries: dict[str, _Entry] = {}
        self._loaded: dict[str, Arrays] = {}

    @override
    def _load(self, before: int) -> tuple[int, Payload] | None:
        damage: WireError | None = None
        for path in reversed(self._manifests()):
            try:
                found = _open_manifest(path)
                if found["round"] >= before:
                    continue
                stored = {
                    group: _StoredArrays(self._folder / entry["file"], entry)
                    for group, entry in found["groups"].items()
                    if entry["tensors"]
                }
                if self._durable:
                    for arrays in stored.values():
                        _ = arrays.arrays  # reads the file
                loaded: dict[str, Arrays] = {
                    group: stored.get(group, {}) for group in found["groups"]
                }
            except WireError as error:
                log(WARNING, "%s; trying the version before", error)
                damage = damage or error
                continue
            self._entries, self._loaded = found["groups"], loaded
            return found["round"], loaded
        if damage is not None:
            raise damage
        return None

    @override
    def _save(self, groups: Payload, server_round: int) -> None:
        make_private_folder(self._folder)
        old = self._manifests()
        number = _number(old[-1]) + 1 if old else 1
        entries = {
            group: self._entries[group]
            if self._loaded.get(group) is arrays
            else self._write(f"{number}-{place}.bin", arrays)
            for place, (group, arrays) in enumerate(groups.items())
        }
        self._name_durably()  # once for all files, before the manifest names them
        text = json.dumps({KEY: FORMAT, "round": server_round, "groups": entries})
        self._replace(
            f"{MANIFEST}{number}", f"{zlib.crc32(text.encode())}\n{text}\n".encode()
        )
        self._name_durably()
        self._entries, self._loaded = entries, dict(groups)
        self._drop_old_versions(
            old, server_round, {entry["file"] for entry in entries.values()}
        )

    @override
    def last(self, group: str) -> Arrays:
        for path in reversed(self._manifests()):
            try:
                entry = _open_manifest(path)["groups"].get(group)
                if entry is None or not entry["tensors"]:
                    return {}
                return dict(_StoredArrays(self._folder / entry["file"], entry))
            except WireError as error:
                log(WARNING, "%s; trying the version before", error)
        return {}

    def drop_earlier(self) -> None:
        """Remove all versions but the last, and what only they hold."""
        *old, last = self._manifests()
        kept = {entry["file"] for entry in _open_manifest(last)["groups"].values()}
        self._drop_old_versions(old, 0, kept)

    def _manifests(self) -> list[Path]:
        names = self._folder.glob(f"{MANIFEST}*")
        whole = [path for path in names if path.name[len(MANIFEST) :].isdecimal()]
        return sorted(whole, key=_number)

    def _drop_old_versions(
        self, old: list[Path], server_round: int, files: set[str]
    ) -> None:
        kept: list[Path] = []
        for path in reversed(old):
            try:
                manifest = _open_manifest(path)
            except WireError:
                continue
            if manifest["round"] < server_round and len(kept) < VERSIONS - 1:
                kept.append(path)
                files |= {entry["file"] for entry in manifest["groups"].values()}
        dead = set(old).difference(kept)
        for path in self._folder.iterdir():
            stray = path.suffix in {".bin", ".new"} and path.name not in files
            if stray or path in dead:
                path.unlink()

    def _write(self, file: str, arrays: Arrays) -> _Entry:
        encoded = {name: encode(tensor, copy=False) for name, tensor in arrays.items()}
        content = [one.data for one in encoded.values()]
        if encoded:
            self._replace(file, *content)
        tensors = [
            (name, e.dtype, list(e.shape), e.form, len(e.data))
            for name, e in encoded.items()
        ]
        checksum = 0
        for data in content:
            checksum = zlib.crc32(data, checksum)
        return {"file": file, "checksum": checksum, "tensors": tensors}

    def _replace(self, name: str, *content: Bytes) -> None:
        path = self._folder / name
        replace_file(path, *content, private=True, durable=self._durable)

    def _name_durably(self) -> None:
        if self._durable:
            sync_folder(self._folder)


class _StoredArrays(Mapping[str, AnyArray]):
    def __init__(self, path: Path, entry: _Entry) -> None:
        if not path.exists():
            raise WireError(f"state: {path} is missing")
        self._path = path
        self._entry = entry

    @override
    def __getitem__(self, name: str) -> AnyArray:
        return self.arrays[name]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    @override
    def __len__(self) -> int:
        return len(self._entry["tensors"])

    @cached_property
    def arrays(self) -> dict[str, AnyArray]:
        content = memoryview(self._path.read_bytes())
        if zlib.crc32(content) != self._entry["checksum"]:
            raise WireError(f"state: {self._path} is damaged")
        arrays: dict[str, AnyArray] = {}
        start = 0
        for name, dtype, shape, form, size in self._entry["tensors"]:
            data = content[start : start + size]
            arrays[name] = decode(Encoded(dtype, tuple(shape), form, data))
            start += size
        return arrays


def _number(manifest: Path) -> int:
    return int(manifest.name[len(MANIFEST) :])


def _open_manifest(path: Path) -> _Manifest:
    checksum, _, text = path.read_bytes().partition(b"\n")
    if checksum != str(zlib.crc32(text.removesuffix(b"\n"))).encode():
        raise WireError(f"state: {path} is damaged")
    found: _Manifest = json.loads(text)
    check_format(path, found.get(KEY, 1), FORMAT)
    return found
