"""One client of two sends what no honest client would: it must not matter."""

import numpy as np
import pytest
from fakes import (
    InProcessTransport,
    exact,
    failure,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
)
from mutants import over_the_network, strange_replies, with_groups, with_table, without
from one_round import after_one_round

from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Reply

pytestmark = pytest.mark.run

HONEST, HOSTILE = 0, 1
NODES = {11: HONEST, 12: HOSTILE}


# ---- the receiving side


class Scripted:
    """Answers by node and kind of request; an answer may raise when it is opened."""

    simulated = blocking = False

    def __init__(self, answers):
        self.answers = answers

    def nodes(self):
        return list(NODES)

    def send(self, requests, seconds):
        return ["asked" for _ in requests]

    def receive(self, name, request):
        answer = self.answers.get((NODES[request.node], request.kind))
        return failure(request, "nothing to say") if answer is None else answer(request)


def answering(content):
    return lambda request: Reply(request, lambda: over_the_network(content))


class OneRound:
    """One round of a real run, of which only the replies are replaced."""

    def __init__(self, strategy, folder):
        self.folder = folder
        self.config = tiny(folder, strategy=strategy)
        honest = {}

        def keep(client, request, reply):
            honest[client, request.kind] = reply.content
            return reply

        transport = InProcessTransport(list(NODES), self.config, tamper=keep)
        self.start(transport)
        self.honest = honest
        self.alone = self.play({(HOSTILE, "train"): lambda m: failure(m, "absent")})
        self.together = self.play({})

    def start(self, transport):
        server, _ = after_one_round(self.config, self.folder, transport)
        accuracy = server.recorder.record.accuracy
        return exact(server.state), rounds_of(self.folder)[0], accuracy

    def play(self, answers):
        usual = {key: answering(content) for key, content in self.honest.items()}
        return self.start(Scripted({**usual, **answers}))


@pytest.fixture(scope="module", params=["fedavg", "fedweit"])
def federation(request, tmp_path_factory):
    return OneRound(request.param, tmp_path_factory.mktemp("hostile"))


def assert_left_out(federation, label, answer):
    state, row, _ = federation.play({(HOSTILE, "train"): answer})
    assert (row["clients"], row["failed"]) == ([HONEST], [HOSTILE]), label
    assert row["reasons"].keys() == {str(HOSTILE)}, label
    assert 0 < len(row["reasons"][str(HOSTILE)]) <= 300, label
    assert state == federation.alone[0], label


def test_the_two_honest_runs_differ_and_their_replies_are_used(federation):
    state, row, accuracy = federation.together
    assert (row["clients"], row["failed"]) == ([0, 1], [])
    assert state != federation.alone[0]
    assert not np.isnan(accuracy[:, 0, 0]).any()


def test_a_strange_reply_is_never_averaged(federation):
    for label, answer in strange_replies():
        assert_left_out(federation, label, answer)


def without_scores(federation):
    """The honest update, without the scores that may come with it."""
    return without(federation.honest[HOSTILE, "train"], messages.SCORES)


def test_impossible_scores_beside_an_update_leave_the_update_in_use(federation):
    impossible = {"accuracy": [2.0], "model-bytes": 10}
    train = federation.honest[HOSTILE, "train"]
    answer = answering(with_table(train, messages.SCORES, impossible))
    state, row, accuracy = federation.play({(HOSTILE, "train"): answer})
    assert state == federation.together[0]
    assert row["clients"] == [0, 1]
    if messages.SCORES in train.scalars:  # fedavg tests in a message of its own
        assert row["failed"] == [HOSTILE]
        assert np.isnan(accuracy[HOSTILE]).all()


def test_strange_replies_instead_of_scores_are_left_out_by_name(federation):
    silent = without_scores(federation)
    for label, answer in strange_replies():
        _, row, accuracy = federation.play(
            {(HOSTILE, "train"): answering(silent), (HOSTILE, "evaluate"): answer}
        )
        assert row["failed"] == [HOSTILE], label
        assert np.isnan(accuracy[HOSTILE]).all(), label


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_whole_run_is_that_of_the_honest_clients(tmp_path, strategy):
    def hostile(who, request, reply):
        if who != HOSTILE or request.kind != "train":
            return reply
        group = "<script>alert(1)</script>"
        base = reply.content.tensors["base"]
        return Reply(request, with_groups(reply.content, {group: base}))

    def absent(who, request, reply):
        trains = request.kind == "train"
        return failure(request, "absent") if who == HOSTILE and trains else reply

    for name, tamper in (("hostile", hostile), ("absent", absent)):
        run_in_process(
            tiny(tmp_path / name, strategy=strategy, rounds=2), tamper=tamper
        )
    found, expected = (summary_of(tmp_path / name) for name in ("hostile", "absent"))
    for key in ("client_accuracy", "average_accuracy", "forgetting", "bytes_down"):
        assert found[key] == expected[key]
    assert all(row["failed"] == [HOSTILE] for row in rounds_of(tmp_path / "hostile"))
    assert "<script>alert" not in (tmp_path / "hostile" / "report.html").read_text()
