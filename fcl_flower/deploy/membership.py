"""Who belongs to a federation, as its server's machine knows it."""

import datetime
import json
from pathlib import Path
from typing import Final, NamedTuple

from fcl_flower.core.errors import RoundError, config_error
from fcl_flower.core.files import replace_file
from fcl_flower.deploy import commands
from fcl_flower.rounds.clients import ClientNumbers
from fcl_flower.rounds.roll import Member, read_roll

NUMBERS: Final = "client-numbers.json"
KEYS: Final = "client-keys.json"
"""Names of the clients whose keys are let in, by number."""
HOME: Final = "flower"
OBJECTS: Final = "objects"
"""Large contents of messages on their way, beside the database that knows of them."""


class Row(NamedTuple):
    """A client as a user sees it; times in UTC."""

    number: int
    name: str
    state: str
    seen: datetime.datetime | None
    version: str
    tasks: int | None


def write_keys(state: Path, folder: Path) -> None:
    """Note whose keys are in a folder, with the comments of the keys as names."""
    found = {}
    for path in sorted(folder.glob("client-*.pub")):
        number = path.stem.removeprefix("client-")
        if number.isdecimal():
            comment = path.read_text(errors="replace").split(maxsplit=2)[2:]
            found[int(number)] = " ".join(comment).strip() or path.stem
    replace_file(state / KEYS, json.dumps(found), private=True)


def membership(state: Path) -> tuple[list[Row], str]:
    """List the clients of the server with this folder; say what is not known.

    What the SuperLink knows now counts more than what a run has noted.

    Raises:
        ConfigError: the folder is not that of a server.
    """
    home = state / HOME
    if not (home / "config.toml").is_file():
        expected = "the --state folder of fcl server"
        raise config_error("state", str(state), expected)
    numbers = ClientNumbers(state / NUMBERS).read()
    roll, nodes, unknown = read_roll(state), dict[int, dict[str, str]](), ""
    try:
        listed = commands.flwr(home, "supernode", "list", commands.SUPERLINK)["nodes"]
        nodes = {int(node["node-id"]): node for node in listed}
    except RoundError:
        unknown = "the server does not answer: this is what it knew last"
    keys: dict[str, str] | None = None
    if (state / KEYS).is_file():
        keys = json.loads((state / KEYS).read_text())
    of_node = {**{member.node: c for c, member in roll.items()}, **numbers}
    by_client = {of_node[n]: node for n, node in nodes.items() if n in of_node}
    every = {*roll, *numbers.values(), *map(int, keys or ())}
    rows = []
    for client in sorted(every):
        member, node = roll.get(client, Member()), by_client.get(client, {})
        name = (keys or {}).get(str(client), f"client-{client}")
        gone = keys is not None and str(client) not in keys
        state_, seen = _state(member, node, gone=gone)
        rows.append(Row(client, name, state_, seen, member.version, member.tasks))
    return rows, unknown


def _state(
    member: Member, node: dict[str, str], *, gone: bool
) -> tuple[str, datetime.datetime | None]:
    seen = datetime.datetime.fromtimestamp(member.seen, datetime.UTC)
    last = seen if member.seen else None
    since = node.get("offline-at", "")
    if since and since != "N/A":
        last = max(datetime.datetime.fromisoformat(since), seen)
    if node.get("status") == "online" and not gone:
        last = datetime.datetime.now(datetime.UTC)
        if member.refused:
            return f"refused: {member.refused}", last
        return "connected", last
    if gone:
        return "left: its key is gone", last
    return ("never seen" if last is None else "away"), last


def shown(time: datetime.datetime | None) -> str:
    """Write a time for people."""
    return "" if time is None else time.strftime("%Y-%m-%d %H:%M:%S UTC")
