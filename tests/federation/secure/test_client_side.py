"""What a client answers, and what it refuses to, whatever a server asks of it."""

from itertools import combinations

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fcl_flower.config.sections import FederationSection
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Update
from fcl_flower.federation.secure.client import (
    ABSENT,
    KEPT,
    PRESENT,
    RECORD,
    ClientSide,
    from_records,
    to_records,
)
from fcl_flower.federation.secure.crypto import Layout, join_shares

CLIENTS = range(4)
PAYLOAD = {"base": {"w": np.arange(3.0)}}
SUM_OF = {
    "clients": np.arange(4),
    "layout": Layout.of(PAYLOAD, weighted=True).to_array(),
}


class Parties:
    """Four clients; `to(step)` plays them all up to a step of the first of them."""

    def __init__(self):
        self.contexts = [
            Context(1, client, {"partition-id": client}, RecordDict(), {})
            for client in CLIENTS
        ]
        self.sealed = {}

    def side(self, client=0):
        return ClientSide(self.contexts[client], FederationSection())

    def keys(self):
        answers = [self.side(c).advertise_keys() for c in CLIENTS]
        self.roster = {
            client: from_records(answer, 2, [client])[client]
            for client, answer in enumerate(answers)
        }
        return self

    def shares(self, clients=CLIENTS):
        for client in clients:
            answer = self.side(client).share_keys(to_records(self.roster))
            others = set(CLIENTS) - {client}
            self.sealed[client] = from_records(answer, 1, others)
        return self

    def masked(self, client=0, **changes):
        update = Update(PAYLOAD, 10, {"loss": 0.5})
        return self.side(client).masked(update, {**SUM_OF, **changes})

    def question(self, absent=(), client=0):
        return {
            owner: (
                ABSENT if owner in absent else PRESENT,
                b"" if owner == client else self.sealed[owner][client][0],
            )
            for owner in CLIENTS
        }


def ready():
    parties = Parties().keys().shares()
    parties.masked()
    return parties


REFUSED = "^secure aggregation: "


def test_an_honest_round_is_answered_and_leaves_no_key_behind():
    parties = Parties().keys().shares()

    sent = parties.masked()
    shares = parties.side().unmask(to_records(parties.question(absent=[2])))

    assert sent.payload.keys() == {"masked"}
    assert (sent.num_examples, sent.metrics) == (0, {"loss": 0.5})
    found = from_records(shares, 1, CLIENTS)
    # A secret has 16 bytes, and a share four more.
    assert {len(share) for (share,) in found.values()} == {20}
    assert KEPT not in parties.contexts[0].state


@pytest.mark.parametrize(("absent", "secret"), [([], "seed"), ([1], "key")])
def test_as_many_shares_as_the_threshold_give_a_secret_and_fewer_do_not(absent, secret):
    """Three of four, by the default share of two thirds."""
    parties = Parties().keys().shares()
    kept = parties.contexts[1].state[KEPT]
    wanted = {"seed": kept["own"][0], "key": kept["private"][0]}[secret]

    shares = []
    for client in (0, 2, 3):
        parties.masked(client)
        question = to_records(parties.question(absent, client))
        answer = parties.side(client).unmask(question)
        shares.append(from_records(answer, 1, CLIENTS)[1][0])

    assert join_shares(shares) == wanted
    for pair in combinations(shares, 2):
        assert join_shares(pair) != wanted


def test_two_vectors_under_one_mask_would_show_their_difference():
    parties = ready()

    with pytest.raises(WireError, match=f"{REFUSED}the step after 'shares' is not"):
        parties.masked()


def test_nobody_is_unmasked_twice():
    parties = ready()
    parties.side().unmask(to_records(parties.question()))

    with pytest.raises(WireError, match=f"{REFUSED}the step after 'masked' is not"):
        parties.side().unmask(to_records(parties.question(absent=[1])))


def test_shares_are_not_given_before_there_is_a_vector():
    parties = Parties().keys().shares()

    with pytest.raises(WireError, match=f"{REFUSED}the step after 'masked' is not"):
        parties.side().unmask(to_records(parties.question()))


def test_a_client_is_present_or_absent_and_never_both():
    parties = ready()
    both = to_records({**parties.question(), 1: (b"both", b"")})

    with pytest.raises(WireError, match=f"{REFUSED}a client is neither"):
        parties.side().unmask(both)


@pytest.mark.parametrize(
    ("absent", "message"),
    [((1, 2), "expected at least 3 of the clients"), ((0,), "this client is not in")],
)
def test_a_sum_over_too_few_is_not_unmasked(absent, message):
    parties = ready()

    with pytest.raises(WireError, match=REFUSED + message):
        parties.side().unmask(to_records(parties.question(absent)))


@pytest.mark.parametrize(
    "clients", [[0, 1], [1, 2, 3], [0, 0, 1, 2], [0, 1, 2, 7]], ids=str
)
def test_nor_is_a_vector_masked_for_it(clients):
    parties = Parties().keys().shares()

    with pytest.raises(WireError, match=REFUSED):
        parties.masked(clients=np.array(clients))


def without(parties):
    del parties.roster[2], parties.roster[3]


def with_another_key(parties):
    parties.roster[0] = (parties.roster[1][0], parties.roster[0][1])


def with_one_key_twice(parties):
    parties.roster[1] = parties.roster[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "expected at least 3 clients, got 2"),
        (with_another_key, "these are not the keys that were sent"),
        (with_one_key_twice, "two clients have one key"),
    ],
)
def test_keys_are_not_shared_with_a_false_roster(change, message):
    parties = Parties().keys()
    change(parties)

    with pytest.raises(WireError, match=REFUSED + message):
        parties.side().share_keys(to_records(parties.roster))


def test_what_others_have_not_sealed_for_it_is_answered_by_nothing():
    parties = ready()
    # Sealed by 1, but for another; and no seal at all.
    question = {
        **parties.question(),
        1: (PRESENT, parties.sealed[1][3][0]),
        2: (PRESENT, b"rubbish"),
    }

    found = from_records(parties.side().unmask(to_records(question)), 1, CLIENTS)

    assert [bool(found[c][0]) for c in CLIENTS] == [True, False, False, True]


def test_what_it_has_sealed_itself_is_not_opened_when_the_server_hands_it_back():
    """Both of a pair have one key: it would show a share of its own secrets."""
    parties = ready()
    question = {**parties.question(), 1: (PRESENT, parties.sealed[0][1][0])}

    found = from_records(parties.side().unmask(to_records(question)), 1, CLIENTS)

    assert [bool(found[c][0]) for c in CLIENTS] == [True, False, True, True]


@pytest.mark.parametrize("more", [{"2": [b"x"] * 4}, {"name": "x"}])
def test_a_table_has_its_columns_and_nothing_else(more):
    records = to_records(dict.fromkeys(CLIENTS, (b"a", b"b")))
    assert from_records(records, 2, CLIENTS)[3] == (b"a", b"b")
    records[RECORD].update(more)
    with pytest.raises(WireError, match="expected 2 columns of short bytes"):
        from_records(records, 2, CLIENTS)


def test_what_the_server_must_say_of_a_sum_is_asked_for():
    parties = Parties().keys().shares()
    with pytest.raises(WireError, match=r"meta/sum: got \[\], expected clients"):
        parties.side().masked(Update(PAYLOAD, 10), {})
