"""Whole rounds in this process, before a server that looks at all that it gets."""

import time
from collections import Counter

import numpy as np
import pytest
from analytic_cases import start
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fcl_flower.core.errors import RoundError
from fcl_flower.core.schedule import derive
from fcl_flower.federation import byte_counts, messages
from fcl_flower.federation.checkpoint import FolderStateStore
from fcl_flower.federation.codec import encode
from fcl_flower.federation.secure import crypto, server
from fcl_flower.federation.secure.client import RECORD

KEYS, SHARES, TRAIN, UNMASK = STEPS = (
    *("query.secure_keys", "query.secure_shares", "train", "query.secure_unmask"),
)
CLIENTS, HOSTILE = 5, 1
LAYOUTS = {"fedavg": True, "analytic": False}


def config(folder, *, secure=True, **values):
    small = {"strategy": "fedavg", "clients": CLIENTS, "tasks": 1, "rounds": 1}
    return tiny(folder, **{**small, **values}, secure_aggregation=secure)


def model(folder):
    found = FolderStateStore(folder / "checkpoint").load(before=2**31)
    return {name: np.asarray(t) for name, t in found.state["base"].items()}


def same_model(folder, other, atol=1e-9):
    found, expected = model(folder), model(other)
    for name, tensor in expected.items():
        # Both are float32, rounded once, from sums that differ by 2^-33 a client.
        np.testing.assert_allclose(found[name], tensor, rtol=3e-7, atol=atol)


def failing(*whom, at, first=1):
    """These clients do not answer at a step, from its ``first`` time on."""
    seen = dict.fromkeys(whom, 0)

    def tamper(client, message, reply):
        if client in whom and message.metadata.message_type == at:
            seen[client] += 1
            return failure(message, "gone") if seen[client] >= first else reply
        return reply

    return tamper


def at_step(step, change):
    """The hostile client's answers at a step are ``change(records)``."""

    def tamper(client, message, reply):
        hit = client == HOSTILE and message.metadata.message_type == step
        return Message(change(reply.content), reply_to=message) if hit else reply

    return tamper


def watching(found):
    """Keep the payloads of trainings by client, of the first round."""

    def tamper(client, message, reply):
        if message.metadata.message_type == TRAIN:
            found.setdefault(
                client,
                messages.decode_update(
                    reply.content, messages.decode_request(message.content).stage
                ),
            )
        return reply

    return tamper


# ---- the sum


@pytest.mark.parametrize("strategy", ["fedavg", "analytic"])
def test_the_server_gets_the_exact_sum_of_what_was_rounded_and_no_summand(
    tmp_path, monkeypatch, strategy
):
    sums, plain, masked = [], {}, {}
    decode = crypto.decode_fixed_point

    def recording(total, layout):
        sums.append((total, layout))
        return decode(total, layout)

    monkeypatch.setattr(server.crypto, "decode_fixed_point", recording)
    runs = {}
    for secure, found in ((False, plain), (True, masked)):
        folder = tmp_path / str(secure)
        if strategy == "fedavg":
            runs[secure] = config(folder, secure=secure)
        else:
            runs[secure] = start(
                folder,
                tasks=2,
                strategy={"name": strategy, "form": "gram", "min_samples": 1},
                secure_aggregation=secure,
            )
        run_in_process(runs[secure], tamper=watching(found))
    total, layout = sums[0]

    clients = len(plain)
    true = [crypto.encode_fixed_point(plain[c], layout, clients) for c in sorted(plain)]
    assert (total == np.sum(true, axis=0, dtype=np.uint64)).all()
    assert layout.weighted == LAYOUTS[strategy]
    for client, update in masked.items():
        assert update.payload.keys() == {"masked"}
        assert update.num_examples == 0
        vector = np.asarray(update.payload["masked"]["vector"])
        # Bytes of a vector, of its difference to the truth and of all sums but the
        # last are as good as drawn: 255 degrees of freedom, eight deviations.
        for looked_at in (vector, vector - true[client], vector - total):
            counts = np.bincount(looked_at.view(np.uint8), minlength=256)
            expected = counts.sum() / 256
            statistic = float(((counts - expected) ** 2 / expected).sum())
            assert abs(statistic - 255) < 8 * np.sqrt(2 * 255)
    # The same test sees what is there to see without masks.
    counts = np.bincount(true[0].view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() > 1000


def test_every_byte_is_counted_and_evaluations_know_nothing_of_the_sum(tmp_path):
    up, down = Counter(), Counter()

    def tamper(client, message, reply):
        if message.metadata.message_type != "query":  # of who is there
            up.update(byte_counts.traffic(reply.content))
            down.update(byte_counts.traffic(message.content))
        if message.metadata.message_type == "evaluate":
            assert message.content.array_records.keys() == {"base"}
        return reply

    run_in_process(config(tmp_path), tamper=tamper)

    found = summary_of(tmp_path)["bytes_by_kind"]
    assert found == {"up": dict(up), "down": dict(down)}


# ---- who drops out


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_drops_out_is_in_the_sum_if_its_vector_has_come(tmp_path, step):
    gone = 3
    run_in_process(config(tmp_path / "secure"), tamper=failing(gone, at=step))
    stays = step == UNMASK
    lost = None if stays else failing(gone, at=TRAIN)
    run_in_process(config(tmp_path / "plain", secure=False), tamper=lost)

    same_model(tmp_path / "secure", tmp_path / "plain")
    for row in rounds_of(tmp_path / "secure"):
        assert (gone in row["clients"]) == stays
        assert (gone in row["failed"]) == (not stays)


@pytest.mark.parametrize("step", STEPS)
def test_with_a_quorum_nobody_waits_for_who_is_silent(tmp_path, step):
    def silent(client, message, reply):
        hit = client == HOSTILE and message.metadata.message_type == step
        return None if hit else reply

    began = time.monotonic()
    run_in_process(
        config(tmp_path, quorum=0.6, timeout=60, max_attempts=1), tamper=silent
    )

    assert time.monotonic() - began < 30
    (row,) = rounds_of(tmp_path)
    assert set(row["clients"]) >= {0, 2, 3, 4}


def test_a_quorum_closes_nothing_before_a_sum_has_what_it_needs(tmp_path):
    run_in_process(
        config(tmp_path, quorum=0.4, timeout=60, max_attempts=1),
        delay=lambda client: 2 * client,
    )

    (row,) = rounds_of(tmp_path)
    assert len(row["clients"]) >= 3


@pytest.mark.parametrize("step", STEPS)
def test_a_round_that_too_few_finish_is_tried_again_and_then_given_up(tmp_path, step):
    with pytest.raises(
        RoundError, match=r"secure aggregation: .*at least|must be right"
    ):
        run_in_process(config(tmp_path, max_attempts=2), tamper=failing(1, 2, at=step))
    assert not (tmp_path / "rounds.jsonl").read_text()


def test_the_second_attempt_has_masks_of_its_own(tmp_path):
    calls = []

    def tamper(client, message, reply):
        kind = message.metadata.message_type
        calls.append((client, kind))
        first = calls.count((client, kind)) == 1
        if kind == UNMASK and client in (1, 2) and first:
            return failure(message, "gone")
        return reply

    kept = {"client_state": str(tmp_path / "clients")}  # a round can be repeated
    run_in_process(config(tmp_path / "secure", **kept), tamper=tamper)
    run_in_process(config(tmp_path / "plain", secure=False))

    assert calls.count((0, KEYS)) == calls.count((0, TRAIN)) == 2
    same_model(tmp_path / "secure", tmp_path / "plain")


# ---- who cheats


def table(change):
    """Change the columns of an answer that is a table."""

    def changed(records):
        content = dict(records.config_records[RECORD])
        return RecordDict({RECORD: ConfigRecord(change(content))})

    return changed


def rubbish(content):
    column = content["0"]
    return {**content, "0": [bytes(len(cell)) for cell in column]}


def huge(content):
    return {**content, "0": [b"x" * 2**15 for _ in content["0"]]}


def one_less(content):
    return {key: values[1:] for key, values in content.items()}


def one_twice(content):
    return {key: [*values, values[0]] for key, values in content.items()}


def of_others(content):
    return {**content, "clients": [number + 100 for number in content["clients"]]}


def nothing(content):
    return {}


def numbers(content):
    return {**content, "0": [1 for _ in content["0"]]}


@pytest.mark.parametrize("step", [KEYS, SHARES])
@pytest.mark.parametrize(
    "change",
    [huge, one_less, one_twice, of_others, nothing, numbers],
    ids=lambda f: f.__name__,
)
def test_a_client_that_answers_with_no_such_table_is_left_out(tmp_path, step, change):
    run_in_process(config(tmp_path / "a"), tamper=at_step(step, table(change)))
    run_in_process(
        config(tmp_path / "b", secure=False), tamper=failing(HOSTILE, at=TRAIN)
    )

    same_model(tmp_path / "a", tmp_path / "b")
    for row in rounds_of(tmp_path / "a"):
        assert step.removeprefix("query.") in row["reasons"][str(HOSTILE)]


def one_key(content):
    return {**content, "1": content["0"]}


def of_low_order(content):
    return {**content, "0": [bytes(32)]}


def one_key_spelt_anew(content):
    """One more bit, which says nothing to X25519, on a key of its own."""
    (key,) = content["0"]
    return {**content, "1": [key[:31] + bytes([key[31] | 0x80])]}


@pytest.mark.parametrize(
    "change",
    [rubbish, one_key, of_low_order, one_key_spelt_anew],
    ids=lambda f: f.__name__,
)
def test_so_is_one_without_keys(tmp_path, change):
    run_in_process(config(tmp_path), tamper=at_step(KEYS, table(change)))

    for row in rounds_of(tmp_path):
        assert "expected two keys of its own" in row["reasons"][str(HOSTILE)]


@pytest.mark.parametrize(
    "change", [rubbish, huge, one_less, nothing, numbers], ids=lambda f: f.__name__
)
def test_wrong_shares_of_one_client_are_found_and_done_without(tmp_path, change):
    run_in_process(config(tmp_path / "a"), tamper=at_step(UNMASK, table(change)))
    run_in_process(config(tmp_path / "b", secure=False))

    same_model(tmp_path / "a", tmp_path / "b")


def with_vector(change):
    """Change the masked vector of an update."""

    def changed(records):
        array = records.array_records["masked"]["vector"]
        vector = change(np.frombuffer(array.data, np.uint64).copy())
        made = encode(vector)
        records.array_records["masked"] = ArrayRecord(
            {"vector": Array(made.dtype, made.shape, made.form, made.data)}
        )
        return records

    return changed


@pytest.mark.parametrize(
    "change",
    [lambda v: v[1:], lambda v: v.astype(np.int64), lambda v: v[None]],
    ids=["short", "another dtype", "another shape"],
)
def test_a_vector_of_another_shape_is_refused_by_name(tmp_path, change):
    run_in_process(config(tmp_path / "a"), tamper=at_step(TRAIN, with_vector(change)))
    run_in_process(
        config(tmp_path / "b", secure=False), tamper=failing(HOSTILE, at=TRAIN)
    )

    same_model(tmp_path / "a", tmp_path / "b")
    for row in rounds_of(tmp_path / "a"):
        assert "masked/vector: expected uint64" in row["reasons"][str(HOSTILE)]


def drawn(vector):
    rng = np.random.default_rng(derive(0, "rubbish"))
    return rng.integers(0, 2**64, len(vector), dtype=np.uint64)


def enormous(vector):
    vector[10:] += np.uint64(2**61)
    return vector


@pytest.mark.parametrize(
    ("step", "change", "message"),
    [
        (TRAIN, with_vector(drawn), "masks of .* cannot be taken off"),
        (SHARES, table(rubbish), "masks of .* cannot be taken off"),
        (TRAIN, with_vector(enormous), "is not used: norm: expected at most"),
    ],
    ids=["a vector", "shares for others", "a norm"],
)
def test_what_spoils_a_sum_ends_the_run_and_is_never_averaged(
    tmp_path, step, change, message
):
    with pytest.raises(RoundError, match=message):
        run_in_process(config(tmp_path, max_attempts=2), tamper=at_step(step, change))
    assert not (tmp_path / "rounds.jsonl").read_text()
