"""The members of a federation, as its server's machine knows them."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from fcl_flower.core.files import replace_file
from fcl_flower.rounds.clients import ClientNumbers
from fcl_flower.rounds.roll import Member, read_roll

HOME: Final = "flower"
"""Folder of Flower's settings, in the folder of a server's state."""
NUMBERS: Final = "client-numbers.json"
KEYS: Final = "client-keys.json"
"""The file with the names of the clients whose keys are let in, by number."""


class Row(NamedTuple):
    """A client in the list for a user; the time is in UTC, None for never."""

    number: int
    name: str
    state: str
    seen: datetime | None
    version: str
    tasks: int | None


def write_keys(state: Path, folder: Path) -> None:
    """Note the clients with keys in a folder; their names are the keys' comments."""
    names = {}
    for path in sorted(folder.glob("client-*.pub")):
        number = path.stem.removeprefix("client-")
        if number.isdecimal():
            comment = path.read_text(errors="replace").split(maxsplit=2)[2:]
            names[int(number)] = " ".join(comment).strip() or path.stem
    replace_file(state / KEYS, json.dumps(names), private=True)


def membership(state: Path, nodes: Iterable[Mapping[str, str]]) -> list[Row]:
    """List the clients of the server with this folder for its state.

    The nodes of the SuperLink count more than the notes of a run.

    Args:
        state: the folder.
        nodes: the rows of ``flwr supernode list``; none if no server answers.
    """
    numbers, roll = ClientNumbers(state / NUMBERS).read(), read_roll(state)
    keys: dict[str, str] | None = None
    if (state / KEYS).is_file():
        keys = json.loads((state / KEYS).read_text())
    client_of = {member.node: c for c, member in roll.items()} | {**numbers}
    by_client = {client_of.get(int(node["node-id"])): node for node in nodes}
    rows = []
    for client in sorted({*roll, *numbers.values(), *map(int, keys or ())}):
        member = roll.get(client, Member())
        name = (keys or {}).get(str(client), f"client-{client}")
        gone = keys is not None and str(client) not in keys
        shown, seen = _state(member, by_client.get(client, {}), gone=gone)
        rows.append(Row(client, name, shown, seen, member.version, member.tasks))
    return rows


def _state(
    member: Member, node: Mapping[str, str], *, gone: bool
) -> tuple[str, datetime | None]:
    seen = datetime.fromtimestamp(member.seen, UTC)
    last = seen if member.seen else None
    since = node.get("offline-at", "")
    if since and since != "N/A":
        last = max(datetime.fromisoformat(since), seen)
    if gone:
        return "left: its key is gone", last
    if node.get("status") == "online":
        shown = f"refused: {member.refused}" if member.refused else "connected"
        return shown, datetime.now(UTC)
    return ("never seen" if last is None else "away"), last
