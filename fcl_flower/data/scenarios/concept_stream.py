"""Which hidden concept a client meets in a round, and with which of its samples."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fcl_flower.core.seeds import derive
from fcl_flower.data.partition import Indices


@dataclass(frozen=True, slots=True)
class ConceptStream:
    """The order in which clients meet concepts (Jiang et al., 2025, section V.A).

    Everything follows from the seed, the client and the round, so that server and
    client know the same, whoever takes part and whoever fails.

    Attributes:
        concepts: how many there are, at least 1.
        window: training samples that a client has in a round, at least 2.
        stay: with probability ``1 / stay`` a client's concept is drawn anew, so that
            it stays so many draws on average: 1 is the paper's, more is drift that
            lasts; 0 shows a client all concepts at once and all of its samples.
        seed: the run's seed.
    """

    concepts: int
    window: int
    stay: int
    seed: int

    def concepts_met(self, client: int, server_round: int) -> tuple[int, ...]:
        """Return the concepts that a client meets in a round, counted from 1."""
        if not self.stay:
            return tuple(range(self.concepts))
        return (_concept(self, client, server_round),)

    def single_concept(self, client: int, server_round: int) -> int:
        """Return the concept that a client meets in a round, if it meets one.

        Raises:
            ValueError: it meets all at once.
        """
        (concept,) = self.concepts_met(client, server_round)
        return concept

    def samples(
        self, client: int, server_round: int, concept: int, chunk: Indices
    ) -> Indices:
        """Return which of its ``chunk`` of a concept a client has in a round.

        A cyclic window: each visit goes on behind the last one, in a shuffled order.
        """
        if not self.stay:
            return chunk
        size = min(self.window, len(chunk))
        earlier = sum(
            _concept(self, client, number) == concept
            for number in range(1, server_round)
        )
        shuffled = self._rng("order", client, concept).permutation(chunk)
        places = (earlier * size + np.arange(size)) % len(chunk)
        return np.sort(shuffled[places])

    def describe(self) -> str:
        """Return in words how a client meets concepts."""
        if not self.stay:
            return "all at once"
        how = "one a round" if self.stay == 1 else f"one for {self.stay} rounds or so"
        return f"{how}, {self.window} samples at a time"

    def to_dict(self) -> dict[str, int]:
        """Return what ``scenario.json`` holds of it."""
        return {"window": self.window, "stay": self.stay}

    def _rng(self, purpose: str, *key: int) -> np.random.Generator:
        return np.random.default_rng(derive(self.seed, f"stream-{purpose}", *key))


@lru_cache(maxsize=100_000)
def _concept(stream: ConceptStream, client: int, server_round: int) -> int:
    # Back to the last round in which it was drawn; not by recursion, since a client
    # may stay for more rounds than Python allows calls.
    number = server_round
    while True:
        draw = np.random.default_rng(
            derive(stream.seed, "stream-concept", client, number)
        )
        if number == 1 or draw.random() < 1 / stream.stay:
            return int(draw.integers(stream.concepts))
        number -= 1
