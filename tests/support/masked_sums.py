"""The parties of one sum under masks, and the numbers that they add up."""

import numpy as np

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Update
from fcl_flower.rounds.place import place_of
from fcl_flower.rounds.secure.client import (
    ABSENT,
    KEYS,
    PRESENT,
    SHARES,
    ClientSide,
    from_content,
    to_content,
)
from fcl_flower.rounds.secure.crypto import Layout, decode_fixed_point
from fcl_flower.rounds.secure.server import MaskedSum
from fcl_flower.rounds.transport import TRAIN

PAYLOADS = [{"base": {"w": np.arange(100.0) / (c + 1)}} for c in range(60)]
EXAMPLES = [10, 7, 1, 20, 3] * 12
LAYOUT = Layout.of(PAYLOADS[0], weighted=True)
USUAL = FederationSection()


class Parties:
    """Clients, at most 60, and the channel of a server that asks them at once.

    ``change(client, step, answer)`` may return another answer, or raise.
    """

    def __init__(self, change=None, clients=5, section=USUAL):
        self.clients = range(clients)
        self.section = section
        self.places = [place_of(client) for client in self.clients]
        self.change = change or (lambda client, step, answer: answer)
        self.sum = MaskedSum(self, section)

    def side(self, client=0):
        return ClientSide(self.places[client], self.section)

    def ask(self, query, questions, rows, columns, least):
        answers, failures = {}, {}
        for client, question in questions.items():
            side = self.side(client)
            try:
                if query == KEYS:
                    answer = side.advertise_keys()
                else:
                    step = side.share_keys if query == SHARES else side.unmask
                    answer = step(question)
                answer = self.change(client, query, answer)
                answers[client] = from_content(answer, columns, rows(client))
            except Exception as error:
                failures[client] = f"{query}: {error}"
        return answers, failures

    def masked(self, client=0, **changes):
        update = Update(PAYLOADS[client], EXAMPLES[client], {"loss": 0.5})
        of = {"clients": np.array(self.sum.holders(client)), **changes}
        return self.side(client).masked(update, {"layout": LAYOUT.to_array(), **of})

    def vectors(self):
        """Train those who agreed; return the vectors that come."""
        found = {}
        for client in self.sum.clients:
            try:
                vector = self.masked(client).payload["masked"]["vector"]
                found[client] = self.change(client, TRAIN, vector)
            except (RuntimeError, WireError):
                continue
        return found

    def total(self):
        """Go through a whole sum; return who is in it, and the mean."""
        self.sum.agree(self.clients)
        vectors = self.vectors()
        mean = decode_fixed_point(self.sum.unmask(vectors), LAYOUT)
        return [*vectors], mean.payload["base"]["w"]

    def agreed(self):
        self.sum.agree(self.clients)
        return self

    def trained(self):
        self.agreed().masked()
        return self

    def question(self, client=0, absent=()):
        """Return the table that asks a client for shares, some owners being absent."""
        return {
            owner: (
                ABSENT if owner in absent else PRESENT,
                b"" if owner == client else self.sum._sealed[owner][client][0],
            )
            for owner in self.sum.holders(client)
        }

    def unmask(self, absent=(), changed=()):
        """Ask client 0 for shares; return whether it has one of each client."""
        question = self.question(0, absent)
        answer = self.side().unmask(to_content({**question, **dict(changed)}))
        return [len(share) for (share,) in from_content(answer, 1, question).values()]

    def share_keys(self, change, clients=0):
        """Ask client 0 to share its keys by a false roster, or false ``clients``."""
        asked = {client: {} for client in self.clients}
        answers, _ = self.ask(KEYS, asked, lambda client: [client], 3, 0)
        roster = {client: table[client][:2] for client, table in answers.items()}
        changed = change(roster)
        self.side().share_keys(to_content(changed, clients or len(changed)))


def at(step, change, *whom):
    """Change the answers of some at a step."""

    def tamper(client, when, answer):
        return change(answer) if when == step and client in whom else answer

    return tamper


def gone(answer):
    """Do not answer."""
    raise RuntimeError("gone")


def check_mean(who, mean):
    """Hold a mean against that of those who are in the sum, without masks."""
    weights = [EXAMPLES[c] for c in who]
    tensors = [PAYLOADS[c]["base"]["w"] for c in who]
    np.testing.assert_allclose(mean, np.average(tensors, 0, weights), atol=1e-9)
