"""The numbers that a server gives to nodes without one of their own."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from fcl_flower.core.files import replace_file
from fcl_flower.core.formats import KEY, check_format

NUMBERS_FILE: Final = "nodes.json"
"""The file in a run's folder with the nodes that have a number of the server."""
NUMBERS_FORMAT: Final = 1


class GivenNumbers:
    """Numbers by node, kept in the record of a run.

    They are given in ascending order of the nodes that are met together. A node that
    comes back has its number again. Where all numbers are given, a new node gets the
    lowest of those whose node is gone: a program without a key is another node each
    time that it starts.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Go on with those in a file, which need not be there; None for none."""
        self._given: dict[int, int] = {}
        self._file: Path | None = None
        if file is not None and file.is_file():
            found = json.loads(file.read_text())
            check_format(file, found.get(KEY), NUMBERS_FORMAT)
            self._given = {int(node): number for node, number in found["nodes"].items()}

    def keep(self, file: Path) -> None:
        """Keep the numbers in a file from now on, in place of what it has."""
        self._file = file
        if not self._given:
            file.unlink(missing_ok=True)
        self._write()

    def give(self, node: int, taken: Collection[int], clients: int) -> int | None:
        """Give a node its number; None where all are taken.

        Args:
            node: that has none of its own.
            taken: numbers of others that are connected.
            clients: how many numbers there are; 0 for any.
        """
        known = self._given.get(node)
        if known is not None and known not in taken:
            return known
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
            found = {KEY: NUMBERS_FORMAT, "nodes": self._given}
            replace_file(self._file, json.dumps(found))
