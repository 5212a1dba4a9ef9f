"""What messages hold, and what of a hostile one is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from mutants import zeros_left_out

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Assignment, Evaluation, SparseArray, TaskStage, Update
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import Encoded, WireFormat, encode
from fcl_flower.rounds.messages import (
    MessageEncoder,
    decode_evaluation,
    decode_payload,
    encode_evaluation,
)
from fcl_flower.rounds.transport import Content

SPARSE = SparseArray((2, 3), np.array([1, 5]), np.array([0.5, -2.0], np.float32))


def zeros(megabytes):
    """A tensor of a few bytes that claims many."""
    return zeros_left_out(megabytes * 2**18)


def absent(megabytes):
    """The same, sparse: nothing is allocated until somebody asks for its zeros."""
    return zeros_left_out(megabytes * 2**18, "fcl.sparse")


ASKED = TaskStage(round=3, task=1, starts_task=False, ends_task=True)


def encode_update(**metrics):
    content = messages.MessageEncoder().encode_update(Update({}, 0), ASKED)
    content.scalars[messages.METRICS] = metrics
    return content


def test_a_payload_arrives_as_it_was_sent():
    payload = {
        "base": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "meta/seen": {"0": np.asarray(7), "flag": np.array([True, False])},
        "adapters/0/1": {"w": SPARSE},
        "empty": {},
    }
    found = messages.decode_payload(messages.MessageEncoder().payload(payload))
    assert found.keys() == payload.keys()
    assert found["empty"] == {}
    np.testing.assert_array_equal(found["base"]["w"], payload["base"]["w"])
    assert found["base"]["w"].dtype == np.float32
    assert found["meta/seen"]["0"].shape == ()
    assert found["meta/seen"]["0"] == 7
    np.testing.assert_array_equal(found["meta/seen"]["flag"], [True, False])
    sparse = found["adapters/0/1"]["w"]
    assert isinstance(sparse, SparseArray)
    assert sparse.shape == (2, 3)
    np.testing.assert_array_equal(sparse.to_dense(), [[0, 0.5, 0], [0, 0, -2]])


def test_a_tensor_for_many_clients_is_encoded_once(monkeypatch):
    encoded = []

    def counted(*given, **how):
        encoded.append(given)
        return encode(*given, **how)

    monkeypatch.setattr(messages, "encode", counted)
    packer, shared = messages.MessageEncoder(), np.arange(4.0)
    made = [
        packer.payload({"base": {"w": shared}, "own": {"c": np.asarray(client)}})
        for client in range(3)
    ]
    assert len(encoded) == 1 + 3
    assert len({id(content.tensors["base"]["w"]) for content in made}) == 1


def test_an_encoder_never_takes_a_new_tensor_for_an_old_one():
    packer = messages.MessageEncoder()
    for value in range(200):  # the memory of the last tensor would be used again
        content = packer.payload({"g": {"x": np.full(3, value)}})
        assert messages.decode_payload(content)["g"]["x"].tolist() == [value] * 3


def test_precision_rounds_float32_on_the_wire_and_nothing_else():
    third = np.array([1 / 3, 1 / 7], np.float32)
    payload = {"g": {"single": third, "double": third.astype(np.float64) / 3}}
    found = messages.decode_payload(
        messages.MessageEncoder(WireFormat("bfloat16")).payload(payload)
    )["g"]
    rounded = torch.tensor(third).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(found["single"], rounded)
    assert found["single"].dtype == np.float32
    np.testing.assert_array_equal(found["double"], payload["g"]["double"])


def test_levels_round_no_vector():
    """Of variances that differ by thousands the small ones would become zero."""
    variances = np.geomspace(1e-3, 5, 64, dtype=np.float32)
    payload = {"networks/0/1": {"w": variances.reshape(8, 8), "v": variances}}
    wire = WireFormat("int8", rounded=("networks",))
    found = messages.decode_payload(messages.MessageEncoder(wire).payload(payload))
    found = found["networks/0/1"]
    np.testing.assert_array_equal(found["v"], variances)
    assert not found["w"].all()


ALL = {"round": 1, "task": 0, "first": True, "last": False}
ALL |= {"since": 0, "evaluate": False}


def test_a_stage_travels_with_its_payload():
    stage = TaskStage(round=7, task=2, starts_task=True, ends_task=False)
    assignment = Assignment(stage, since=5, evaluate=True)
    content = messages.MessageEncoder().encode_request(
        {"base": {"w": np.ones(2)}}, assignment
    )
    assert messages.decode_request(content) == assignment
    assert messages.decode_payload(content).keys() == {"base"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"round": 1, "task": 0, "first": True, "last": False},
        {**ALL, "first": 1},
        {**ALL, "round": True},
        {**ALL, "round": 1.0},
        {**ALL, "evaluate": 0},
        {**ALL, "since": [1]},
        {**ALL, "more": 1},
    ],
)
def test_a_stage_with_strange_fields_is_refused(fields):
    with pytest.raises(WireError, match=r"fcl\.stage"):
        messages.decode_request(Content(scalars={messages.STAGE: fields}))


def test_an_update_arrives_as_it_was_sent():
    sent = Update({"base": {"w": np.ones(2)}}, 40, {"loss": 0.25, "steps": 3})
    found = messages.decode_update(
        messages.MessageEncoder().encode_update(sent, ASKED), ASKED
    )
    assert found.num_examples == 40
    assert found.metrics == {"loss": 0.25, "steps": 3.0}
    np.testing.assert_array_equal(found.payload["base"]["w"], [1, 1])


@pytest.mark.parametrize("examples", [-1, 3.0, [3], messages.MAX_EXAMPLES + 1, 10**18])
def test_a_number_of_examples_that_cannot_be_is_refused(examples):
    with pytest.raises(WireError, match="num-examples"):
        messages.decode_update(encode_update(**{"num-examples": examples}), ASKED)


@pytest.mark.parametrize(
    "other", [{"round": 2}, {"task": 0}, {"starts_task": True}, {"ends_task": False}]
)
def test_an_answer_to_something_else_is_refused(other):
    sent = messages.MessageEncoder().encode_update(
        Update({}, 1), dataclasses.replace(ASKED, **other)
    )
    with pytest.raises(WireError, match=r"fcl\.stage: expected an answer to"):
        messages.decode_update(sent, ASKED)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), 1e39, -(10**40), [0.5]]
)
def test_a_scalar_that_is_not_a_finite_float32_is_refused(value):
    with pytest.raises(WireError, match=r"fcl\.metrics/loss"):
        messages.decode_update(encode_update(loss=value, **{"num-examples": 3}), ASKED)


def test_a_tensor_that_cannot_be_decoded_is_named():
    broken = Encoded("float32", (3,), "fcl.dense", b"123")
    content = Content({"adapters/1/0": {"body.weight": broken}})
    with pytest.raises(WireError, match=r"^adapters/1/0/body\.weight: "):
        messages.decode_payload(content)


@pytest.mark.parametrize("claim", [zeros, absent])
def test_small_claims_add_up_over_the_groups_of_a_message(claim):
    content = Content({str(i): {"a": claim(1), "b": claim(2)} for i in range(4)})
    assert len(messages.decode_payload(content, max_bytes=12 * 2**20)) == 4
    with pytest.raises(WireError, match="3/b: "):
        messages.decode_payload(content, max_bytes=12 * 2**20 - 1)


def test_a_message_may_claim_two_gibibytes_by_default():
    half = absent(1024)
    content = Content({"g": {"a": half, "b": half}})
    messages.decode_payload(content)
    content.tensors["h"] = {"c": encode(np.ones(1, np.int8))}
    with pytest.raises(WireError, match="h/c: "):
        messages.decode_payload(content)


# ---- a message within a process holds the memory that nobody changes, and no other


def own():
    return np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def sent(tensor, wire=None):
    encoder = MessageEncoder() if wire is None else MessageEncoder(wire)
    return decode_payload(encoder.payload({"base": {"w": tensor}}))["base"]["w"]


def test_what_was_sent_of_a_network_does_not_learn_on():
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    weights = layer.weight.detach().numpy()

    found = sent(weights)
    layer.weight.data.fill_(9)

    assert weights.tolist() == [[9, 9], [9, 9]]
    assert found.tolist() == before.tolist()


# ---- scores on the wire: what was sent comes back, and nothing impossible is believed

# Two tasks of three classes: of 5 samples 3 are right, of 2 none.
COUNTED = Evaluation(
    [0.6, 0.0],
    77,
    [[[2, 1, 0], [3, 2, 0], [3, 1, 1]], [[0, 0, 0], [0, 0, 2], [1, 1, 0]]],
    [0.4, 0.0],
    [0.5, 0.0],
    True,
)


def test_counts_come_back_as_they_were_sent():
    sent = encode_evaluation(COUNTED)

    assert sent["tested"] == [3, 2, 0, 0, 0, 2]
    assert decode_evaluation(sent, 2, classes=3) == COUNTED
    alone = dataclasses.replace(COUNTED, by_class=())
    assert decode_evaluation(sent, 2) == alone
    one_head = dataclasses.replace(COUNTED, inferred=(), balanced=(), unbalanced=False)
    assert decode_evaluation(encode_evaluation(one_head), 2, classes=3) == one_head
    losing = dataclasses.replace(alone, losses=[0.0, 2.5])
    assert decode_evaluation(encode_evaluation(losing), 2) == losing


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"right": None}, r"right: expected 6 numbers in \[0, 2.+\], got None"),
        ({"tested": 5}, "tested: expected 6 numbers in .*, got 5"),
        ({"answered": [1] * 5}, "answered: expected 6 numbers in"),
        ({"answered": [1] * 7}, "answered: expected 6 numbers in"),
        ({"tested": [3.0, 2.0, 0.0, 0.0, 0.0, 2.0]}, "tested: expected 6 numbers in"),
        ({"tested": [3, 2, 0, 0, -1, 3]}, "tested: expected 6 numbers in"),
        ({"tested": [2**31 + 1, 2, 0, 0, 0, 2]}, "tested: expected 6 numbers in"),
        ({"right": [4, 0, 0, 0, 0, 0]}, "right: expected at most as many"),
        (
            {"right": [1, 2, 0, 0, 0, 0]},
            "right: expected at most as many",
        ),  # answered 1
        (
            {"right": [3, 1, 0, 0, 0, 0]},
            r"right: expected the accuracies \[0\.6, 0",
        ),
        ({"answered": [3, 1, 2, 1, 1, 0]}, "answered: expected one answer to each of"),
        ({"answered": [3, 1, 1, 0, 1, 0]}, "answered: expected one answer to each of"),
        ({"right": [2, 0, 1, 0, 0, 0]}, "right: expected at most as many"),
        ({"answered": [3, 1, 2, 1, 0, 0]}, "answered: expected one answer to each of"),
        ({"accuracy": [0.6, 0.5]}, "right: expected the accuracies"),
        ({"accuracy": [0.6]}, r"accuracy: expected 2 numbers in \[0, 1\], got \[0"),
        ({"accuracy": [0.6] * 3}, "accuracy: expected 2 numbers in"),
        ({"accuracy": 0.6}, r"accuracy: expected 2 numbers in \[0, 1\], got 0\.6$"),
        ({"inferred": [0.4]}, "inferred: expected 2 numbers in"),
        ({"inferred": [1.5, 0.0]}, "inferred: expected 2 numbers in"),
        ({"inferred": [float("nan"), 0.0]}, "inferred: expected 2 numbers in"),
        ({"balanced-accuracy": 1.0}, "balanced-accuracy: expected 2 numbers in"),
        ({"balanced-accuracy": [0.4]}, "balanced-accuracy: expected 2 numbers in"),
        ({"balanced-accuracy": [2.0, 0.0]}, "balanced-accuracy: expected 2 numbers"),
        ({"unbalanced": 2}, r"unbalanced: expected 1 numbers in \[0, 1\], got \[2"),
        ({"unbalanced": [1]}, "unbalanced: expected 1 numbers in"),
        ({"model-bytes": -1}, "model-bytes: expected 1 numbers in"),
        ({"losses": 1.0}, "losses: expected 2 numbers in"),
        ({"losses": [1.0]}, "losses: expected 2 numbers in"),
        ({"losses": [1.0, -0.1]}, "losses: expected 2 numbers in"),
        ({"losses": [1.0, float("inf")]}, "losses: expected 2 numbers in"),
        ({"losses": [1.0, float("nan")]}, "losses: expected 2 numbers in"),
        ({"losses": [1.0, "2"]}, "losses: expected 2 numbers in"),
    ],
)
def test_impossible_counts_are_refused_by_name(changed, why):
    honest = dict(encode_evaluation(COUNTED))
    sent = {**honest, **changed}
    row = {key: found for key, found in sent.items() if found is not None}

    with pytest.raises(WireError, match=why):
        decode_evaluation(row, 2, classes=3)


# ---------------------------------------------------------------- finished tasks


def test_the_samples_of_finished_tasks_come_back_as_they_were_told():
    for told in ([], [3, 0, 2**31]):
        content = Content(scalars={messages.TASKS: {"samples": told}})
        assert messages.finished_tasks(content) == tuple(told)


@pytest.mark.parametrize("told", [3, "12", [-1], [2**31 + 1], [1.0], [1] * 65537])
def test_what_cannot_be_samples_of_tasks_is_refused(told):
    content = Content(scalars={messages.TASKS: {"samples": told}})
    with pytest.raises(WireError, match="tasks/samples: expected"):
        messages.finished_tasks(content)
