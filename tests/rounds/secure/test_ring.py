"""One sum over a ring, where a client shares masks with its neighbours alone."""

import numpy as np
import pytest
from masked_sums import (
    EXAMPLES,
    LAYOUT,
    PAYLOADS,
    TRAIN,
    Parties,
    at,
    check_mean,
    gone,
)

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import RoundError, WireError
from fcl_flower.core.types import Update
from fcl_flower.rounds.secure.client import (
    ABSENT,
    KEPT,
    KEYS,
    RECORD,
    ROUND,
    SHARES,
    UNMASK,
    to_content,
)
from fcl_flower.rounds.secure.crypto import encode_fixed_point, public_key
from fcl_flower.rounds.transport import Content

CLIENTS = 60
SETTINGS = FederationSection(secure_threshold=0.51, secure_collusion=0.1)
NEIGHBOURS, THRESHOLD, MAY_DROP = 34, 7, 29
VICTIM = 7


def ring(change=None):
    return Parties(change, CLIENTS, SETTINGS)


def neighbours(parties, client=VICTIM):
    return [other for other in parties.sum._holders[client] if other != client]


def without(parties, step, count):
    """Let so many neighbours of one client drop out at a step."""

    def change(client, when, answer):
        lost = neighbours(parties)[:count] if when == step else ()
        return gone(answer) if client in lost else answer

    parties.change = change


def encoded(clients):
    return [
        encode_fixed_point(Update(PAYLOADS[c], EXAMPLES[c]), LAYOUT, CLIENTS)
        for c in clients
    ]


def test_every_client_shares_with_its_neighbours_and_nobody_else():
    parties = ring().agreed()

    for client in range(CLIENTS):
        kept = parties.places[client].state.scalars[KEPT]
        assert len(kept["clients"]) == NEIGHBOURS + 1
        assert len(parties.sum._sealed[client]) == NEIGHBOURS
    assert parties.sum._graph.threshold == THRESHOLD
    orders = [parties.sum._holders, ring().agreed().sum._holders]
    assert orders[0] != orders[1]  # drawn anew for each sum


@pytest.mark.parametrize("step", [SHARES, TRAIN, UNMASK])
def test_a_sum_is_exact_as_long_as_each_has_enough_neighbours(step):
    parties = ring()
    without(parties, step, NEIGHBOURS + 1 - THRESHOLD)

    parties.agreed()
    vectors = parties.vectors()
    total = parties.sum.unmask(vectors)

    lost = NEIGHBOURS + 1 - THRESHOLD if step != UNMASK else 0
    assert len(vectors) == CLIENTS - lost
    assert VICTIM in vectors
    assert (total == np.sum(encoded(vectors), axis=0, dtype=np.uint64)).all()


@pytest.mark.parametrize("step", [SHARES, TRAIN, UNMASK])
def test_a_sum_without_enough_neighbours_of_one_client_is_none(step):
    parties = ring()
    without(parties, step, NEIGHBOURS + 2 - THRESHOLD)

    parties.agreed()
    vectors = parties.vectors()
    # One that knows of it beforehand does not even send its vector.
    assert (VICTIM in vectors) == (step != SHARES)
    why = "at least 31 of 60 must" if step == SHARES else "7 of which must be right"
    with pytest.raises(RoundError, match=why):
        parties.sum.unmask(vectors)


@pytest.mark.parametrize("step", [KEYS, SHARES, TRAIN, UNMASK])
def test_as_many_as_may_drop_out_do_not_end_a_sum_and_one_more_does(step):
    lost = [2 * number for number in range(MAY_DROP)]
    who, mean = ring(at(step, gone, *lost)).total()
    assert {*who} == {*range(CLIENTS)} - ({*lost} if step != UNMASK else set())
    check_mean(who, mean)

    if step == UNMASK:  # shares of enough neighbours are all that is needed there
        return
    with pytest.raises(RoundError, match="at least 31 of 60 must"):
        ring(at(step, gone, *lost, 1)).total()


def test_one_vector_alone_tells_nothing_and_neither_does_a_part_of_them():
    parties = ring().agreed()
    vectors = parties.vectors()
    some = sorted(vectors)[:-1]

    one = vectors[VICTIM] - encoded([VICTIM])[0]
    several = np.sum([vectors[c] for c in some], axis=0, dtype=np.uint64)
    several -= np.sum(encoded(some), axis=0, dtype=np.uint64)

    assert one.all()
    assert several.all()


def test_one_who_gives_wrong_shares_is_found_and_done_without(caplog):
    def rubbish(content):
        table = dict(content.scalars[RECORD])
        table["0"] = [cell[:4] + bytes(17) for cell in table["0"]]
        return Content(scalars={RECORD: table})

    parties = ring(at(UNMASK, rubbish, 0, 1, 2, 30))
    who, mean = parties.total()

    assert len(who) == CLIENTS
    check_mean(who, mean)
    assert parties.sum._suspects <= {0, 1, 2, 30}

    # The first three of twelve, nine of whom are needed, and all of one number.
    caplog.clear()
    parties = Parties(at(UNMASK, rubbish, 0, 1, 2), 12)
    check_mean(*parties.total())
    assert parties.sum._suspects == {0, 1, 2}
    told = [line for line in caplog.messages if line.endswith("of client 0")]
    assert told == [
        f"client {client} gave a wrong share of a secret of client 0"
        for client in (0, 1, 2)
    ]


def test_a_search_for_right_shares_comes_to_an_end(monkeypatch):
    asked = []

    def counted(secret):
        asked.append(secret)
        return public_key(secret)

    def rubbish(content):
        table = dict(content.scalars[RECORD])
        table["0"] = [cell[:20] + b"\0" for cell in table["0"]]
        return Content(scalars={RECORD: table})

    usual = FederationSection(secure_threshold=0.51)
    parties = Parties(at(UNMASK, rubbish, *range(14)), 30, usual)
    parties.agreed()
    vectors = parties.vectors()
    monkeypatch.setattr("fcl_flower.rounds.secure.crypto.public_key", counted)
    with pytest.raises(RoundError, match="the masks of client 0 cannot be taken off"):
        parties.sum.unmask(vectors)
    assert len(asked) <= 1000


# ---- a client on a ring, and a server that cheats


def test_a_client_refuses_to_unmask_with_fewer_names_than_the_threshold():
    parties = ring().agreed()
    parties.masked(VICTIM)
    absent = neighbours(parties)[: NEIGHBOURS + 2 - THRESHOLD]

    with pytest.raises(WireError, match="expected at least 7 of the clients"):
        parties.side(VICTIM).unmask(to_content(parties.question(VICTIM, absent)))


@pytest.mark.parametrize("more", [0, 1])
def test_a_client_refuses_a_request_for_both_secrets_of_one_or_for_a_strangers(more):
    parties = ring().agreed()
    parties.masked(VICTIM)
    table = parties.question(VICTIM)
    one = neighbours(parties)[0]
    strangers = {*range(CLIENTS)} - {*parties.sum._holders[VICTIM]}
    other = min(strangers) if more else one

    content = to_content({**table, CLIENTS: (ABSENT, table[one][1])})
    content.scalars[RECORD]["clients"][-1] = other

    with pytest.raises(WireError, match=f"{RECORD}: expected a row for each"):
        parties.side(VICTIM).unmask(content)


def test_a_client_refuses_to_mask_for_strangers_or_too_few():
    parties = ring().agreed()
    near = parties.sum.holders(VICTIM)
    stranger = min({*range(CLIENTS)} - {*near})
    for clients in ([*near, stranger], [VICTIM, *neighbours(parties)[:2]]):
        with pytest.raises(WireError, match="expected at least 7 of the clients"):
            parties.masked(VICTIM, clients=np.array(clients))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (60, "expected the keys of 35 of 60 clients, got 5"),
        (4, "expected the keys of 4 of 4 clients, got 5"),
        (2**20 + 1, f"{ROUND}: expected a number of clients up to {2**20}"),
        (-1, f"{ROUND}: expected a number of clients up to"),
    ],
)
def test_a_client_refuses_a_number_of_clients_that_its_neighbours_do_not_fit(
    clients, message
):
    with pytest.raises(WireError, match=message):
        Parties(section=SETTINGS).share_keys(lambda roster: roster, clients)


@pytest.mark.parametrize("said", [None, "60", 60.0, [60]])
def test_a_client_asks_for_the_number_of_clients(said):
    parties = ring()
    content = parties.side().advertise_keys()
    del content.scalars[RECORD]["2"]
    if said is not None:
        content.scalars[ROUND] = {"clients": said}
    with pytest.raises(WireError, match=f"{ROUND}: expected a number of clients"):
        parties.side().share_keys(content)
