"""What a federation sees of the names of classes: who has which, and odd ones out."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import TypeAlias

from fcl_flower.data.labels import plain

ClassHolders: TypeAlias = Mapping[str, Collection[int]]
"""The clients that have named each class of a single head."""


def held_by_one(holders: ClassHolders) -> dict[str, int]:
    """Find the classes that one client alone has, in any spelling, and the client.

    There are none where there is no other client to have them.
    """
    if len(set[int]().union(*holders.values())) < 2:
        return {}
    groups = defaultdict[str, list[str]](list)
    for name in holders:
        groups[plain(name)].append(name)
    found = dict[str, int]()
    for names in groups.values():
        clients = set[int]().union(*(holders[name] for name in names))
        if len(clients) == 1:
            found |= dict.fromkeys(names, *clients)
    return found
