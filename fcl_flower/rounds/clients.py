"""The node that speaks for each client, as nodes come, go and return."""

import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from logging import INFO, WARNING
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fcl_flower import __version__
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import BEGINS, WAITING, RoundError, WireError
from fcl_flower.core.failures import NOT_CONNECTED
from fcl_flower.core.files import replace_file
from fcl_flower.core.formats import KEY, check_format
from fcl_flower.core.log import log
from fcl_flower.rounds import mailbox, messages
from fcl_flower.rounds.roll import Roll
from fcl_flower.rounds.transport import QUERY, Content, Reply, Request, Transport

T = TypeVar("T")

PROTOCOL = 7
"""Raised with every change of the messages that the other side would not understand."""


def own() -> dict[str, str | int]:
    """Describe this client's software to a server."""
    return {"version": __version__, "protocol": PROTOCOL}


def check(answer: Mapping[str, object]) -> None:
    """Let in a client of this protocol, whatever its version."""
    if answer.get("protocol") != PROTOCOL:
        version = answer.get("version", "of an earlier version")
        raise WireError(
            f"runs fcl-flower {version} with protocol {answer.get('protocol', 0)}, "
            f"expected protocol {PROTOCOL} as in the server's {__version__}: install "
            "the same version there"
        )


# ---- numbers by key

VARIABLE = "FCL_CLIENT_NUMBERS"
"""The environment variable with the path of the file of `ClientNumbers`."""
_KEY_FILE = re.compile(r"client-(\d+)\.pub")


class ClientNumbers:
    """A file with the client of each node that has a client's key."""

    def __init__(self, path: Path) -> None:
        """Keep them in ``path``, which need not be there yet."""
        self._path = path

    def bind(self, node: int, key: Path) -> None:
        """Note that a node has a client's key, where the key's file names a client."""
        if named := _KEY_FILE.fullmatch(key.name):
            numbers = {**self.read(), node: int(named[1])}
            replace_file(self._path, json.dumps(numbers), private=True)

    def has(self, key: Path) -> bool:
        """Tell whether a node is known that has a client's key."""
        named = _KEY_FILE.fullmatch(key.name)
        return named is not None and int(named[1]) in self.read().values()

    def read(self) -> Mapping[int, int]:
        """Read the clients by node."""
        if not self._path.exists():
            return {}
        numbers: dict[str, int] = json.loads(self._path.read_text())
        return {int(node): client for node, client in numbers.items()}


def server_state() -> Path | None:
    """Name the folder of the server's state; None in a simulation."""
    path = os.environ.get(VARIABLE)
    return Path(path).parent if path else None


def by_key() -> Mapping[int, int]:
    """Read the clients of the nodes with keys; in a simulation there are none."""
    path = os.environ.get(VARIABLE)
    return ClientNumbers(Path(path)).read() if path else {}


def check_claim(node: int, client: int) -> None:
    """Refuse a number that belongs to another node's key.

    A node without a key may have every number without a key.
    """
    numbers = by_key()
    own = numbers.get(node)
    if own is None and client in numbers.values():
        raise WireError(f"claims to be client {client}, whose key it has not")
    if own not in (None, client):
        raise WireError(f"has the key of client {own}, but claims to be {client}")


# ---- numbers that the server gives

NUMBERS_FILE: Final = "nodes.json"
"""The file in a run's folder with the nodes whose number the server has given."""
NUMBERS_FORMAT: Final = 1


class GivenNumbers:
    """Numbers by node, kept in the folder of a run.

    Nodes that are met together get their numbers in ascending order. A node that comes
    back has its number again. Where all numbers are given, a new node gets the lowest
    number whose node is gone: a program without a key is another node each time that it
    starts.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Go on with the numbers in a file, if there is one."""
        self._given: dict[int, int] = {}
        self._file: Path | None = None
        if file is not None and file.is_file():
            kept = json.loads(file.read_text())
            check_format(file, kept.get(KEY), NUMBERS_FORMAT)
            self._given = {int(node): number for node, number in kept["nodes"].items()}

    def keep(self, file: Path) -> None:
        """Keep the numbers in a file from now on, in place of its content."""
        self._file = file
        if not self._given:
            file.unlink(missing_ok=True)
        self._write()

    def give(self, node: int, taken: Collection[int], clients: int) -> int | None:
        """Give a node its number; None where all are taken.

        Args:
            node: a node without a number of its own.
            taken: numbers of other connected nodes.
            clients: how many numbers there are; 0 for any.
        """
        earlier = self._given.get(node)
        if earlier is not None and earlier not in taken:
            return earlier
        given = {*self._given.values(), *taken}
        most = clients or len(given) + 1
        free = [number for number in range(most) if number not in given]
        free += [number for number in range(most) if number not in taken]
        if not free:
            return None
        self._given = {n: c for n, c in self._given.items() if c != free[0]}
        self._given[node] = free[0]
        self._write()
        return free[0]

    def _write(self) -> None:
        if self._file is not None and self._given:
            content = {KEY: NUMBERS_FORMAT, "nodes": self._given}
            replace_file(self._file, json.dumps(content))


# ---- connected clients

RETURN_SECONDS = 5.0
"""Seconds until a node that gave no sign of life is asked again."""
GREETING_SECONDS = 120.0
"""Seconds that a node may take to name its client: Flower starts Python for that."""
RETRY_SECONDS = 30.0
"""Seconds until a node that did not name its client is asked again."""
NOTICE_SECONDS = 10.0
"""Seconds between two lines of the log about clients that are missing at first."""


class ClientRegistry:
    """Knows the node of each client, by the client's number.

    A node is asked for its number when it connects. Its configuration gives the number,
    or the registry does. Only `wait_for_clients`, before the first round, waits for the
    answer.

    Attributes:
        transport: reaches the nodes.
    """

    def __init__(
        self, transport: Transport, clients: int = 0, numbers: Path | None = None
    ) -> None:
        """Create a registry without clients.

        Args:
            transport: reaches the nodes.
            clients: the run has the clients with numbers below this one; 0 for all
                clients that connect before the first round.
            numbers: the file with the numbers that an earlier server of the run has
                given.
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
        self._call = mailbox.in_thread if transport.blocking else mailbox.at_once
        self._listing: Future[Iterable[int]] | None = None
        self._listed = frozenset[int]()
        self._spec = ""
        self._outsiders: dict[int, str] = {}
        state = server_state()
        self._roll = Roll(state) if state else None

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients that are connected, ascending."""
        return tuple(sorted(self._connected))

    @property
    def here(self) -> frozenset[int]:
        """Clients that are connected, or that hear of the run again."""
        greeted = (self._known[node] for node in self._asked if node in self._known)
        return frozenset([*self._connected, *greeted])

    def node(self, client: int) -> int:
        """Look up the node of a client that is connected."""
        return self._connected[client]

    def client(self, node: int) -> int:
        """Look up the client of a node that is, or was, connected."""
        return self._known[node]

    def why_absent(self, client: int) -> str:
        """Say why a client is not connected: why the node with its key was refused."""
        keys = by_key()
        reasons = (w for node, w in self._refused.items() if keys.get(node) == client)
        return next(reasons, NOT_CONNECTED)

    def wait_for_clients(
        self, least: int, timeout: float, without: Collection[int] = ()
    ) -> None:
        """Wait for all clients; after ``timeout`` seconds ``least`` are enough.

        Clients ``without`` data for the next task may stay away. ``least`` clients are
        enough before, too, if every missing client has a key whose node gave a refused
        answer. No other node can take its place, and it must not hold up the run.

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
                refused = [f"; {_named(n)} {why}" for n, why in self._refused.items()]
                raise RoundError(
                    f"clients: {list(self.clients)} of {self._clients or 'any'} "
                    f"connected in time, expected at least {least}{''.join(refused)}"
                )
            self._mailbox.pause()
        self._clients = self._clients or len(self._connected)
        log(INFO, f"{BEGINS} clients %s", ", ".join(map(str, self.clients)))

    def _who_is_missing(self) -> str:
        keys, late = by_key(), "has not answered yet"
        silent = {keys.get(node) for node in self._asked}
        missing = [
            f"{client} ({late if client in silent else self.why_absent(client)})"
            for client in sorted(self._missing())
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
        """Note that a node is gone, though it is still listed; ask it again later."""
        if self._disconnect(node, "client %d gives no sign of life"):
            self._not_before[node] = time.monotonic() + RETURN_SECONDS

    def _disconnect(self, node: int, message: str) -> bool:
        """Take the client of a node out and log it; tell whether there was one."""
        client = self._known.get(node, -1)
        connected = self._connected.get(client) == node
        if connected:
            log(WARNING, message, client)
            del self._connected[client]
        return connected

    def open(self, reply: Reply) -> Content:
        """Open a reply; note that its node is gone, or no longer knows the run."""
        if mailbox.is_gone(reply):
            self.mark_gone(reply.node)
        content = reply.content
        if messages.RUN_UNKNOWN in content.scalars:
            self.greet_again(reply.node)
        return content

    def keep_numbers(self, folder: Path) -> None:
        """Keep the numbers that are given to nodes in the folder of a run."""
        self._numbers.keep(folder / NUMBERS_FILE)

    @property
    def run_json(self) -> str:
        """The specification of the run that clients get now, as JSON."""
        return self._spec

    def announce(self, spec: RunSpec) -> None:
        """Tell the run to all clients from now on: connected nodes are asked again."""
        self.tell(spec)
        self._connected.clear()

    def tell(self, spec: RunSpec) -> str:
        """Tell the changed run to all nodes that connect from now on; return it."""
        self._spec = spec.to_json()
        return self._spec

    def greet_again(self, node: int) -> None:
        """Tell the run to a node that no longer knows it, before other requests."""
        if self._disconnect(
            node, "client %d no longer knows the run, and is told again"
        ):
            self._greet({node: None})

    def _greet(self, numbers: Mapping[int, int | None]) -> None:
        """Ask nodes for their numbers, and give a number to some of them."""
        self._asked.update(numbers)
        self._mailbox.send(
            Request(node, QUERY, messages.greeting(self._spec, number))
            for node, number in numbers.items()
        )

    def refresh(self) -> tuple[int, ...]:
        """Note which nodes have come and gone; return the clients that are connected.

        A node that claims a taken number stays out for as long as the other is there.
        """
        online = self._online()
        for client in [c for c, node in self._connected.items() if node not in online]:
            log(WARNING, "client %d has disconnected", client)
            del self._connected[client]
        self._refused = {n: why for n, why in self._refused.items() if n in online}
        self._liars &= self._refused.keys()
        now = time.monotonic()
        new = online.difference(self._connected.values(), self._asked, self._unnumbered)
        due = (node for node in sorted(new) if now >= self._not_before.get(node, 0))
        self._greet(dict.fromkeys(due))
        self._collect_answers(now)
        if self._roll is not None:
            keys = by_key()
            refused = {
                keys[node]: why
                for node, why in self._refused.items()
                if node in keys and keys[node] not in self._connected
            }
            self._roll.note(self._connected, refused | self._outsiders)
        return self.clients

    def _online(self) -> frozenset[int]:
        # Over a network the call retries without end where its server does not
        # answer: it goes on beside the rounds, which use the list of before.
        if self._listing is None:
            self._listing = self._call(self.transport.nodes)
        wait([self._listing], mailbox.POLL_TIMEOUT)
        if self._listing.done():
            listing, self._listing = self._listing, None
            self._listed = frozenset(listing.result())
        return self._listed

    def _collect_answers(self, now: float) -> None:
        answers: dict[int, tuple[int, Mapping[str, object]]] = {}
        for reply in self._mailbox.collect():
            node = reply.node
            self._asked.discard(node)
            self._liars.discard(node)
            # A peer's content may break what reads it in any way.
            try:
                answer = reply.content.scalars["who"]
                claimed = _claimed(answer)
                if claimed is None:
                    if messages.told_number(reply.request.content) is not None:
                        raise WireError("does not take the number that it is given")
                    self._unnumbered.add(node)
                    continue
                check_claim(node, claimed)
                answers[node] = claimed, answer
            except Exception as error:
                gone = mailbox.is_gone(reply)
                if reply.problem is None:
                    self._liars.add(node)
                later = RETURN_SECONDS if gone else RETRY_SECONDS
                self._refuse(node, mailbox.reason(error), now + later)
        for node, (client, about) in sorted(answers.items()):
            if self._clients and client >= self._clients:
                log(WARNING, "client %d is not one of %d", client, self._clients)
                self._not_before[node] = math.inf
                self._outsiders[client] = (
                    f"the run has {self._clients} clients; --resume with more "
                    "--clients takes it in"
                )
                self._meet(client, node, about)
            elif client in self._connected:
                why = f"claims to be client {client}, which another is already"
                self._refuse(node, why, now + RETRY_SECONDS)
            else:
                log(INFO, "client %d has connected", client)
                self._connected[client], self._known[node] = node, client
                self._refused.pop(node, None)
                self._meet(client, node, about)
        self._unnumbered &= self._listed
        if not self._asked:  # so that their order is not that of their answers
            nodes, self._unnumbered = self._unnumbered, set()
            self._give_numbers(sorted(nodes), now)

    def _give_numbers(self, nodes: Iterable[int], now: float) -> None:
        """Number nodes that have no number, and ask them again."""
        keys = by_key()
        taken, given = {*self._connected, *keys.values()}, dict[int, int | None]()
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
            self._greet(given)

    def _meet(self, client: int, node: int, answer: Mapping[str, object]) -> None:
        if self._roll is not None:
            self._roll.met(client, node, answer)

    def _refuse(self, node: int, why: str, until: float) -> None:
        log(WARNING, "%s is left out: %s", _named(node), why)
        self._refused[node], self._not_before[node] = why, until


def _named(node: int) -> str:
    """Name the client of a node, by its key where it has one."""
    client = by_key().get(node)
    return (
        f"a client without a key, node {node},"
        if client is None
        else (f"client {client}")
    )


def _claimed(answer: Mapping[str, object]) -> int | None:
    """Read the number that a node claims; None where it has none yet."""
    number = answer.get("partition")
    if number is not None and (type(number) is not int or number < 0):  # True is an int
        raise WireError(f"who/partition: expected a number from 0, got {number!r}")
    try:
        check(answer)
    except WireError as error:
        name = "a client" if number is None else f"client {number}"
        raise WireError(f"{name} {error}") from error
    return number


# ---- questions


class Asker(NamedTuple):
    """Asks many clients a short question at once.

    Attributes:
        registry: knows the node of each client.
        timeout: seconds to wait for each reply.
        closes_at: when replies are no longer waited for.
    """

    registry: ClientRegistry
    timeout: float
    closes_at: mailbox.Deadline = mailbox.wait_for_all

    def ask(
        self,
        kind: str,
        contents: Mapping[int, Content],
        read: Callable[[int, Content], T],
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Ask clients; return what is read of their replies, and why others fail.

        ``read`` gets the client and the content of its reply.
        """
        box = mailbox.Mailbox(self.registry.transport, self.timeout)
        requests = [
            Request(self.registry.node(client), kind, content)
            for client, content in contents.items()
        ]
        answers, failures = dict[int, T](), dict[int, str]()
        for reply in mailbox.ask(box, requests, self.closes_at):
            client = self.registry.client(reply.node)
            # A peer's content may break what reads it in any way.
            try:
                answers[client] = read(client, self.registry.open(reply))
            except Exception as error:
                failures[client] = mailbox.reason(error)
                log(WARNING, "client %d: %s: %s", client, kind, failures[client])
        return dict(sorted(answers.items())), failures
