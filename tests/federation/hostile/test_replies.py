"""One client of two sends what no honest client would: it must not matter."""

from dataclasses import replace

import numpy as np
import pytest
from fakes import (
    InProcessGrid,
    exact,
    failure,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
)
from flwr.app import Message, MetricRecord, RecordDict
from mutants import (
    over_the_network,
    strange_messages,
)

from fcl_flower.core.schedule import SimulatedClock
from fcl_flower.federation import messages
from fcl_flower.federation.checkpoint import FolderStateStore
from fcl_flower.federation.clients import ClientRegistry
from fcl_flower.federation.prepare import FederatedRun
from fcl_flower.federation.server import Server
from fcl_flower.federation.sync_loop import SyncLoop
from fcl_flower.results.recorder import Recorder
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot

HONEST, HOSTILE = 0, 1
NODES = {11: HONEST, 12: HOSTILE}


# ---- the receiving side


class ScriptedGrid:
    """Answers by node and kind of message; an answer may raise when it is fetched."""

    def __init__(self, answers):
        self.answers = answers
        self.messages = {}

    def get_node_ids(self):
        return list(NODES)

    def push_messages(self, messages):
        for message in messages:
            name = f"message-{len(self.messages)}"
            message.metadata.__dict__["_message_id"] = name
            self.messages[name] = message
        return list(self.messages)[-len(messages) :]

    def pull_messages(self, message_ids):
        for name in message_ids:
            message = self.messages[name]
            client = NODES[message.metadata.dst_node_id]
            yield self.answers[client, message.metadata.message_type](message)


def answering(content):
    return lambda message: Message(over_the_network(content), reply_to=message)


class OneRound:
    """One round of a real run, of which only the replies are replaced."""

    def __init__(self, strategy, folder):
        self.folder = folder
        self.config = tiny(folder, strategy=strategy)
        self.plan = Built(resolve(self.config)).scenario
        self.initial = Built(resolve(self.config)).model()
        honest = {}

        def keep(client, message, reply):
            honest[client, message.metadata.message_type] = reply.content
            return reply

        grid = InProcessGrid(list(NODES), self.config.flat(), tamper=keep)
        self.start(grid)
        self.honest = honest
        self.alone = self.play({(HOSTILE, "train"): lambda m: failure(m, "absent")})
        self.together = self.play({})

    def start(self, grid):
        resolved = resolve(self.config)
        recorder = Recorder(
            self.folder,
            self.config,
            self.plan,
        )
        registry = ClientRegistry(grid, len(NODES))
        registry.announce(resolved)
        registry.wait_for_clients(len(NODES), timeout=5)
        store = FolderStateStore(self.folder / "checkpoint", durable=False)
        server = Server(
            Built(resolved).strategy(),
            registry,
            recorder,
            store,
        )
        server.begin(snapshot(self.initial, self.initial.shared_names()))
        schedule = Built(resolved).schedule
        schedule = replace(schedule, tasks=1)
        parts = (server, schedule, SimulatedClock(), {}, registry, self.config)
        SyncLoop(FederatedRun(*parts, timeout=5), grid).run()
        return exact(server.state), rounds_of(self.folder)[0], recorder.record.accuracy

    def play(self, answers):
        usual = {key: answering(content) for key, content in self.honest.items()}
        return self.start(ScriptedGrid({**usual, **answers}))


@pytest.fixture(scope="module", params=["fedavg", "fedweit"])
def federation(request, tmp_path_factory):
    from flwr.supercore.task_identity import TaskIdentity

    with pytest.MonkeyPatch.context() as patch:
        for name in ("_task_id", "_run_id", "_node_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield OneRound(request.param, tmp_path_factory.mktemp("hostile"))


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


def test_a_strange_message_is_never_averaged(federation):
    content = federation.honest[HOSTILE, "train"]
    for label, answer in strange_messages(content):
        assert_left_out(federation, label, answer)


SCORES = [
    {},
    {"accuracy": [0.5]},
    {"accuracy": 0.5, "model-bytes": 10},
    {"accuracy": [], "model-bytes": 10},
    {"accuracy": [0.5, 0.5], "model-bytes": 10},
    {"accuracy": [1.01], "model-bytes": 10},
    {"accuracy": [-0.01], "model-bytes": 10},
    {"accuracy": [float("nan")], "model-bytes": 10},
    {"accuracy": [0.5], "model-bytes": -1},
    {"accuracy": [0.5], "model-bytes": 0.5},
    {"accuracy": [0.5], "model-bytes": [10]},
    {"accuracy": [0.5], "model-bytes": 10**20},
]


def without_scores(federation):
    """The honest update, without the scores that may come with it."""
    train = federation.honest[HOSTILE, "train"]
    return RecordDict({k: v for k, v in train.items() if k != messages.SCORES})


def test_impossible_scores_beside_an_update_leave_the_update_in_use(federation):
    impossible = MetricRecord({"accuracy": [2.0], "model-bytes": 10})
    train = federation.honest[HOSTILE, "train"]
    answer = answering(RecordDict({**train, messages.SCORES: impossible}))
    state, row, accuracy = federation.play({(HOSTILE, "train"): answer})
    assert state == federation.together[0]
    assert row["clients"] == [0, 1]
    if messages.SCORES in train:  # fedavg tests in a message of its own
        assert row["failed"] == [HOSTILE]
        assert np.isnan(accuracy[HOSTILE]).all()


def test_strange_messages_instead_of_scores_are_left_out_by_name(federation):
    train = federation.honest[HOSTILE, "train"]
    source = (
        train if messages.SCORES in train else federation.honest[HOSTILE, "evaluate"]
    )
    content = RecordDict({messages.SCORES: source[messages.SCORES]})
    silent = without_scores(federation)
    for label, answer in strange_messages(content):
        _, row, accuracy = federation.play(
            {(HOSTILE, "train"): answering(silent), (HOSTILE, "evaluate"): answer}
        )
        assert row["failed"] == [HOSTILE], label
        assert np.isnan(accuracy[HOSTILE]).all(), label


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_whole_run_is_that_of_the_honest_clients(tmp_path, strategy):
    def hostile(who, message, reply):
        if who != HOSTILE or message.metadata.message_type != "train":
            return reply
        group = "<script>alert(1)</script>"
        content = RecordDict({**reply.content, group: reply.content["base"]})
        return Message(content, reply_to=message)

    def absent(who, message, reply):
        trains = message.metadata.message_type == "train"
        return failure(message, "absent") if who == HOSTILE and trains else reply

    for name, tamper in (("hostile", hostile), ("absent", absent)):
        run_in_process(
            tiny(tmp_path / name, strategy=strategy, rounds=2), tamper=tamper
        )
    found, expected = (summary_of(tmp_path / name) for name in ("hostile", "absent"))
    for key in ("client_accuracy", "average_accuracy", "forgetting", "bytes_down"):
        assert found[key] == expected[key]
    assert all(row["failed"] == [HOSTILE] for row in rounds_of(tmp_path / "hostile"))
    assert "<script>alert" not in (tmp_path / "hostile" / "report.html").read_text()
