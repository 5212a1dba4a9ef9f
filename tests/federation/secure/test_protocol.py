"""One sum, without a federation: what clients answer and refuse, and who spoils it."""

from itertools import combinations

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

from fcl_flower.config.sections import FederationSection
from fcl_flower.core.errors import RoundError, WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Update
from fcl_flower.federation.secure.client import (
    ABSENT,
    KEPT,
    KEYS,
    PRESENT,
    RECORD,
    SHARES,
    UNMASK,
    ClientSide,
    from_records,
    to_records,
)
from fcl_flower.federation.secure.crypto import (
    Layout,
    decode_fixed_point,
    encode_fixed_point,
    join_shares,
)
from fcl_flower.federation.secure.server import MaskedSum

TRAIN = "train"
CLIENTS = range(5)
HOSTILE = 1
PAYLOADS = [{"base": {"w": np.arange(100.0) / (c + 1)}} for c in CLIENTS]
EXAMPLES = [10, 7, 1, 20, 3]
LAYOUT = Layout.of(PAYLOADS[0], weighted=True)
SUM_OF = {"clients": np.arange(5), "layout": LAYOUT.to_array()}


class Parties:
    """Five clients, and the channel of a server that asks them at once.

    ``change(client, step, answer)`` may return another answer, or raise.
    """

    def __init__(self, change=None):
        self.contexts = [
            Context(1, client, {"partition-id": client}, RecordDict(), {})
            for client in CLIENTS
        ]
        self.change = change or (lambda client, step, answer: answer)
        self.sum = MaskedSum(self, FederationSection())

    def side(self, client=0):
        return ClientSide(self.contexts[client], FederationSection())

    def ask(self, query, tables, rows, columns, least):
        answers, failures = {}, {}
        for client, table in tables.items():
            side = self.side(client)
            try:
                if query == KEYS:
                    answer = side.advertise_keys()
                else:
                    step = side.share_keys if query == SHARES else side.unmask
                    answer = step(to_records(table))
                answer = self.change(client, query, answer)
                answers[client] = from_records(answer, columns, rows(client))
            except Exception as error:
                failures[client] = f"{query}: {error}"
        return answers, failures

    def masked(self, client=0, **changes):
        update = Update(PAYLOADS[client], EXAMPLES[client], {"loss": 0.5})
        return self.side(client).masked(update, {**SUM_OF, **changes})

    def vectors(self):
        """Train those who agreed; return the vectors that come."""
        agreed, found = np.array(self.sum.clients), {}
        for client in self.sum.clients:
            vector = self.masked(client, clients=agreed).payload["masked"]["vector"]
            try:
                found[client] = self.change(client, TRAIN, vector)
            except RuntimeError:
                continue
        return found

    def total(self):
        """Go through a whole sum; return who is in it, and the mean."""
        self.sum.agree(CLIENTS)
        vectors = self.vectors()
        mean = decode_fixed_point(self.sum.unmask(vectors), LAYOUT)
        return [*vectors], mean.payload["base"]["w"]

    def agreed(self):
        self.sum.agree(CLIENTS)
        return self

    def trained(self):
        self.agreed().masked()
        return self

    def question(self, absent=()):
        """What the server asks of client 0 at the end."""
        return {
            owner: (
                ABSENT if owner in absent else PRESENT,
                self.sum._sealed[owner][0][0] if owner else b"",
            )
            for owner in CLIENTS
        }


# ---- a client, and a server that cheats

REFUSED = "^secure aggregation: "


def test_an_honest_round_is_answered_and_leaves_no_key_behind():
    parties = Parties().agreed()

    sent = parties.masked()
    shares = parties.side().unmask(to_records(parties.question(absent=[2])))

    assert sent.payload.keys() == {"masked"}
    assert (sent.num_examples, sent.metrics) == (0, {"loss": 0.5})
    found = from_records(shares, 1, CLIENTS)
    # A secret has 16 bytes, and a share four more.
    assert {len(share) for (share,) in found.values()} == {20}
    assert KEPT not in parties.contexts[0].state


@pytest.mark.parametrize(("state", "secret"), [(PRESENT, "own"), (ABSENT, "private")])
def test_as_many_shares_as_the_threshold_give_a_secret_and_fewer_do_not(state, secret):
    """Four of five, by the default share of two thirds."""
    parties = Parties().agreed()
    wanted = parties.contexts[1].state[KEPT][secret][0]
    if state == ABSENT:
        parties.change = lambda client, step, answer: gone() if client == 1 else answer
    vectors = parties.vectors()
    asked = {
        client: {
            owner: (
                state if owner == 1 else PRESENT,
                b"" if owner == client else parties.sum._sealed[owner][client][0],
            )
            for owner in CLIENTS
        }
        for client in vectors
    }
    answers, _ = parties.ask(UNMASK, asked, lambda client: CLIENTS, 1, 0)

    shares = [answer[1][0] for client, answer in answers.items() if client != 1]

    assert join_shares(shares) == wanted
    for few in combinations(shares, 3):
        assert join_shares(few) != wanted


def twice_masked(parties):
    parties.trained().masked()


def twice_unmasked(parties):
    question = to_records(parties.trained().question())
    parties.side().unmask(question)
    parties.side().unmask(question)


def unmasked_before_the_vector(parties):
    question = to_records(parties.agreed().question())
    parties.side().unmask(question)


def neither_here_nor_absent(parties):
    question = {**parties.trained().question(), 1: (b"both", b"")}
    parties.side().unmask(to_records(question))


def unmasked_without(*absent):
    def ask(parties):
        question = to_records(parties.trained().question(absent))
        parties.side().unmask(question)

    return ask


def masked_for(*clients):
    return lambda parties: parties.agreed().masked(clients=np.array(clients))


def roster_of(change):
    def ask(parties):
        asked = {client: {} for client in CLIENTS}
        answers, _ = parties.ask(KEYS, asked, lambda client: [client], 2, 0)
        roster = {client: table[client] for client, table in answers.items()}
        parties.side().share_keys(to_records(change(roster)))

    return ask


def too_few(roster):
    return {client: roster[client] for client in (0, 1)}


def with_another_key(roster):
    return {**roster, 0: (roster[1][0], roster[0][1])}


def with_one_key_twice(roster):
    return {**roster, 1: roster[2]}


TOO_FEW = "expected at least 4 of the clients"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        # Two vectors under one mask would show their difference.
        (twice_masked, "the step after 'shares' is not next"),
        (twice_unmasked, "the step after 'masked' is not next"),
        (unmasked_before_the_vector, "the step after 'masked' is not next"),
        (neither_here_nor_absent, "a client is neither here nor absent"),
        (unmasked_without(1, 2), TOO_FEW),
        (unmasked_without(0), "this client is not in the sum"),
        (masked_for(0, 1), TOO_FEW),
        (masked_for(1, 2, 3, 4), "this client is not in the sum"),
        (masked_for(0, 0, 1, 2, 3), TOO_FEW),
        (masked_for(0, 1, 2, 7), TOO_FEW),
        (roster_of(too_few), "expected at least 3 clients, got 2"),
        (roster_of(with_another_key), "these are not the keys that were sent"),
        (roster_of(with_one_key_twice), "two clients have one key"),
    ],
)
def test_a_client_refuses_what_would_show_its_update(ask, message):
    with pytest.raises(WireError, match=REFUSED + message):
        ask(Parties())


def test_what_others_have_not_sealed_for_it_is_answered_by_nothing():
    parties = Parties().trained()
    sealed = parties.sum._sealed
    question = {
        **parties.question(),
        1: (PRESENT, sealed[1][3][0]),  # for another
        2: (PRESENT, b"rubbish"),
        # Both of a pair have one key: it would show a share of its own secrets.
        3: (PRESENT, sealed[0][3][0]),
    }

    found = from_records(parties.side().unmask(to_records(question)), 1, CLIENTS)

    assert [bool(found[c][0]) for c in CLIENTS] == [True, False, False, False, True]


@pytest.mark.parametrize("more", [{"2": [b"x"] * 5}, {"name": "x"}])
def test_a_table_has_its_columns_and_nothing_else(more):
    records = to_records(dict.fromkeys(CLIENTS, (b"a", b"b")))
    assert from_records(records, 2, CLIENTS)[3] == (b"a", b"b")
    records[RECORD].update(more)
    with pytest.raises(WireError, match="expected 2 columns of short bytes"):
        from_records(records, 2, CLIENTS)


def test_what_the_server_must_say_of_a_sum_is_asked_for():
    parties = Parties().agreed()
    with pytest.raises(WireError, match=r"meta/sum: got \[\], expected clients"):
        parties.side().masked(Update(PAYLOADS[0], 10), {})


# ---- a server, and clients that drop out or cheat


def gone():
    raise RuntimeError("gone")


def at(step, change, *whom):
    """Change the answers of some at a step."""
    whom = whom or (HOSTILE,)

    def tamper(client, when, answer):
        return change(answer) if when == step and client in whom else answer

    return tamper


def dropped(answer):
    gone()


def table(change):
    """Change the columns of an answer that is a table."""

    def changed(records):
        content = dict(records.config_records[RECORD])
        return RecordDict({RECORD: ConfigRecord(change(content))})

    changed.__name__ = change.__name__
    return changed


@table
def rubbish(content):
    return {**content, "0": [bytes(len(cell)) for cell in content["0"]]}


@table
def huge(content):
    return {**content, "0": [b"x" * 2**15 for _ in content["0"]]}


@table
def one_less(content):
    return {key: values[1:] for key, values in content.items()}


@table
def one_twice(content):
    return {key: [*values, values[0]] for key, values in content.items()}


@table
def of_others(content):
    return {**content, "clients": [number + 100 for number in content["clients"]]}


@table
def nothing(content):
    return {}


@table
def numbers(content):
    return {**content, "0": [1 for _ in content["0"]]}


@table
def one_key(content):
    return {**content, "1": content["0"]}


@table
def of_low_order(content):
    return {**content, "0": [bytes(32)]}


@table
def one_key_spelt_anew(content):
    """One more bit, which says nothing to X25519, on a key of its own."""
    (key,) = content["0"]
    return {**content, "1": [key[:31] + bytes([key[31] | 0x80])]}


NO_TABLE = [huge, one_less, one_twice, of_others, nothing, numbers]
NO_KEYS = [rubbish, one_key, of_low_order, one_key_spelt_anew]
NO_SHARES = [rubbish, huge, one_less, nothing, numbers]


def check_mean(who, mean):
    weights = [EXAMPLES[c] for c in who]
    tensors = [PAYLOADS[c]["base"]["w"] for c in who]
    np.testing.assert_allclose(mean, np.average(tensors, 0, weights), atol=1e-9)


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        *((step, c, step) for step in (KEYS, SHARES) for c in [dropped, *NO_TABLE]),
        *((KEYS, c, "secure_keys: expected two keys of its own") for c in NO_KEYS),
        (TRAIN, dropped, ""),
    ],
)
def test_one_who_does_not_answer_before_the_sum_is_left_out(step, change, why):
    parties = Parties(at(step, change))

    who, mean = parties.total()

    assert who == [0, 2, 3, 4]
    check_mean(who, mean)
    assert parties.sum.failures.get(HOSTILE, "").startswith(why)


@pytest.mark.parametrize("change", [dropped, *NO_SHARES])
def test_one_who_answers_wrongly_after_it_is_done_without(change):
    who, mean = Parties(at(UNMASK, change)).total()

    assert who == [*CLIENTS]
    check_mean(who, mean)


@pytest.mark.parametrize("step", [KEYS, SHARES, TRAIN, UNMASK])
def test_too_few_end_the_attempt(step):
    with pytest.raises(RoundError, match=r"at least 4 of 5 must; left|4 of which must"):
        Parties(at(step, dropped, 1, 2)).total()


def drawn(vector):
    rng = np.random.default_rng(derive(0, "rubbish"))
    return rng.integers(0, 2**64, len(vector), dtype=np.uint64)


@pytest.mark.parametrize(("step", "change"), [(TRAIN, drawn), (SHARES, rubbish)])
def test_what_spoils_a_sum_is_never_averaged(step, change):
    with pytest.raises(RoundError, match=r"the masks of \[.*\] cannot be taken off"):
        Parties(at(step, change)).total()


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
