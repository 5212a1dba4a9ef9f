"""The server's part of one sum: relay keys and shares, add up, take the masks off."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations, islice
from logging import WARNING

import numpy as np
from flwr.common.logger import log

from fcl_flower.config.sections import FederationSection
from fcl_flower.core.errors import RoundError
from fcl_flower.federation.secure.channel import Channel
from fcl_flower.federation.secure.exchange import (
    ABSENT,
    KEYS,
    PRESENT,
    SHARES,
    UNMASK,
    Table,
)
from fcl_flower.federation.secure.fixed_point import CHECKS, Vector
from fcl_flower.federation.secure.keys import agreed_key, new_secret
from fcl_flower.federation.secure.masks import own_mask, pair_masks
from fcl_flower.federation.secure.shares import join

MAX_TRIALS = 100
"""How many sets of shares are tried, where some of them are wrong."""


class MaskedSum:
    """One attempt at a sum: first `agree`, then the training, then `unmask`.

    Attributes:
        failures: why a client is not among those who agreed.
    """

    def __init__(self, channel: Channel, section: FederationSection) -> None:
        """Ask through ``channel``, by the settings in ``section``."""
        self._channel = channel
        self._section = section
        self._roster: dict[int, tuple[bytes, ...]] = {}
        self._sealed: dict[int, Table] = {}
        self.failures: dict[int, str] = {}

    @property
    def clients(self) -> list[int]:
        """Return who has agreed on masks, ascending."""
        return sorted(self._sealed)

    def agree(self, clients: Sequence[int]) -> None:
        """Let clients exchange keys, and shares of them.

        Raises:
            RoundError: too few of them do.
        """
        answers, self.failures = self._channel.ask(
            KEYS,
            {client: {} for client in clients},
            lambda client: [client],
            2,
            self._section.sum_threshold(len(clients)),
        )
        for client, table in answers.items():
            if _usable(table[client], self._roster):
                self._roster[client] = table[client]
            else:
                self.failures[client] = f"{KEYS}: expected two keys of its own"
        self._check_number(list(self._roster), len(clients), "sent keys")
        self._sealed, more = self._channel.ask(
            SHARES,
            dict.fromkeys(self._roster, self._roster),
            lambda client: self._roster.keys() - {client},
            1,
            self._section.sum_threshold(len(self._roster)),
        )
        self.failures |= more
        self._check_number(self.clients, len(self._roster), "shared their keys")

    def unmask(self, vectors: Mapping[int, Vector]) -> Vector:
        """Return the sum of the vectors without their masks.

        Args:
            vectors: by client, of one length; the others who agreed are absent.

        Raises:
            RoundError: too few vectors came, or too few shares that are right.
        """
        self._check_number(list(vectors), len(self._roster), "sent a masked vector")
        states = {c: PRESENT if c in vectors else ABSENT for c in self.clients}
        asked = {
            client: {
                owner: (
                    state,
                    b"" if owner == client else self._sealed[owner][client][0],
                )
                for owner, state in states.items()
            }
            for client in vectors
        }
        threshold = self._section.sum_threshold(len(self._roster))
        shares, failures = self._channel.ask(
            UNMASK, asked, lambda _: states, 1, threshold
        )
        for client, why in failures.items():
            log(WARNING, "client %d is in the sum, but gave no shares: %s", client, why)
        total = np.zeros_like(next(iter(vectors.values())))
        for vector in vectors.values():
            total = total + vector
        trials = combinations(sorted(shares), threshold)
        for holders in islice(trials, MAX_TRIALS):
            # What a peer says is a share, or a key, may break anything.
            try:
                secrets = {
                    owner: join(shares[one][owner][0] for one in holders)
                    for owner in states
                }
                masks = partial(self._masks, secrets, list(vectors))
                if (total[:CHECKS] == masks(CHECKS)).all():
                    unmasked: Vector = total - masks(len(total))
                    return unmasked
            except Exception as error:
                log(WARNING, "shares of %s do not fit: %r", holders, error)
        raise RoundError(
            f"secure aggregation: the masks of {sorted(vectors)} cannot be taken off "
            f"with the shares of {sorted(shares)}, {threshold} of which must be right"
        )

    def _masks(
        self, secrets: Mapping[int, bytes], present: Sequence[int], size: int
    ) -> Vector:
        """Return the sum of all masks that do not vanish."""
        total = np.zeros(size, np.uint64)
        public = {client: self._roster[client][0] for client in present}
        for owner, secret in secrets.items():
            if owner in public:
                total = total + own_mask(secret, size)
            else:  # what it would have added is the opposite of what they added
                total = total - pair_masks(owner, secret, public, size)
        return total

    def _check_number(self, found: Sequence[int], of: int, done: str) -> None:
        """Refuse to go on with too few clients."""
        threshold = self._section.sum_threshold(of)
        if len(found) < threshold:
            raise RoundError(
                f"secure aggregation: {sorted(found)} {done}, at least {threshold} of "
                f"{of} must; left out: {self.failures}"
            )


def _usable(keys: tuple[bytes, ...], others: Table) -> bool:
    """Return whether these are two public keys that nobody else has."""
    taken = {key for row in others.values() for key in row}
    # One that is none would make every client fail that has to agree with this one.
    try:
        for key in keys:
            agreed_key(new_secret(), key, "trial")
    except ValueError:
        return False
    return len({*keys} - taken) == len(keys)
