"""Which client each registered key belongs to: the server's list, read by its runs.

Flower gives a node's id to a key, once and for good. A key is a client's by the name of
its file, ``client-3.pub``.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fcl_flower.core.errors import WireError
from fcl_flower.storage.private import opener

VARIABLE = "FCL_CLIENT_NUMBERS"
"""Of the environment, by which a run knows where the list is; unset without keys."""

_KEY_FILE = re.compile(r"client-(\d+)\.pub")


class ClientNumbers:
    """A file with the client of each node by its id."""

    def __init__(self, path: Path) -> None:
        """Keep them in ``path``, which need not be there yet."""
        self._path = path

    def bind(self, node: int, key: Path) -> None:
        """Note that a node has a client's key; nothing where the file names none."""
        if named := _KEY_FILE.fullmatch(key.name):
            temporary = self._path.with_suffix(".new")
            with open(temporary, "w", opener=opener) as file:
                json.dump({**self.read(), node: int(named[1])}, file)
            temporary.replace(self._path)

    def has(self, key: Path) -> bool:
        """Return whether a node is known that has a client's key."""
        named = _KEY_FILE.fullmatch(key.name)
        return named is not None and int(named[1]) in self.read().values()

    def read(self) -> Mapping[int, int]:
        """Return the clients by node."""
        if not self._path.exists():
            return {}
        kept: dict[str, int] = json.loads(self._path.read_text())
        return {int(node): client for node, client in kept.items()}


def by_key() -> Mapping[int, int]:
    """Return the clients by node, as far as keys tell: of none, as in a simulation."""
    path = os.environ.get(VARIABLE)
    return ClientNumbers(Path(path)).read() if path else {}


def check_claim(node: int, client: int) -> None:
    """Refuse a number that belongs to another's key.

    Without a list, as in a simulation, or for a node of which it knows nothing, every
    number is free that is no other key's.

    Args:
        node: its id, which Flower has given to its key.
        client: the number that it claims.

    Raises:
        WireError: the node has another client's key, or another node has the client's.
    """
    numbers = by_key()
    own = numbers.get(node)
    if own is None and client in numbers.values():
        raise WireError(f"claims to be client {client}, whose key it has not")
    if own not in (None, client):
        raise WireError(f"has the key of client {own}, but claims to be {client}")
