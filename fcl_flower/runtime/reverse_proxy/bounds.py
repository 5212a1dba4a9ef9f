"""How much of the server's machine its callers may hold together, and each of them."""

import resource
from dataclasses import dataclass

MOST_DESCRIPTORS = 2**16
RESERVED = 64
"""Descriptors for all but connections: listener, log, registering keys, stopping."""


@dataclass(frozen=True)
class Bounds:
    """What the reverse proxy allows. Connections are guests until a call is let in.

    Attributes:
        guests: connections of which no call was let in yet.
        guests_of_address: of these, of one IP address (IPv6: of one /64 network).
        members: all other connections; each may take a second one to the SuperLink.
        members_of_key: of these, of one client's key; without keys of one address. A
            SuperNode takes about four.
        head_bytes: of a call without its body.
        body_bytes: of a call; Flower cuts tensors into pieces of 5 MiB.
        head_seconds: from accepting a guest to the end of its first call's head,
            handshake included.
        idle_seconds: without a byte, between the calls of a member or within one.
        answer_seconds: for the SuperLink to answer; clients give up after 30.
    """

    guests: int = 1024
    guests_of_address: int = 256
    members: int = 4096
    members_of_key: int = 16
    head_bytes: int = 2**14
    body_bytes: int = 2**24
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    answer_seconds: float = 60.0

    @classmethod
    def of_descriptors(cls, limit: int, *, keys: bool) -> "Bounds":
        """Return bounds that leave enough of a process's descriptors.

        Args:
            limit: how many it may open, at least 128.
            keys: whether clients have any; without, all those of one machine or behind
                one router look like one.
        """
        left = limit - RESERVED
        guests = min(cls.guests, left // 4)
        members = min(cls.members, (left - guests) // 2)
        of_address = max(guests // 4, 1)
        return cls(
            guests=guests,
            guests_of_address=of_address,
            members=members,
            members_of_key=cls.members_of_key if keys else of_address,
        )


def raise_descriptor_limit() -> int:
    """Let this process, and what it starts, open as many files as it may.

    Returns:
        How many that is now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    most = MOST_DESCRIPTORS if hard == unlimited else min(hard, MOST_DESCRIPTORS)
    if soft != unlimited and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return MOST_DESCRIPTORS if soft == unlimited else soft
