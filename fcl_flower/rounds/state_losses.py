"""End a run whose clients lose their state again and again.

A client that loses its state once goes on with what the server has. If all clients lose
it in every round, nothing of earlier tasks is left. A run that ended well would hide
that.
"""

from collections import Counter
from collections.abc import Collection

from fcl_flower.core.errors import StatesLostError


class StateLosses:
    """Counts losses in a row, by client."""

    def __init__(self) -> None:
        """Know of no client."""
        self._losses = Counter[int]()
        self._kept = set[int]()

    def note(self, lost: Collection[int], kept: Collection[int]) -> None:
        """Note the clients that lacked a needed state, and those that had it."""
        for client in kept:
            del self._losses[client]
        self._kept = (self._kept | {*kept}) - {*lost}
        self._losses.update(lost)

    def check(self, here: Collection[int], least: int) -> None:
        """Refuse to go on if all clients have lost their state so many times in a row.

        Args:
            here: the connected clients. Clients that never needed a state do not count;
                they must be fewer than half.
            least: number of losses in a row.

        Raises:
            StatesLostError: all clients have lost their state.
        """
        asked = self._losses.keys() | self._kept
        counted = sorted(asked.intersection(here))
        most = 2 * len(counted) > len(here)  # a few may say what they like
        if most and all(self._losses[client] >= least for client in counted):
            often = "once" if least == 1 else f"{least} times in a row"
            raise StatesLostError(
                f"every client has lost its state (clients "
                f"{', '.join(map(str, counted))}), {often} or more: "
                "what they had learned is gone, so that the run ends here. A state "
                "lasts as long as a client's SuperNode, or in the folder that "
                "state-path in its --node-config names"
            )
