"""The node that speaks for each client, as nodes come, go and return."""

import json
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from logging import INFO, WARNING
from pathlib import Path

from fcl_flower import __version__
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import BEGINS, WAITING, RoundError, WireError
from fcl_flower.core.failures import NOT_CONNECTED
from fcl_flower.core.files import replace_file
from fcl_flower.core.log import log
from fcl_flower.rounds import mailbox, messages
from fcl_flower.rounds.given_numbers import NUMBERS_FILE, GivenNumbers
from fcl_flower.rounds.roll import Roll
from fcl_flower.rounds.transport import QUERY, Content, Reply, Request, Transport

PROTOCOL = 7
"""Raised with every change of the messages that the other side would not understand."""


def own() -> dict[str, str | int]:
    """Describe a client when it meets a server."""
    return {"version": __version__, "protocol": PROTOCOL}


def check(said: Mapping[str, object]) -> None:
    """Let in a client of this protocol, whatever its version."""
    if said.get("protocol") != PROTOCOL:
        version = said.get("version", "of an earlier version")
        raise WireError(
            f"runs fcl-flower {version} with protocol {said.get('protocol', 0)}, "
            f"expected protocol {PROTOCOL} as in the server's {__version__}: install "
            "the same version there"
        )


VARIABLE = "FCL_CLIENT_NUMBERS"
"""The environment variable with the path of that file; unset without keys."""

_KEY_FILE = re.compile(r"client-(\d+)\.pub")


class ClientNumbers:
    """A file with the client of each node by its id."""

    def __init__(self, path: Path) -> None:
        """Keep them in ``path``, which need not be there yet."""
        self._path = path

    def bind(self, node: int, key: Path) -> None:
        """Note that a node has a client's key; nothing where the file names none."""
        if named := _KEY_FILE.fullmatch(key.name):
            found = {**self.read(), node: int(named[1])}
            replace_file(self._path, json.dumps(found), private=True)

    def has(self, key: Path) -> bool:
        """Tell whether a node is known that has a client's key."""
        named = _KEY_FILE.fullmatch(key.name)
        return named is not None and int(named[1]) in self.read().values()

    def read(self) -> Mapping[int, int]:
        """Read the clients by node."""
        if not self._path.exists():
            return {}
        kept: dict[str, int] = json.loads(self._path.read_text())
        return {int(node): client for node, client in kept.items()}


def server_state() -> Path | None:
    """Name the folder of the server's state; None in a simulation."""
    path = os.environ.get(VARIABLE)
    return Path(path).parent if path else None


def by_key() -> Mapping[int, int]:
    """Read the clients by node, as far as keys tell; in a simulation there are none."""
    path = os.environ.get(VARIABLE)
    return ClientNumbers(Path(path)).read() if path else {}


def check_claim(node: int, client: int) -> None:
    """Refuse a number that belongs to another's key.

    Without a list, as in a simulation, or for a node of which it knows nothing, every
    number is free that is no other key's.
    """
    numbers = by_key()
    own = numbers.get(node)
    if own is None and client in numbers.values():
        raise WireError(f"claims to be client {client}, whose key it has not")
    if own not in (None, client):
        raise WireError(f"has the key of client {own}, but claims to be {client}")


RETURN_SECONDS = 5.0
"""Seconds until a node that gave no sign of life is asked again."""
GREETING_SECONDS = 120.0
"""Seconds that a node may take to name its client: Flower starts Python for that."""
RETRY_SECONDS = 30.0
"""Seconds until a node that did not name its client is asked again."""
NOTICE_SECONDS = 10.0
"""Seconds between two lines of the log about clients that are missing at first."""


class ClientRegistry:
    """Knows the node of each client; a client's name for good is its number.

    A node is asked for its number when it connects. It has one of its own, as its
    configuration says, or gets one here. Only `wait_for_clients`, before the first
    round, waits for the answer.

    Attributes:
        transport: reaches the nodes.
    """

    def __init__(
        self, transport: Transport, clients: int = 0, numbers: Path | None = None
    ) -> None:
        """Create a registry without clients.

        Those with numbers below ``clients`` are wanted; 0 for all that connect before
        the first round. ``numbers`` is the file with those that an earlier server of
        the run has given.
        """
        self.transport = transport
        self._numbers = GivenNumbers(numbers)
        self._clients = clients
        self._connected: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._mailbox = mailbox.Mailbox(transport, GREETING_SECONDS)
        self._asked: set[int] = set()
        self._unnumbered = set[int]()
        self._not_before: dict[int, float] = {}
        self._refused: dict[int, str] = {}
        self._liars = set[int]()
        self._without = frozenset[int]()
        self._begin = mailbox.in_thread if transport.blocking else mailbox.at_once
        self._listing: Future[Iterable[int]] | None = None
        self._listed = frozenset[int]()
        self._spec = ""
        self._outsiders: dict[int, str] = {}
        path = os.environ.get(VARIABLE)
        self._roll = Roll(Path(path).parent) if path else None

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that are connected, ascending."""
        return tuple(sorted(self._connected))

    @property
    def here(self) -> frozenset[int]:
        """Clients that are connected, or are told the run again."""
        asked = (self._known[node] for node in self._asked if node in self._known)
        return frozenset([*self._connected, *asked])

    def node(self, client: int) -> int:
        """Look up the node of a client that is connected."""
        return self._connected[client]

    def client(self, node: int) -> int:
        """Look up the client of a node that is, or was, connected."""
        return self._known[node]

    def why_absent(self, client: int) -> str:
        """Say why a client is not connected: what its key's node was refused for."""
        keys = by_key()
        of_its_key = (
            w for node, w in self._refused.items() if keys.get(node) == client
        )
        return next(of_its_key, NOT_CONNECTED)

    def wait_for_clients(
        self, least: int, timeout: float, without: Collection[int] = ()
    ) -> None:
        """Wait for all clients; after ``timeout`` seconds ``least`` are enough.

        Those ``without`` data for what is learned next may stay away.
        They are, too, where each of the others is there and refused for what it says:
        nobody else has its key, and it can hold up a run for no longer than it answers.

        Raises:
            RoundError: fewer came; the message says who was refused, and why.
        """
        deadline = time.monotonic() + timeout
        self._without = frozenset(without)
        notice = time.monotonic() + NOTICE_SECONDS
        while True:
            self.refresh()
            if time.monotonic() > notice:
                notice += NOTICE_SECONDS
                log(INFO, f"{WAITING} %s", self._who_is_missing())
            here = len(self._connected)
            enough = here >= (least if self._missing() else 1)
            if enough and not (self._asked or self._unnumbered or self._awaited()):
                break
            if time.monotonic() > deadline:
                if here >= least:
                    break
                refused = [f"; node {n} {why}" for n, why in self._refused.items()]
                raise RoundError(
                    f"clients: {list(self.clients)} of {self._clients or 'any'} "
                    f"connected in time, expected at least {least}{''.join(refused)}"
                )
            self._mailbox.pause()
        self._clients = self._clients or len(self._connected)
        log(INFO, f"{BEGINS} clients %s", ", ".join(map(str, self.clients)))

    def _who_is_missing(self) -> str:
        keys = by_key()
        silent = {keys.get(node) for node in self._asked}
        missing = [
            f"{n} ({'has not answered yet' if n in silent else self.why_absent(n)})"
            for n in sorted(self._missing())
        ]
        here = ", ".join(map(str, self.clients)) or "nobody"
        asked = len(self._asked)
        answers = f"; {asked} nodes have not answered yet" if asked else ""
        return f"{', '.join(missing) or 'that may come'}; here: {here}{answers}"

    def _missing(self) -> set[int]:
        return set(range(self._clients)) - self._connected.keys() - self._without

    def _awaited(self) -> set[int]:
        keys = by_key()
        return self._missing() - {keys[node] for node in self._liars if node in keys}

    def mark_gone(self, node: int) -> None:
        """Note that a node is gone, though it is still listed; ask it again later.

        A node that comes back within the transport's patience keeps its number.
        """
        for client in [c for c, known in self._connected.items() if known == node]:
            log(WARNING, "client %d gives no sign of life", client)
            del self._connected[client]
            self._not_before[node] = time.monotonic() + RETURN_SECONDS

    def open(self, reply: Reply) -> Content:
        """Open a reply; note that its node is gone, or has to be told the run again."""
        if mailbox.is_gone(reply):
            self.mark_gone(reply.node)
        content = reply.content
        if messages.reports_run_unknown(content):
            self.greet_again(reply.node)
        return content

    def keep_numbers(self, folder: Path) -> None:
        """Keep the numbers that are given to nodes in the folder of a run."""
        self._numbers.keep(folder / NUMBERS_FILE)

    @property
    def told(self) -> str:
        """The specification of the run as clients are told it now, as JSON."""
        return self._spec

    def announce(self, spec: RunSpec) -> None:
        """Tell the run to all clients from now on: who is connected is asked again."""
        self._spec = spec.to_json()
        self._connected.clear()

    def tell(self, spec: RunSpec) -> str:
        """Tell what has become of the run to who connects from now on; return it."""
        self._spec = spec.to_json()
        return self._spec

    def greet_again(self, node: int) -> None:
        """Tell the run to a node that no longer knows it, before it is asked more."""
        for client in [c for c, known in self._connected.items() if known == node]:
            log(WARNING, "client %d no longer knows the run, and is told again", client)
            del self._connected[client]
            self._ask([node])

    def _ask(self, nodes: Iterable[int], numbers: Mapping[int, int] = {}) -> None:
        asked = list(nodes)
        self._asked.update(asked)
        self._mailbox.send(
            Request(node, QUERY, messages.greeting(self._spec, numbers.get(node)))
            for node in asked
        )

    def refresh(self) -> None:
        """Note who has come and gone.

        Who claims a number that is taken stays out for as long as the other is there.
        """
        online = self._online()
        for client in [c for c, node in self._connected.items() if node not in online]:
            log(WARNING, "client %d has disconnected", client)
            del self._connected[client]
        self._refused = {n: why for n, why in self._refused.items() if n in online}
        self._liars &= self._refused.keys()
        now = time.monotonic()
        self._ask(
            node
            for node in sorted(
                online.difference(
                    self._connected.values(), self._asked, self._unnumbered
                )
            )
            if now >= self._not_before.get(node, 0)
        )
        self._collect_ids(now)
        if self._roll is not None:
            keys = by_key()
            named = {keys[n]: why for n, why in self._refused.items() if n in keys}
            here = self._connected.keys()
            refused = {c: why for c, why in named.items() if c not in here}
            self._roll.note(self._connected, refused | self._outsiders)

    def _online(self) -> frozenset[int]:
        # Over a network the call retries without end where its server does not
        # answer: it goes on beside the rounds, which do with what was said before.
        if self._listing is None:
            self._listing = self._begin(self.transport.nodes)
        wait([self._listing], mailbox.POLL_TIMEOUT)
        if self._listing.done():
            said, self._listing = self._listing, None
            self._listed = frozenset(said.result())
        return self._listed

    def _collect_ids(self, now: float) -> None:
        claims: dict[int, int] = {}
        told: dict[int, Mapping[str, object]] = {}
        for reply in self._mailbox.collect():
            node = reply.node
            self._asked.discard(node)
            self._liars.discard(node)
            # A peer's content may break what reads it in any way.
            try:
                said = reply.content.scalars["who"]
                claimed = _claimed(said)
                if claimed is None:
                    if messages.told_number(reply.request.content) is not None:
                        raise WireError("does not take the number that it is given")
                    self._unnumbered.add(node)
                    continue
                check_claim(node, claimed)
                claims[node], told[node] = claimed, said
            except Exception as error:
                gone = mailbox.is_gone(reply)
                if reply.problem is None:
                    self._liars.add(node)
                later = RETURN_SECONDS if gone else RETRY_SECONDS
                self._refuse(node, mailbox.reason(error), now + later)
        for node, client in sorted(claims.items()):
            if self._clients and client >= self._clients:
                log(WARNING, "client %d is not one of %d", client, self._clients)
                self._not_before[node] = math.inf
                self._outsiders[client] = (
                    f"the run has {self._clients} clients; --resume with more "
                    "--clients takes it in"
                )
                self._meet(client, node, told[node])
            elif client in self._connected:
                why = f"claims to be client {client}, which another is already"
                self._refuse(node, why, now + RETRY_SECONDS)
            else:
                log(INFO, "client %d has connected", client)
                self._connected[client], self._known[node] = node, client
                self._refused.pop(node, None)
                self._meet(client, node, told[node])
        self._unnumbered &= self._listed
        if not self._asked:  # so that their order is not that of their answers
            nodes, self._unnumbered = self._unnumbered, set()
            self._give_numbers(sorted(nodes), now)

    def _give_numbers(self, nodes: Iterable[int], now: float) -> None:
        """Number nodes that have no number, and ask them again."""
        keys = by_key()
        taken, given = {*self._connected, *keys.values()}, dict[int, int]()
        for node in nodes:
            number = keys.get(node)
            if number is None:
                number = self._numbers.give(node, taken, self._clients)
            if number is None:
                or_keys = " or have keys" if keys else ""
                why = f"has no number: all {self._clients} clients of the run are here"
                self._refuse(node, why + or_keys, now + RETRY_SECONDS)
                continue
            given[node] = number
            taken.add(number)
        if given:
            self._ask(given, given)

    def _meet(self, client: int, node: int, said: Mapping[str, object]) -> None:
        if self._roll is not None:
            self._roll.met(client, node, said)

    def _refuse(self, node: int, why: str, until: float) -> None:
        log(WARNING, "node %d left out: %s", node, why)
        self._refused[node], self._not_before[node] = why, until


def _claimed(said: Mapping[str, object]) -> int | None:
    """Read the number that a node says it has; None where it has none yet."""
    found = said.get("partition")
    if found is not None and (type(found) is not int or found < 0):  # True is an int
        raise WireError(f"who/partition: expected a number from 0, got {found!r}")
    try:
        check(said)
    except WireError as error:
        name = "a client" if found is None else f"client {found}"
        raise WireError(f"{name} {error}") from error
    return found
