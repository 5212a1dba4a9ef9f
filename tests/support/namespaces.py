"""A federation on machines of its own: network namespaces that a bridge joins.

The server, a relay (`relay.py`) and each client have an address. A client reaches the
server through the relay alone, which may delay, lose and limit what it carries. A link
that is cut loses every packet, as a cable does that is pulled out.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from local_federation import LocalFederation
from typing_extensions import override

PREFIX = "fcltb"
"""Begins the name of each namespace; the process that made it comes next."""
NETWORK = "10.77.0"
SERVER, RELAY, FIRST_CLIENT, SPARE = 1, 2, 10, 100
"""Last parts of addresses; `Testbed.move` adds the last one."""
FIRST_PORT = 9100
"""Of the relay, for client 0."""
BRIDGE = "bridge"


def why_not() -> str:
    """Say why there can be no test bed here; empty where there can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if os.geteuid():
        return "making network namespaces takes root"
    if missing := [name for name in ("ip", "nsenter") if not shutil.which(name)]:
        return f"no program {' and no '.join(missing)}"
    name = f"{PREFIX}-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode:
        return f"this kernel or container makes no namespaces: {made.stderr.strip()}"
    ip("netns", "del", name)
    return ""


def ip(*words: object, inside: str = "") -> str:
    """Run ``ip``, inside a namespace where one is named; return its output."""
    where = ["-n", inside] if inside else []
    command = ["ip", *where, *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def clean_up() -> None:
    """Remove the namespaces of processes that are gone, with all that runs there."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and not psutil.pid_exists(int(parts[1])):
            remove(name)


def remove(name: str) -> None:
    """End all that runs in a namespace, and remove it."""
    for pid in ip("netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "del", name)


class Testbed(LocalFederation):
    """Server, relay and clients, each in a namespace of its own; a context.

    Processes are named as those of `LocalFederation`: ``client-N``, with or without
    more words behind it, runs in client N's namespace, all others in the server's.
    """

    __test__ = False

    def __init__(
        self,
        folder: Path,
        clients: int,
        *,
        relayed: bool = True,
        seed: int = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Make the namespaces for so many clients; start the relay.

        Clients that are not ``relayed`` call the server itself, which tells them more
        than the relay does when it is gone. ``seed`` is that of what the relay loses.
        """
        super().__init__(folder, variables=variables)
        clean_up()
        self.relayed, self.listens = relayed, f"{NETWORK}.{SERVER}"
        self.hosts = [self.listens, f"{NETWORK}.{RELAY}"]
        self.clients = clients
        self._relay: subprocess.Popen[str] | None = None
        try:
            self._make()
            self._start_relay(seed)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Give the bed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all, and remove every namespace."""
        self.close()

    def close(self) -> list[psutil.Process]:
        """End all, and remove every namespace; return what had to be killed."""
        alive = self.end()
        if self._relay is not None:
            assert self._relay.stdin is not None
            self._relay.stdin.close()
            self._relay.wait(20)
            assert self._relay.stdout is not None
            self._relay.stdout.close()
            self._relay = None
        known = {line.split()[0] for line in ip("netns", "list").splitlines()}
        for name in known.intersection(self.namespaces):
            remove(name)
        return alive

    @property
    def namespaces(self) -> list[str]:
        """Names of all, the bridge's first."""
        names = (BRIDGE, "server", "relay", *map(_client, range(self.clients)))
        return [self.namespace(name) for name in names]

    def namespace(self, name: str) -> str:
        """Name the namespace of the bridge, the relay, the server or a client."""
        return f"{PREFIX}-{os.getpid()}-{name}"

    def _make(self) -> None:
        for name in self.namespaces:
            ip("netns", "add", name)
            ip("link", "set", "lo", "up", inside=name)
        bridge = self.namespace(BRIDGE)
        ip("link", "add", BRIDGE, "type", "bridge", inside=bridge)
        ip("link", "set", BRIDGE, "up", inside=bridge)
        last = {"server": SERVER, "relay": RELAY}
        last |= {_client(n): FIRST_CLIENT + n for n in range(self.clients)}
        for name, part in last.items():
            there = ("peer", "name", "eth0", "netns", self.namespace(name))
            ip("link", "add", name, "type", "veth", *there, inside=bridge)
            ip("link", "set", name, "master", BRIDGE, "up", inside=bridge)
            ip("link", "set", "eth0", "up", inside=self.namespace(name))
            self._address(name, part)

    def _address(self, name: str, last: int, word: str = "add") -> None:
        address = f"{NETWORK}.{last}/24"
        ip("addr", word, address, "dev", "eth0", inside=self.namespace(name))

    def _start_relay(self, seed: int) -> None:
        ports = [FIRST_PORT + number for number in range(self.clients)]
        self._relay = subprocess.Popen(
            [
                *_enter(self.namespace("relay")),
                *(sys.executable, str(Path(__file__).with_name("relay.py"))),
                *(self.hosts[1], f"{self.listens}:{self.port}", *map(str, ports)),
                *("--seed", str(seed)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._relay.stdout is not None
        if self._relay.stdout.readline() != "ready\n":
            raise RuntimeError("the relay does not start")

    @override
    def place(self, name: str) -> tuple[str, ...]:
        where = next((n for n in range(self.clients) if _is_of(name, n)), None)
        return _enter(self.namespace("server" if where is None else _client(where)))

    @override
    def entrance(self, number: int) -> str:
        if not self.relayed:
            return f"{self.listens}:{self.port}"
        return f"{self.hosts[1]}:{FIRST_PORT + number}"

    # ---- what happens to a link

    def link(self, number: int, **settings: object) -> None:
        """Set a client's link at the relay; for the settings see `relay.Link`."""
        assert self._relay is not None
        assert self._relay.stdin is not None
        line = json.dumps({"port": FIRST_PORT + number, **settings})
        self._relay.stdin.write(line + "\n")
        self._relay.stdin.flush()

    def cut(self, number: int) -> None:
        """Pull out a client's cable: nobody is told, packets are lost."""
        ip("link", "set", _client(number), "down", inside=self.namespace(BRIDGE))

    def mend(self, number: int) -> None:
        """Put a client's cable in again."""
        ip("link", "set", _client(number), "up", inside=self.namespace(BRIDGE))

    def move(self, number: int) -> None:
        """Give a client another address; what goes over its old one is lost."""
        self._address(_client(number), FIRST_CLIENT + number, "del")
        self._address(_client(number), FIRST_CLIENT + number + SPARE)

    def addresses(self, name: str) -> Collection[str]:
        """List the addresses of a namespace, loopback left out."""
        found = json.loads(ip("-j", "addr", "show", inside=self.namespace(name)))
        return {
            one["local"]
            for device in found
            for one in device["addr_info"]
            if one["family"] == "inet" and device["ifname"] != "lo"
        }


def _client(number: int) -> str:
    return f"client-{number}"


def _is_of(name: str, number: int) -> bool:
    return name == _client(number) or name.startswith(f"{_client(number)} ")


def _enter(namespace: str) -> tuple[str, ...]:
    return ("nsenter", f"--net=/var/run/netns/{namespace}")
