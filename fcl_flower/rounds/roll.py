"""The server's last knowledge of each client: a small file for `fcl clients`."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fcl_flower.core.files import replace_file

FILE: Final = "clients.json"
"""The file in a server's ``--state`` folder, beside the list of clients' nodes."""
WRITE_SECONDS: Final = 5.0
"""Seconds between two writings that say no more than that clients are still there."""
LONGEST: Final = 200
"""The most characters of a client's version or of a reason."""


class Member(BaseModel):
    """One client.

    Attributes:
        node: Flower's number of its program.
        version: of its software; empty where unknown.
        tasks: number of its tasks of local data; None where unknown, or without any.
        seen: when it was connected last, in seconds since 1970; 0 for never.
        refused: why a run goes on without it; empty where it takes part.
    """

    model_config = ConfigDict(frozen=True)

    node: int = 0
    version: str = ""
    tasks: int | None = None
    seen: float = 0.0
    refused: str = ""


_MEMBERS: Final = TypeAdapter(dict[int, Member])


def read_roll(state: Path) -> dict[int, Member]:
    """Read the clients by number; none where no run has begun, or the file is torn."""
    try:
        return _MEMBERS.validate_json((state / FILE).read_bytes())
    except (OSError, ValidationError):
        return {}


class Roll:
    """Keeps the file; used by the server of a run."""

    def __init__(self, state: Path) -> None:
        """Go on with the file in the folder, if there is one."""
        self._file, self._members = state / FILE, read_roll(state)
        self._written = -math.inf

    def met(self, client: int, node: int, answer: Mapping[str, object]) -> None:
        """Note a client's answer to the greeting."""
        tasks = answer.get("tasks")
        self._members[client] = Member(
            node=node,
            version=_printable(str(answer.get("version", ""))),
            tasks=tasks if type(tasks) is int and tasks >= 0 else None,
            seen=time.time(),
        )
        self._written = -math.inf

    def note(self, connected: Mapping[int, int], refused: Mapping[int, str]) -> None:
        """Note the node of each connected client, and why others are refused."""
        for client, node in connected.items():
            self._change(client, node=node, seen=time.time())
        for client, reason in refused.items():
            before = self._members.get(client)
            self._change(client, refused=_printable(reason))
            if before is None or before.refused != self._members[client].refused:
                self._written = -math.inf
        now = time.monotonic()
        if self._members and now - self._written >= WRITE_SECONDS:
            self._written = now
            members = _MEMBERS.dump_json(dict(sorted(self._members.items())), indent=1)
            replace_file(self._file, members, private=True)

    def _change(self, client: int, **changes: object) -> None:
        member = self._members.get(client, Member())
        self._members[client] = member.model_copy(update=changes)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:LONGEST])
