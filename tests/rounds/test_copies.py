"""Server and client keep the same models: as changes, as values, after any loss."""

import numpy as np
import pytest

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Assignment, SparseArray, TaskStage
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import WireFormat, decode
from fcl_flower.rounds.copies import (
    CHANGE,
    COPIES,
    ENTRIES,
    NO_VERSION,
    CopyError,
    ErrorFeedback,
    ModelCopy,
    ModelPublisher,
    restored,
)
from fcl_flower.rounds.messages import MessageEncoder

WIRE = WireFormat("int4", differences=("base",))
ASSIGNMENT = Assignment(TaskStage(1, 0, starts_task=False, ends_task=False))
SHAPE = (12, 40)
MOST = 2**20


def model(seed):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=SHAPE).astype(np.float32),
        "b": rng.normal(size=SHAPE[0]).astype(np.float32),
        "steps": np.asarray(seed),
    }


class Server:
    """A state whose model moves at random in every round."""

    def __init__(self, wire=WIRE):
        self.state = {"base": model(0), "meta/own": {"x": np.ones(3)}}
        self.broadcast = ModelPublisher(wire, seed=7)
        self.wanted = self.state["base"]["w"].astype(np.float64)
        self.known = {}
        self.round = 0

    def ask(self, client, payload=None):
        payload = {"base": self.state["base"]} if payload is None else payload
        content, self.known[client] = self.broadcast.message(
            client, payload, ASSIGNMENT, self.state
        )
        return content

    def aggregate(self, *used, rows=range(SHAPE[0])):
        self.round += 1
        old = self.state["base"]["w"]
        step = np.zeros(SHAPE, np.float32)
        drawn = model(100 + self.round)["w"]
        step[list(rows)] = 0.1 * drawn[list(rows)]
        new = {"w": old + step, "b": model(self.round)["b"], "steps": np.asarray(2)}
        self.wanted += step
        known = {client: self.known[client] for client in used}
        after = {**self.state, "base": new}
        self.state = self.broadcast.publish(self.state, after, self.round, known)
        self.broadcast.close_round()


class Client:
    """Keeps what a client saves between two messages."""

    def __init__(self, number, wire=WIRE):
        self.number, self.wire, self.saved = number, wire, {}

    def receive(self, content, *, save=True):
        replica = ModelCopy(self.wire, 7, self.number, self.saved)
        payload = replica.receive(content, MOST)
        if save:
            self.saved = replica.kept()
        return payload


def same(client_model, server):
    for name, tensor in server.state["base"].items():
        np.testing.assert_array_equal(client_model[name], tensor, strict=True)


def by_changes(content):
    return [group for group in content.tensors if CHANGE in group]


@pytest.mark.parametrize(
    "wire",
    [WIRE, WireFormat("ternary", feedback=False, differences=("base",))],
    ids=["feedback", "drawn"],
)
def test_a_client_in_every_round_gets_one_change_a_round_and_has_the_same_bits(wire):
    server, client = Server(wire), Client(0, wire)
    for number in range(6):
        content = server.ask(0)
        same(client.receive(content)["base"], server)
        assert len(by_changes(content)) == (number > 0)
        assert ("w" in content.tensors["base"]) == (number == 0)
        server.aggregate(0)


def test_the_models_of_the_state_follow_what_aggregation_wanted():
    server = Server()
    server.ask(0)
    for _ in range(50):
        server.aggregate(0)
    rest = server.broadcast.kept()["rest/base"]["w"]
    np.testing.assert_allclose(
        server.state["base"]["w"] + rest, server.wanted, atol=1e-5
    )
    assert np.abs(rest).max() < 0.1  # one rounding of steps of up to 0.4


def test_a_client_that_was_away_gets_all_changes_since():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    for _ in range(3):
        server.aggregate(0)
    content = server.ask(0)
    assert by_changes(content) == [f"base{CHANGE}{v}" for v in (1, 2, 3)]
    same(client.receive(content)["base"], server)


def test_a_client_too_far_behind_gets_the_model_and_the_server_keeps_no_more():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    whole = server.state["base"]["w"].nbytes
    for _ in range(60):
        server.aggregate(0)
        kept = sum(
            len(made.data)
            for groups in server.broadcast._changes.values()
            for made in groups["base"].values()
        )
        assert kept < whole
    content = server.ask(0)
    assert not by_changes(content)
    same(client.receive(content)["base"], server)


def test_a_client_whose_update_was_not_used_adds_no_change_twice():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0)
    client.receive(server.ask(0))
    server.aggregate()  # of others: the client's update came too late
    content = server.ask(0)
    assert len(by_changes(content)) == 2
    same(client.receive(content)["base"], server)


def test_a_repeated_round_starts_from_the_copy_before_it():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0)
    for _ in range(2):
        same(client.receive(server.ask(0), save=False)["base"], server)


def test_a_client_that_lost_its_memory_says_so_and_then_gets_the_model():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0)
    client.saved = {}
    with pytest.raises(CopyError, match="base/w: there is no copy to be changed"):
        client.receive(server.ask(0))
    server.broadcast.forget(0)
    same(client.receive(server.ask(0))["base"], server)


def test_a_copy_that_is_another_model_is_found_by_its_checksum():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0)
    copy = dict(client.saved["model/base"])
    copy["w"] = copy["w"].copy()
    copy["w"][3, 4] = np.nextafter(copy["w"][3, 4], np.float32(9))
    client.saved = {**client.saved, "model/base": copy}
    with pytest.raises(CopyError, match="base: the copy is not the server's model"):
        client.receive(server.ask(0))


def test_a_resumed_server_sends_models_and_goes_on_with_what_was_left():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0)
    resumed = Server()
    resumed.broadcast.restore(1, server.broadcast.kept())
    resumed.round, resumed.state = 1, server.state
    server.ask(0)
    content = resumed.ask(0)
    assert not by_changes(content)
    same(client.receive(content)["base"], server)
    for one in (server, resumed):
        one.aggregate(0)
    same(resumed.state["base"], server)
    assert by_changes(resumed.ask(0))
    same(client.receive(resumed.ask(0))["base"], server)


def test_what_is_saved_is_not_changed_afterwards():
    server = Server()
    server.aggregate()
    kept = server.broadcast.kept()["rest/base"]
    before = dict(kept)
    server.aggregate()
    assert kept["w"] is before["w"]
    assert server.broadcast.kept()["rest/base"]["w"] is not before["w"]


def test_a_client_gets_the_rows_that_the_strategy_chose_and_keeps_the_model():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.aggregate(0, rows=[2, 5])
    chosen = SparseArray.of_channels(server.state["base"]["w"], np.array([2, 3, 5]))
    content = server.ask(0, {"base": {"w": chosen}})
    assert ENTRIES.strip("/") in {g.rpartition("/")[2] for g in content.tensors}
    received = client.receive(content)["base"]["w"]
    assert received.indices.tolist() == chosen.indices.tolist()
    np.testing.assert_array_equal(received.values, chosen.values)
    np.testing.assert_array_equal(
        client.saved["model/base"]["w"], server.state["base"]["w"]
    )


def test_rows_that_aggregation_left_alone_do_not_move():
    server = Server()
    server.aggregate(rows=range(12))
    before = server.state["base"]["w"]
    server.aggregate(rows=[4])
    moved = np.flatnonzero((server.state["base"]["w"] != before).any(axis=1))
    assert moved.tolist() == [4]


def test_an_update_arrives_as_the_model_plus_a_rounded_difference():
    server, client = Server(), Client(3)
    sums = np.zeros(SHAPE)
    for number in range(1, 5):
        replica = ModelCopy(WIRE, 7, 3, client.saved)
        received = replica.receive(server.ask(3), MOST)["base"]
        change = 0.01 * model(number)["w"]
        trained = {**received, "w": received["w"] + change}
        sent = replica.send({"base": trained, "heads": {"h": change}}, number)
        client.saved = replica.kept()
        content = MessageEncoder(WIRE).payload(sent)
        assert "+levels" in content.tensors["base"]["w"].form
        assert "+levels" not in content.tensors["heads"]["h"].form
        arrived = restored(messages.decode_payload(content), server.known[3].models)
        np.testing.assert_array_equal(arrived["heads"]["h"], change)
        np.testing.assert_array_equal(arrived["base"]["b"], trained["b"])
        error = np.abs(arrived["base"]["w"] - trained["w"]).max()
        assert 0 < error <= 0.01 * 5
        sums += trained["w"].astype(np.float64) - arrived["base"]["w"]
        server.aggregate(3)
    left = client.saved["rest/base"]["w"]
    np.testing.assert_allclose(left, sums, atol=1e-5)


def test_training_that_has_diverged_is_named():
    server = Server()
    replica = ModelCopy(WIRE, 7, 0, {})
    received = replica.receive(server.ask(0), MOST)
    bad = {**received["base"], "w": np.full(SHAPE, np.nan, np.float32)}
    with pytest.raises(WireError, match="base/w: holds NaN or infinite"):
        replica.send({"base": bad}, 1)


def test_a_model_that_aggregation_returns_as_it_is_travels_as_no_change():
    server, client = Server(), Client(0)
    client.receive(server.ask(0))
    server.state = server.broadcast.publish(
        server.state, {**server.state}, 1, server.known
    )
    content = server.ask(0)
    assert "w" not in content.tensors["base"]
    same(client.receive(content)["base"], server)


def test_a_difference_of_another_shape_is_refused():
    server = Server()
    server.ask(0)
    wrong = {"base": {"w": np.ones((2, 40), np.float32)}}
    with pytest.raises(WireError, match="base/w: a difference of shape"):
        restored(wrong, server.known[0].models)


def test_exact_runs_send_what_they_always_sent():
    server = Server(WireFormat())
    content = server.ask(0)
    plain = MessageEncoder().encode_request({"base": server.state["base"]}, ASSIGNMENT)
    assert content == plain
    server.aggregate(0)
    assert server.broadcast.kept() == {}
    assert server.known[0].models == NO_VERSION.models


@pytest.mark.parametrize("note", [[1], [1, 2, 3], 5, "x"], ids=str)
def test_a_strange_note_is_refused(note):
    content = Server().ask(0)
    content.scalars[COPIES] = {"base": note}
    with pytest.raises(WireError, match="expected two numbers"):
        Client(0).receive(content)


# ---- error feedback: what is sent adds up to what was wanted

RNG = np.random.default_rng(5)
WANTED = RNG.normal(size=(60, 8, 5)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "int4", "ternary"])
def test_the_sum_of_all_that_was_sent_is_that_of_all_that_was_wanted(dtype):
    rounding = ErrorFeedback(WireFormat(dtype), {})
    sent = np.zeros((8, 5))
    for wanted in WANTED:
        made, read = rounding.difference("base", "w", wanted, draw=abs)
        np.testing.assert_array_equal(decode(made), read)
        sent += read
    rest = rounding.kept()["rest/base"]["w"]
    np.testing.assert_allclose(sent + rest, WANTED.sum(0, np.float64), atol=1e-4)
    # Not the errors of 60 rounds, but about one: the rest does not grow.
    assert (
        np.abs(rest).max() < 12 * {"int8": 1 / 127, "int4": 1 / 7, "ternary": 1}[dtype]
    )


def test_without_feedback_nothing_is_kept_and_rounding_is_drawn():
    rounding = ErrorFeedback(WireFormat("int4", feedback=False), {})
    read = [
        rounding.difference("base", "w", WANTED[0], lambda key, seed=seed: seed)[1]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(read[0], read[1])
    assert np.any(read[0] != read[2])
    assert rounding.kept() == {}


def test_entries_that_are_not_sent_keep_what_is_left_of_them():
    before = {"rest/base": {"w": np.full((2, 2), 0.5, np.float32)}}
    rounding = ErrorFeedback(WireFormat("ternary"), before)
    row = SparseArray.of_channels(np.full((2, 2), 3.5, np.float32), np.array([1]))

    _, read = rounding.difference("base", "w", row, draw=abs)

    assert read.values.tolist() == [4, 4]
    assert rounding.kept()["rest/base"]["w"].tolist() == [[0.5, 0.5], [0, 0]]
    assert before["rest/base"]["w"].tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("feedback", [True, False])
def test_values_beyond_all_bounds_leave_finite_ones(feedback):
    rounding = ErrorFeedback(WireFormat("int8", feedback=feedback), {})
    bad = np.array([[np.nan, 3e38, np.inf, -np.inf]], np.float32)
    for _ in range(3):
        _, read = rounding.difference("base", "w", bad, draw=abs)
        assert np.isfinite(read).all()
        assert read[0, 1] == pytest.approx(1e38, rel=0.02)
