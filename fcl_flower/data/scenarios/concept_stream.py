"""Which hidden concept a client has in a round, and which of its samples."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fcl_flower.core.seeds import derive
from fcl_flower.data.partition import Indices


@dataclass(frozen=True, slots=True)
class ConceptStream:
    """The order in which clients have concepts (Jiang et al., 2025, section V.A).

    All follows from the seed, the client and the round, so that server and client
    know the same, whichever clients take part or fail.

    Attributes:
        concepts: how many there are, at least 1.
        window: training samples that a client has in a round, at least 2.
        mean_duration: with probability ``1 / mean_duration`` a client's concept is
            drawn anew, so that it lasts so many draws on average: 1 is the paper's;
            0 gives a client all concepts at once and all of its samples.
        seed: the run's seed.
    """

    concepts: int
    window: int
    mean_duration: int
    seed: int

    def concepts_at(self, client: int, server_round: int) -> tuple[int, ...]:
        """Return the concepts of a client in a round, which is counted from 1."""
        if not self.mean_duration:
            return tuple(range(self.concepts))
        return (_concept(self, client, server_round),)

    def concept_at(self, client: int, server_round: int) -> int:
        """Return the only concept of a client in a round.

        Raises:
            ValueError: it has all at once.
        """
        (concept,) = self.concepts_at(client, server_round)
        return concept

    def samples(
        self, client: int, server_round: int, concept: int, chunk: Indices
    ) -> Indices:
        """Return what a client has in a round of its ``chunk`` of a concept.

        A cyclic window: each visit goes on behind the last one, in a shuffled order.
        """
        if not self.mean_duration:
            return chunk
        size = min(self.window, len(chunk))
        earlier = sum(
            _concept(self, client, number) == concept
            for number in range(1, server_round)
        )
        shuffled = self._rng("order", client, concept).permutation(chunk)
        window = (earlier * size + np.arange(size)) % len(chunk)
        return np.sort(shuffled[window])

    def describe(self) -> str:
        """Return in words how concepts follow each other."""
        if not self.mean_duration:
            return "all at once"
        how = (
            "one a round"
            if self.mean_duration == 1
            else f"one for {self.mean_duration} rounds or so"
        )
        return f"{how}, {self.window} samples at a time"

    def to_dict(self) -> dict[str, int]:
        """Return what ``scenario.json`` holds of it."""
        return {"window": self.window, "mean_duration": self.mean_duration}

    def _rng(self, purpose: str, *key: int) -> np.random.Generator:
        return np.random.default_rng(derive(self.seed, f"stream-{purpose}", *key))


@lru_cache(maxsize=100_000)
def _concept(stream: ConceptStream, client: int, server_round: int) -> int:
    # Back to the last round in which it was drawn; not by recursion, since a concept
    # may last for more rounds than Python allows calls.
    number = server_round
    while True:
        draw = np.random.default_rng(
            derive(stream.seed, "stream-concept", client, number)
        )
        if number == 1 or draw.random() < 1 / stream.mean_duration:
            return int(draw.integers(stream.concepts))
        number -= 1
