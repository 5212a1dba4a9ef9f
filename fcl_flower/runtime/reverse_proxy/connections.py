"""Who is connected, and who must go when too many are.

A guest that has not shown a key makes room for the next one, the oldest first: however
many are silent, a newcomer has the time of all of them to prove itself. Members are
never sent away for others; where they are too many, a further one is asked to wait.
"""

import asyncio
import ipaddress
from collections import Counter, defaultdict

from fcl_flower.runtime.reverse_proxy.bounds import Bounds

Task = asyncio.Task[None]


class Connections:
    """The open connections, each by the task that serves it."""

    def __init__(self, bounds: Bounds) -> None:
        """Start without any."""
        self._bounds = bounds
        # Both in the order of arrival, as dictionaries are.
        self._guests: dict[Task, str] = {}
        self._at_address: defaultdict[str, dict[Task, None]] = defaultdict(dict)
        self._members: dict[Task, str] = {}
        self._of_key: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many connections are open."""
        return len(self._guests) + len(self._members)

    def admit(self, guest: Task, address: str) -> None:
        """Take in a new guest, in the place of the oldest one if there is no other.

        Args:
            guest: serves the connection; cancelled if it must go.
            address: the `network` that it comes from.
        """
        neighbours = self._at_address[address]
        if len(neighbours) >= self._bounds.guests_of_address:
            self._send_away(next(iter(neighbours)))
        elif len(self._guests) >= self._bounds.guests:
            self._send_away(next(iter(self._guests)))
        self._guests[guest] = address
        self._at_address[address][guest] = None

    def promote(self, task: Task, key: str) -> bool:
        """Make a connection that of a client; return False if there are too many.

        Args:
            task: serves the connection.
            key: of the client whose call came on it.
        """
        if task in self._members:
            return True
        if (
            len(self._members) >= self._bounds.members
            or self._of_key[key] >= self._bounds.members_of_key
        ):
            return False
        self._forget_guest(task)
        self._members[task] = key
        self._of_key[key] += 1
        return True

    def leave(self, task: Task) -> None:
        """Forget a connection that has ended."""
        self._forget_guest(task)
        if (key := self._members.pop(task, None)) is not None:
            self._of_key[key] -= 1
            if not self._of_key[key]:
                del self._of_key[key]

    def send_away_oldest_guest(self) -> None:
        """Make room, where the machine has less of it than was thought."""
        if self._guests:
            self._send_away(next(iter(self._guests)))

    def _send_away(self, guest: Task) -> None:
        self._forget_guest(guest)
        guest.cancel()

    def _forget_guest(self, task: Task) -> None:
        if (address := self._guests.pop(task, None)) is not None:
            del self._at_address[address][task]
            if not self._at_address[address]:
                del self._at_address[address]


def network(address: str) -> str:
    """Return what stands for one machine: an IPv4 address, or the /64 of an IPv6 one.

    A machine with IPv6 may take any of its network's addresses for each connection.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
