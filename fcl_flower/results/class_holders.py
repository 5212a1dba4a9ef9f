"""What a federation sees of the names of classes: who has which, and odd ones out."""

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from fcl_flower.data.class_names import folded_name

ClassHolders: TypeAlias = Mapping[str, Collection[int]]
"""The clients that have named each class of a single head."""


def held_by_one(holders: ClassHolders) -> dict[str, int]:
    """Find the classes that one client alone has, in any spelling, and the client.

    There are none where there is no other client to have them.
    """
    if len(set[int]().union(*holders.values())) < 2:
        return {}
    found = dict[str, int]()
    for names in _by_folded_name(holders):
        clients = set[int]().union(*(holders[name] for name in names))
        if len(clients) == 1:
            found |= dict.fromkeys(names, *clients)
    return found


def look_alikes(holders: ClassHolders) -> list[list[str]]:
    """Find groups of classes whose names are the same but for their spelling."""
    return [names for names in _by_folded_name(holders) if len(names) > 1]


def _by_folded_name(names: Collection[str]) -> Iterator[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(folded_name(name), []).append(name)
    yield from groups.values()
