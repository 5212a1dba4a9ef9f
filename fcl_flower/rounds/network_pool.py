"""One network for all messages of a thread, handed out as it was at first."""

import copy
import threading

from fcl_flower.models.heads import MultiHeadModel


class NetworkPool(threading.local):
    """A network for one learner after the other, each thread its own.

    A copy for each message would cost the memory of a whole network anew. So a network
    of this package is reset in place, unless a learner has rebuilt it. Of another's
    nobody knows what there is to reset: each learner gets a copy.
    """

    def __init__(self, initial: MultiHeadModel) -> None:
        """Keep a network, which nobody may change; called in each thread that asks."""
        self._initial = initial
        self._trained = [p.requires_grad for p in initial.parameters()]
        self._network: MultiHeadModel | None = None
        self._is_ours = type(initial.body).__module__.startswith("fcl_flower.")

    def get(self) -> MultiHeadModel:
        """Hand out the network as it was at first, the caller's to change.

        What this thread got before is taken back. Parameters that are frozen are shared
        with others: nobody trains them.
        """
        for parameter, trained in zip(
            self._initial.parameters(), self._trained, strict=True
        ):
            parameter.requires_grad_(trained)  # those that are shared may have changed
        known = self._network if self._is_ours else None
        if known is None or not known.reset(self._initial):
            self._network = known = None  # its memory is free for the next
            frozen = (p for p in self._initial.parameters() if not p.requires_grad)
            known = copy.deepcopy(
                self._initial, {id(tensor): tensor for tensor in frozen}
            )
        self._network = known
        return known
