"""What a state has for many clients at once, made once: of thousands most get the same.

Whoever was last reached in the same round gets the same channels of theta_G, as the
very same tensors, so that they are encoded once too.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fcl_flower.core.types import Arrays, Payload, SparseArray
from strategies.fedweit.adapter_selection import Adapter, uploaded_groups

CHANGED = "meta/changed"


@dataclass(frozen=True, eq=False)
class Broadcast:
    """Parts of one state.

    Attributes:
        state: with ``base``, ``meta/changed`` and ``adapters/C/T``; never changed.
    """

    state: Payload
    _since: dict[int, Arrays] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def adapters(self) -> list[Adapter]:
        """Return whose adapters the server has, ascending."""
        return uploaded_groups(self.state)

    def changed_since(self, since: int) -> Arrays:
        """Return the channels of the base that changed in a round or after it.

        Args:
            since: the round; 0 for all channels.
        """
        if since not in self._since:
            self._since[since] = dict(self._changed_since(since))
        return self._since[since]

    def adapters_beside(self, client: int) -> list[Adapter]:
        """Return the adapters of all clients but one, ascending."""
        first, last = (bisect_left(self.adapters, (c, 0)) for c in (client, client + 1))
        return self.adapters[:first] + self.adapters[last:]

    def _changed_since(self, since: int) -> Mapping[str, SparseArray]:
        found = {}
        for name, values in self.state["base"].items():
            rounds = np.asarray(self.state[CHANGED][name])
            fresh = np.flatnonzero(rounds >= since)
            if len(fresh):
                found[name] = SparseArray.of_channels(np.asarray(values), fresh)
        return found
