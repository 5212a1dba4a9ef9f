"""Stores that keep a state between two messages, or two runs of a process.

Both sides use it: a client for its private state, the server for its checkpoint.
"""

import io
import json
import struct
import sys
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping
from logging import WARNING
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypedDict

from typing_extensions import override

from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.files import make_private_folder, replacing, sync_folder
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.core.log import log
from fcl_flower.core.types import Arrays, Payload, group_kind
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import encode
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.stored import (
    Entry,
    File,
    StoredArrays,
    size_of,
    write_group,
)

MANIFEST = "manifest-"
FORMAT: Final = 3
"""The format of a manifest and of the files that it names."""
_MAGIC: Final = b"fcl-flower state\n"
"""The beginning of each file."""
_END: Final = struct.Struct("<QI")
"""The end of a file: the length of the manifest before it, and its checksum."""
VERSIONS = 2
"""The number of states that are kept: a repeated round starts from the one before."""
BESIDE: Final = ("asked", "copies", "classes")
"""The beginnings of names of groups beside an algorithm's state: pending requests,
copies of models with what rounding has left, and the classes of a client's files."""


class Saved(NamedTuple):
    """The state that was saved in a round, and the groups that `BESIDE` names."""

    round: int
    state: Payload
    beside: Mapping[str, Payload] = MappingProxyType({})


class _Manifest(TypedDict):
    round: int
    groups: dict[str, Entry]


def stored_bytes(group: str, arrays: Arrays) -> int:
    """Count the bytes that a group has in a store, by encoding it."""
    return sum(len(encode(tensor).data) for tensor in arrays.values())


class StateStore(ABC):
    """Keeps states, always at full precision."""

    def load(self, before: int = sys.maxsize) -> Saved | None:
        """Load the last state of a round earlier than ``before``, if there is one."""
        loaded = self._load(before)
        if loaded is None:
            return None
        number, groups = loaded
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
        """Save a state; drop the states of this round and of later ones."""
        for group in state:
            if group.partition("/")[0] in BESIDE:
                raise ContractError(
                    f"state: got the group {group!r}, expected a name that does not "
                    f"begin with {' or '.join(BESIDE)}, as what is kept beside it does"
                )
        others = {
            f"{name}/{group}": arrays
            for name, groups in beside.items()
            for group, arrays in groups.items()
        }
        self._save({**state, **others}, server_round)

    def on_disk(self, state: Payload, kinds: Collection[str]) -> Payload:
        """Release the tensors of groups of some kinds, where they can be read again.

        ``state`` was loaded or saved last. Each look at a tensor of these groups in the
        returned state reads it.
        """
        return state

    def size(self, group: str, arrays: Arrays) -> int:
        """Count the bytes that a group has in this store, or would have."""
        return stored_bytes(group, arrays)

    @abstractmethod
    def last(self, group: str) -> Arrays:
        """Load a group as it was saved last, in whatever round; empty if it was not.

        A repeated round starts from the state before it, but the cost of its first
        attempt is spent.
        """

    @abstractmethod
    def _load(self, before: int) -> tuple[int, Payload] | None: ...

    @abstractmethod
    def _save(self, groups: Payload, server_round: int) -> None: ...


class MemoryStateStore(StateStore):
    """The memory of a client whose node has no folder; it is lost with its program.

    In Flower's simulation each client's state lies in the driver and travels with each
    message: large states of many clients need `FolderStateStore`. The memory holds one
    version only, so that a repeated round starts from the state of its first attempt.
    """

    def __init__(self, place: Place) -> None:
        """Keep states in the memory of a client's place."""
        self._place = place

    @override
    def last(self, group: str) -> Arrays:
        loaded = self._load(sys.maxsize)
        return {} if loaded is None else loaded[1].get(group, {})

    @override
    def _load(self, before: int) -> tuple[int, Payload] | None:
        content = self._place.state
        if MANIFEST not in content.scalars:
            return None
        number = int(str(content.scalars[MANIFEST]["round"]))
        # Old adapters of the client's state may claim more than a peer's tensors may.
        return number, messages.decode_payload(content, max_bytes=sys.maxsize)

    @override
    def _save(self, groups: Payload, server_round: int) -> None:
        content = messages.MessageEncoder().payload(groups)
        content.scalars[MANIFEST] = {"round": server_round}
        for name in (messages.SPEC, messages.NUMBER):
            if name in self._place.state.scalars:
                content.scalars[name] = self._place.state.scalars[name]
        self._place.state = content


class FolderStateStore(StateStore):
    """A folder with a file for each of two versions, and for their older groups.

    A file has the groups that had changed, and then a manifest. The manifest says where
    each group of the version lies: in this file or in an earlier one. When less than
    half of an earlier file is in use, the groups in use are copied and the file goes.

    Only its owner can read the folder. A crash at any moment leaves the old state or
    the new one, never a mixture. A checksum shows a damaged file, and the version
    before it is loaded instead. A group that is the loaded object is not encoded again.
    Unless ``durable``, a group is not read before its first use: a client with many old
    tasks reads only those that it works on. A group without tensors is a line of the
    manifest.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        """Keep states in ``folder``, which need not exist yet.

        ``durable`` forces each file to the disk, so that even a power cut loses
        nothing, and checks every group when loading. A simulation needs neither.
        """
        self._folder = folder
        self._durable = durable
        self._entries: dict[str, Entry] = {}
        self._loaded: dict[str, Arrays] = {}

    @override
    def _load(self, before: int) -> tuple[int, Payload] | None:
        damage: WireError | None = None
        for path in reversed(self._manifests()):
            try:
                file = File.opened(path)
                manifest = _manifest(file)
                if manifest["round"] >= before:
                    continue
                self._loaded = self._stored(manifest["groups"], {path.name: file})
            except WireError as error:
                log(WARNING, "%s; trying the version before", error)
                damage = damage or error
                continue
            self._entries = manifest["groups"]
            return manifest["round"], self._loaded
        if damage is not None:
            raise damage
        return None

    def _stored(
        self, entries: Mapping[str, Entry], files: dict[str, File]
    ) -> dict[str, Arrays]:
        loaded = dict[str, Arrays]()
        for group, entry in entries.items():
            if not entry["tensors"]:
                loaded[group] = {}
                continue
            loaded[group] = stored = StoredArrays(self._file(entry, files), entry)
            if self._durable:
                stored.encoded()  # refuses a damaged group
        return loaded

    def _file(self, entry: Entry, files: dict[str, File]) -> File:
        """Find the file of a group among those that are open, or open it."""
        name = entry["file"]
        if name not in files:
            files[name] = File.opened(self._folder / name)
        return files[name]

    @override
    def _save(self, groups: Payload, server_round: int) -> None:
        old = self._manifests()
        if not old:
            make_private_folder(self._folder)
        number = _number(old[-1]) + 1 if old else 1
        unchanged = {
            group: self._entries[group]
            for group, arrays in groups.items()
            if self._loaded.get(group) is arrays
        }
        self._write(number, groups, server_round, unchanged, _wasteful(unchanged))
        self._drop_old_versions(number, old, server_round)

    @override
    def on_disk(self, state: Payload, kinds: Collection[str]) -> Payload:
        files, moved = dict[str, File](), dict[str, Arrays]()
        for group, arrays in state.items():
            entry = self._entries[group]
            if group_kind(group) not in kinds or not entry["tensors"]:
                continue
            match arrays:
                case StoredArrays(held=False, entry=found) if found is entry:
                    continue
            moved[group] = StoredArrays(self._file(entry, files), entry, held=False)
        self._loaded |= moved
        return {**state, **moved}

    @override
    def size(self, group: str, arrays: Arrays) -> int:
        if self._loaded.get(group) is arrays:
            return size_of(self._entries[group])
        return super().size(group, arrays)

    @override
    def last(self, group: str) -> Arrays:
        for path in reversed(self._manifests()):
            try:
                entry = _manifest(File.opened(path))["groups"].get(group)
                if entry is None or not entry["tensors"]:
                    return {}
                return dict(StoredArrays(self._file(entry, {}), entry))
            except WireError as error:
                log(WARNING, "%s; trying the version before", error)
        return {}

    def drop_earlier(self) -> None:
        """Remove all versions but the last one, and the groups that only they have."""
        last = self._manifests()[-1]
        number, saved_round = _number(last) + 1, _manifest(File.opened(last))["round"]
        given_up = {entry["file"] for entry in self._entries.values()}
        self._write(number, self._loaded, saved_round, self._entries, given_up)
        self._drop_old_versions(number, [], 0)

    def _manifests(self) -> list[Path]:
        # An earlier file may be there, since a later version uses some of its groups.
        paths = filter(_number, self._folder.glob(f"{MANIFEST}*"))
        return sorted(paths, key=_number)[-VERSIONS:]

    def _drop_old_versions(
        self, number: int, old: list[Path], server_round: int
    ) -> None:
        needed = {f"{MANIFEST}{number}"} | _files(self._entries)
        for path in reversed(old):
            try:
                manifest = _manifest(File.opened(path))
            except WireError:
                continue
            if manifest["round"] < server_round:  # the last one that is
                needed |= {path.name} | _files(manifest["groups"])
                break
        for path in self._folder.iterdir():
            ours = path.suffix == ".new" or _number(path)
            if ours and path.name not in needed:
                path.unlink()

    def _write(
        self,
        number: int,
        groups: Payload,
        server_round: int,
        unchanged: Mapping[str, Entry],
        given_up: Collection[str],
    ) -> None:
        name, entries = f"{MANIFEST}{number}", dict[str, Entry]()
        written: dict[int, Entry] = {}
        path = self._folder / name
        with replacing(path, private=True, durable=self._durable) as file:
            file.write(_MAGIC)
            for group, arrays in groups.items():
                earlier = unchanged.get(group)
                if earlier is not None and earlier["file"] not in given_up:
                    entries[group] = earlier
                    continue
                if id(arrays) not in written:  # a group may have two names
                    source = arrays
                    if earlier is not None:
                        source = StoredArrays(self._file(earlier, {}), earlier)
                    written[id(arrays)] = {**write_group(file, source), "file": name}
                entries[group] = written[id(arrays)]
            for entry in written.values():
                entry["of"] = file.tell() - len(_MAGIC)
            manifest = {KEY: FORMAT, "round": server_round, "groups": entries}
            text = json.dumps(manifest).encode()
            file.write(text)
            file.write(_END.pack(len(text), zlib.crc32(text)))
        if self._durable:
            sync_folder(self._folder)
        self._entries, self._loaded = entries, dict(groups)


def _files(entries: Mapping[str, Entry]) -> set[str]:
    return {entry["file"] for entry in entries.values() if entry["tensors"]}


def _wasteful(entries: Mapping[str, Entry]) -> set[str]:
    """Name the files of which less than half is in use by these groups."""
    groups = {(e["file"], e["start"]): e for e in entries.values()}
    used = Counter[str]()
    for entry in groups.values():
        used[entry["file"]] += size_of(entry)
    return {
        entry["file"]
        for entry in groups.values()
        if 2 * used[entry["file"]] < entry["of"]
    }


def _number(path: Path) -> int:
    """Read the number of a manifest, from 1; 0 of any other file."""
    name, _, number = path.name.rpartition("-")
    return int(number) if name == MANIFEST[:-1] and number.isdecimal() else 0


def _manifest(file: File) -> _Manifest:
    if file.read(0, len(_MAGIC)) != _MAGIC:
        raise WireError(f"state: {file.name} is damaged")
    end = file.content.seek(0, io.SEEK_END) - _END.size
    length, checksum = _END.unpack(file.read(end, _END.size))
    length = min(length, end)  # if it is damaged, any number
    text = file.read(end - length, length)
    if zlib.crc32(text) != checksum:
        raise WireError(f"state: {file.name} is damaged")
    manifest: _Manifest = json.loads(text)
    check_format(file.name, manifest.get(KEY), FORMAT)
    return manifest
