"""Whole rounds in this process, before a server that looks at all that it gets."""

import time
from collections import Counter

import numpy as np
import pytest
from analytic_cases import start
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from mutants import with_array

from fcl_flower.core.errors import RoundError
from fcl_flower.rounds import byte_counts
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.codec import encode
from fcl_flower.rounds.transport import Reply

pytestmark = pytest.mark.run

KEYS, SHARES, TRAIN, UNMASK = (
    *("query.secure_keys", "query.secure_shares", "train", "query.secure_unmask"),
)
CLIENTS, HOSTILE = 5, 1


def config(folder, *, secure=True, **values):
    small = {"strategy": "fedavg", "clients": CLIENTS, "tasks": 1, "rounds": 1}
    return tiny(folder, **{**small, **values}, secure_aggregation=secure)


def same_state(folder, other, group="base"):
    found, expected = (
        FolderStateStore(one / "checkpoint").load(before=2**31).state[group]
        for one in (folder, other)
    )
    for name, tensor in expected.items():
        # Both are float32, rounded once, from sums that differ by 2^-33 a client.
        np.testing.assert_allclose(
            np.asarray(found[name]), np.asarray(tensor), rtol=3e-7, atol=1e-9
        )


def at_step(step, change):
    """The hostile client's answers at a step are ``change(content)``; None: failed."""

    def tamper(client, request, reply):
        if client != HOSTILE or request.kind != step:
            return reply
        content = change(reply.content)
        if content is None:
            return failure(request, "gone")
        return Reply(request, content)

    return tamper


def gone(content):
    return None


def test_sums_that_are_not_weighed_classify_as_in_a_run_without_masks(tmp_path):
    strategy = {"name": "analytic", "form": "gram", "min_samples": 1}
    for secure in (True, False):
        folder = tmp_path / str(secure)
        run_in_process(start(folder, strategy=strategy, secure_aggregation=secure))

    found, expected = (
        summary_of(tmp_path / name)["client_accuracy"] for name in ("True", "False")
    )
    assert found == expected


def test_every_byte_is_counted_and_evaluations_know_nothing_of_the_sum(tmp_path):
    up, down = Counter(), Counter()

    def tamper(client, request, reply):
        if request.kind != "query":  # of who is there
            up.update(byte_counts.traffic(reply.content))
            down.update(byte_counts.traffic(request.content))
        if request.kind == "evaluate":
            assert request.content.tensors.keys() == {"base"}
        if request.kind == TRAIN:
            assert reply.content.tensors.keys() == {"masked"}
        return reply

    run_in_process(config(tmp_path), tamper=tamper)

    found = summary_of(tmp_path)["bytes_by_kind"]
    assert found == {"up": dict(up), "down": dict(down)}


@pytest.mark.parametrize("step", [KEYS, TRAIN, UNMASK])
def test_a_client_that_drops_out_is_in_the_sum_if_its_vector_has_come(tmp_path, step):
    run_in_process(config(tmp_path / "secure"), tamper=at_step(step, gone))
    stays = step == UNMASK
    lost = None if stays else at_step(TRAIN, gone)
    run_in_process(config(tmp_path / "plain", secure=False), tamper=lost)

    same_state(tmp_path / "secure", tmp_path / "plain")
    (row,) = rounds_of(tmp_path / "secure")
    assert (HOSTILE in row["clients"]) == stays
    assert (HOSTILE in row["failed"]) == (not stays)
    if not stays:
        assert step.removeprefix("query.") in row["reasons"]["1"] or step == TRAIN


@pytest.mark.parametrize(
    "step",
    [pytest.param(SHARES, marks=pytest.mark.soak), TRAIN, UNMASK],
)
def test_many_clients_whose_masks_are_their_neighbours_have_the_same_sum(
    tmp_path, step
):
    seen = set()

    def lost_at(step):
        tamper = at_step(step, gone)

        def look(client, request, reply):
            if request.kind == SHARES:
                table = request.content.scalars["fcl.secure"]
                seen.add(len(table["clients"]))
            return tamper(client, request, reply)

        return look

    shares = {"secure_collusion": 0.05, "secure_threshold": 0.9}
    masked = config(tmp_path / "secure", clients=52, **shares)
    run_in_process(masked, tamper=lost_at(step))
    lost = None if step == UNMASK else at_step(TRAIN, gone)
    run_in_process(config(tmp_path / "plain", secure=False, clients=52), tamper=lost)

    same_state(tmp_path / "secure", tmp_path / "plain")
    assert seen == {9}  # of eight neighbours and of itself
    (row,) = rounds_of(tmp_path / "secure")
    assert len(row["clients"]) == (52 if step == UNMASK else 51)


@pytest.mark.parametrize("step", [SHARES, UNMASK])
def test_with_a_quorum_nobody_waits_for_who_is_silent(tmp_path, step):
    def silent(client, request, reply):
        hit = client == HOSTILE and request.kind == step
        return None if hit else reply

    began = time.monotonic()
    run_in_process(
        config(tmp_path, quorum=0.6, timeout=60, max_attempts=1),
        tamper=silent,
        delay=lambda client: 0,
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


def test_the_second_attempt_has_masks_of_its_own(tmp_path):
    calls = []

    def tamper(client, request, reply):
        kind = request.kind
        calls.append((client, kind))
        first = calls.count((client, kind)) == 1
        if kind == UNMASK and client in (1, 2) and first:
            return failure(request, "gone")
        return reply

    kept = {"client_state": str(tmp_path / "clients")}  # a round can be repeated
    run_in_process(config(tmp_path / "secure", **kept), tamper=tamper)
    run_in_process(config(tmp_path / "plain", secure=False))

    assert calls.count((0, KEYS)) == calls.count((0, TRAIN)) == 2
    same_state(tmp_path / "secure", tmp_path / "plain")


def with_vector(change):
    """Change the masked vector of an update."""

    def changed(content):
        array = content.tensors["masked"]["vector"]
        made = encode(change(np.frombuffer(array.data, np.uint64).copy()))
        return with_array(content, "masked", "vector", made)

    return changed


@pytest.mark.parametrize(
    "change",
    [lambda v: v[1:], lambda v: v.astype(np.int64)],
    ids=["short", "another dtype"],
)
def test_a_vector_of_another_shape_is_refused_by_name(tmp_path, change):
    run_in_process(config(tmp_path), tamper=at_step(TRAIN, with_vector(change)))

    (row,) = rounds_of(tmp_path)
    assert row["failed"] == [HOSTILE]
    assert "masked/vector: expected uint64" in row["reasons"][str(HOSTILE)]


def enormous(vector):
    vector[10:] += np.uint64(2**61)
    return vector


def test_a_sum_beyond_the_norm_ends_the_run_and_is_never_averaged(tmp_path):
    spoilt = at_step(TRAIN, with_vector(enormous))
    with pytest.raises(RoundError, match="is not used: norm: expected at most"):
        run_in_process(config(tmp_path, max_attempts=2), tamper=spoilt)
    assert not (tmp_path / "rounds.jsonl").read_text()
