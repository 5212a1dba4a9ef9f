"""One sum, without a federation: what clients answer and refuse, and who spoils it."""

from itertools import combinations

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

from fcl_flower.core.errors import RoundError, WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Update
from fcl_flower.rounds.secure.client import (
    ABSENT,
    KEPT,
    KEYS,
    PRESENT,
    RECORD,
    SHARES,
    UNMASK,
    from_content,
    to_content,
)
from fcl_flower.rounds.secure.crypto import encode_fixed_point, join_shares
from fcl_flower.rounds.transport import Content

CLIENTS = range(5)
HOSTILE = 1


# ---- a client, and a server that cheats


def test_an_honest_round_is_answered_and_leaves_no_key_behind():
    parties = Parties().agreed()

    sent = parties.masked()

    assert sent.payload.keys() == {"masked"}
    assert (sent.num_examples, sent.metrics) == (0, {"loss": 0.5})
    # A secret has 16 bytes, and a share five more.
    assert parties.unmask(absent=[2]) == [21] * 5
    assert KEPT not in parties.places[0].state.scalars


@pytest.mark.parametrize(("state", "secret"), [(PRESENT, 1), (ABSENT, 0)])
def test_as_many_shares_as_the_threshold_give_a_secret_and_fewer_do_not(state, secret):
    """Four of five, by the default share of two thirds."""
    parties = Parties().agreed()
    wanted = parties.places[1].state.scalars[KEPT]["own"][secret]
    if state == ABSENT:
        parties.change = cheat(TRAIN, "gone")
    vectors = parties.vectors()
    absent = [1] if state == ABSENT else []
    asked = {c: to_content(parties.question(c, absent)) for c in vectors}
    answers, _ = parties.ask(UNMASK, asked, lambda client: CLIENTS, 1, 0)

    shares = [answer[1][0] for client, answer in answers.items() if client != 1]

    assert join_shares(shares) == wanted
    for few in combinations(shares, 3):
        try:
            assert join_shares(few) != wanted
        except ValueError:  # of no secret
            continue


TOO_FEW = "expected at least 4 of the clients"
NOT_IN = "this client is not in the sum"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        # Two vectors under one mask would show their difference.
        (lambda p: p.trained().masked(), "the step after 'shares' is not next"),
        (lambda p: [p.trained().unmask(), p.unmask()], "the step after 'masked' is no"),
        (lambda p: p.agreed().unmask(), "the step after 'masked' is not next"),
        (
            lambda p: p.trained().unmask((), {1: (b"x", b"")}),
            "a client is neither here",
        ),
        (lambda p: p.trained().unmask(absent=(1, 2)), TOO_FEW),
        (lambda p: p.trained().unmask(absent=(0,)), NOT_IN),
        (lambda p: p.agreed().masked(clients=[0, 1]), TOO_FEW),
        (lambda p: p.agreed().masked(clients=[1, 2, 3, 4]), NOT_IN),
        (lambda p: p.agreed().masked(clients=[0, 0, 1, 2, 3]), TOO_FEW),
        (lambda p: p.agreed().masked(clients=[0, 1, 2, 7]), TOO_FEW),
        (
            lambda p: p.share_keys(lambda r: {0: r[0], 1: r[1]}),
            "expected at least 3 clients, got 2",
        ),
        (
            lambda p: p.share_keys(lambda r: {**r, 0: (r[1][0], r[0][1])}),
            "these are not the keys that were sent",
        ),
        (
            lambda p: p.share_keys(lambda r: {**r, 1: r[2]}),
            "two clients have one key",
        ),
    ],
)
def test_a_client_refuses_what_would_show_its_update(ask, message):
    with pytest.raises(WireError, match=f"^secure aggregation: {message}"):
        ask(Parties())


def test_what_others_have_not_sealed_for_it_is_answered_by_nothing():
    parties = Parties().trained()
    sealed = parties.sum._sealed
    changed = {
        1: (PRESENT, sealed[1][3][0]),  # for another
        2: (PRESENT, b"rubbish"),
        # Both of a pair have one key: it would show a share of its own secrets.
        3: (PRESENT, sealed[0][3][0]),
    }

    assert parties.unmask(changed=changed) == [21, 0, 0, 0, 21]


@pytest.mark.parametrize("more", [{"2": [b"x"] * 5}, {"name": "x"}])
def test_a_table_has_its_columns_and_nothing_else(more):
    content = to_content(dict.fromkeys(CLIENTS, (b"a", b"b")))
    assert from_content(content, 2, CLIENTS)[3] == (b"a", b"b")
    content.scalars[RECORD].update(more)
    with pytest.raises(WireError, match="expected 2 columns of short bytes"):
        from_content(content, 2, CLIENTS)


def test_what_the_server_must_say_of_a_sum_is_asked_for():
    parties = Parties().agreed()
    with pytest.raises(WireError, match=r"meta/sum: got \[\], expected clients"):
        parties.side().masked(Update(PAYLOADS[0], 10), {})


# ---- a server, and clients that drop out or cheat


TABLES = {
    "rubbish": lambda c: {**c, "0": [bytes(len(cell)) for cell in c["0"]]},
    "huge": lambda c: {**c, "0": [b"x" * 2**15 for _ in c["0"]]},
    "one less": lambda c: {key: values[1:] for key, values in c.items()},
    "one twice": lambda c: {key: [*values, values[0]] for key, values in c.items()},
    "of others": lambda c: {**c, "clients": [n + 100 for n in c["clients"]]},
    "nothing": lambda c: {},
    "numbers": lambda c: {**c, "0": [1 for _ in c["0"]]},
    "one key": lambda c: {**c, "1": c["0"]},
    "of low order": lambda c: {**c, "0": [bytes(32)]},
    # One more bit, which says nothing to X25519, on a key of its own.
    "spelt anew": lambda c: {
        **c,
        "1": [c["0"][0][:31] + bytes([c["0"][0][31] | 0x80])],
    },
}
NO_TABLE = ["gone", "huge", "one less", "one twice", "of others", "nothing", "numbers"]
NO_KEYS = ["rubbish", "one key", "of low order", "spelt anew"]
NO_SHARES = ["gone", "rubbish", "huge", "one less", "nothing", "numbers"]


def cheat(step, name, *whom):
    """Change the answers of one, or of some, at a step."""

    def changed(content):
        if name == "gone":
            gone(content)
        table = TABLES[name](dict(content.scalars[RECORD]))
        return Content(scalars={RECORD: table})

    return at(step, changed, *(whom or (HOSTILE,)))


@pytest.mark.parametrize(
    ("step", "how", "why"),
    [
        *((step, how, step) for step in (KEYS, SHARES) for how in NO_TABLE),
        *(
            (KEYS, how, "secure_keys: expected three keys of its own")
            for how in NO_KEYS
        ),
        (TRAIN, "gone", ""),
    ],
)
def test_one_who_does_not_answer_before_the_sum_is_left_out(step, how, why):
    parties = Parties(cheat(step, how))

    who, mean = parties.total()

    assert who == [0, 2, 3, 4]
    check_mean(who, mean)
    assert parties.sum.failures.get(HOSTILE, "").startswith(why)


@pytest.mark.parametrize("how", NO_SHARES)
def test_one_who_answers_wrongly_after_it_is_done_without(how):
    who, mean = Parties(cheat(UNMASK, how)).total()

    assert who == [*CLIENTS]
    check_mean(who, mean)


@pytest.mark.parametrize("step", [KEYS, SHARES, TRAIN, UNMASK])
def test_too_few_end_the_attempt(step):
    with pytest.raises(RoundError, match=r"at least 4 of 5 must; left|4 of which must"):
        Parties(cheat(step, "gone", 1, 2)).total()


def drawn(vector):
    rng = np.random.default_rng(derive(0, "rubbish"))
    return rng.integers(0, 2**64, len(vector), dtype=np.uint64)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            at(TRAIN, drawn, HOSTILE),
            "has no zeros at its head, as one of the vectors is wrong",
        ),
        (cheat(SHARES, "rubbish"), "the masks of client 1 cannot be taken off with"),
    ],
)
def test_what_spoils_a_sum_is_never_averaged(how, why):
    with pytest.raises(RoundError, match=why):
        Parties(how).total()


def spread(vector):
    """By how much bytes are not as if drawn: of 255 degrees of freedom."""
    counts = np.bincount(vector.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum()


def test_a_vector_is_as_good_as_drawn_and_their_sum_is_exact():
    parties = Parties().agreed()
    vectors = parties.vectors()
    true = {
        c: encode_fixed_point(Update(PAYLOADS[c], EXAMPLES[c]), LAYOUT, len(CLIENTS))
        for c in CLIENTS
    }

    total = parties.sum.unmask(vectors)

    assert (total == np.sum([*true.values()], axis=0, dtype=np.uint64)).all()
    for client, vector in vectors.items():
        # Of it, of its difference to the truth, and of all sums but the last.
        for looked_at in (vector, vector - true[client], vector - total):
            assert abs(spread(looked_at) - 255) < 8 * np.sqrt(2 * 255)
    # The same test sees what is there to see without masks.
    assert spread(true[0]) > 1000
