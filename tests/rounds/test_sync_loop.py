"""Rounds: the same seed, who takes part, who fails, what is recorded, what is asked."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from fakes import (
    diagnostics_of,
    failure,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
    told_progress,
)
from resuming import outcome
from text_sets import write_topics

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError, WireError
from fcl_flower.core.schedule import Schedule
from fcl_flower.core.types import SparseArray
from fcl_flower.results.run_folder import free_folder
from fcl_flower.rounds import clients, messages
from fcl_flower.rounds.client import model_bytes
from fcl_flower.rounds.clients import ClientNumbers, check_claim
from fcl_flower.rounds.transport import Content, Reply


def stage_of(request):
    return messages.decode_request(request.content).stage


def only(client, kind, number, replace):
    """Return a tamper for one client's replies of one round (None: of all)."""

    def tamper(who, request, reply):
        hit = who == client and request.kind == kind
        if hit and number is not None:
            hit = stage_of(request).round == number
        return replace(request, reply) if hit else reply

    return tamper


# ---- the same seed gives the same numbers


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_node_ids_and_the_order_of_replies_change_nothing(tmp_path, strategy):
    def run(name, **behaviour):
        config = tiny(tmp_path / name, strategy=strategy, clients=3)
        run_in_process(config, **behaviour)
        # Accuracies hide the last bits of a sum; the server's state does not.
        checkpoint = tmp_path / name / "checkpoint"
        state = sorted(p.read_bytes() for p in checkpoint.iterdir())
        assert state
        return outcome(tmp_path / name), state

    usual = run("a", nodes=[1, 2, 3])
    assert run("b", nodes=[900, 2**63, 7], delay=lambda client: 2 - client) == usual
    assert run("c", nodes=[30, 20, 10], delay=lambda client: (1, 0, 2)[client]) == usual


@pytest.mark.run
def test_where_clients_keep_their_state_changes_nothing(tmp_path):
    run_in_process(tiny(tmp_path / "a"))
    run_in_process(tiny(tmp_path / "b", client_state=str(tmp_path / "memory")))
    assert summary_of(tmp_path / "a") == summary_of(tmp_path / "b")
    assert {path.name for path in (tmp_path / "memory").iterdir()} == {
        "client-0",
        "client-1",
    }


# ---- who takes part


@pytest.mark.run
def test_exactly_the_scheduled_clients_take_part(tmp_path):
    config = tiny(tmp_path, clients=4, rounds=3, client_fraction=0.5)
    transport = run_in_process(config)
    plan = Schedule(4, 2, 3, 0.5, seed=0)
    for number in range(1, 7):
        asked = [
            client
            for client, request in transport.asked
            if request.kind == "train" and stage_of(request).round == number
        ]
        assert tuple(asked) == plan.participants(number)
    assert [row["clients"] for row in rounds_of(tmp_path)] == [
        list(plan.participants(number)) for number in range(1, 7)
    ]
    evaluated = {
        (stage_of(request).round, client)
        for client, request in transport.asked
        if request.kind == "evaluate"
        or (
            request.kind == "train"
            and messages.decode_request(request.content).evaluate
        )
    }
    assert evaluated == {(r, c) for r in (3, 6) for c in range(4)}


@pytest.mark.run
def test_as_many_clients_as_there_are_nodes(tmp_path):
    config = tiny(tmp_path, clients=0, strategy="fedavg")
    run_in_process(config, nodes=[4, 5, 6])
    assert summary_of(tmp_path)["clients"] == 3
    recorded = tomllib.loads((tmp_path / "config.toml").read_text())
    assert (recorded["scenario"]["clients"], recorded["model"]["name"]) == (3, "small")
    assert recorded["training"]["batch_size"] == 20
    assert recorded["training"]["learning_rate"] == 1e-3
    left_to_us = {"clients": 0, "dataset": "", "scenario": "", "model": ""}
    left_to_us |= {"batch_size": 0, "learning_rate": 0.0, "head": ""}
    read = RunConfig.read(tmp_path / "config.toml", "config")
    assert read.replace(**left_to_us) == config


# ---- clients that fail


@pytest.mark.run
def test_a_client_that_raises_is_left_out_by_name_and_the_run_goes_on(
    tmp_path, monkeypatch
):
    train = LocalTraining.train

    def breaks(self, turn):
        if (self.context.client, turn.stage.round) == (1, 2):
            raise ValueError("no space\nleft <b>on</b> device")
        return train(self, turn)

    monkeypatch.setattr(LocalTraining, "train", breaks)
    run_in_process(tiny(tmp_path, strategy="fedavg", rounds=2))
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [[0, 1], [0], [0, 1], [0, 1]]
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    why = rows[1]["reasons"]["1"]
    assert "no space left <b>on</b> device" in why
    page = (tmp_path / "report.html").read_text()
    assert "<b>on</b>" not in page


@pytest.mark.run
def test_too_few_usable_replies_end_the_run_and_say_why(tmp_path):
    tamper = only(1, "train", 2, lambda request, reply: failure(request, "broken disk"))
    config = tiny(tmp_path, strategy="fedavg", rounds=2, min_updates=2)
    with pytest.raises(RoundError, match=r"round 2: 1 usable.* 2 needed.*broken disk"):
        run_in_process(config, tamper=tamper)
    assert len(rounds_of(tmp_path)) == 1
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.run
def test_a_reply_that_never_comes_is_waited_for_no_longer_than_the_timeout(tmp_path):
    tamper = only(1, "train", 1, lambda request, reply: None)
    run_in_process(
        tiny(tmp_path, strategy="fedavg", rounds=2, timeout=0.5), tamper=tamper
    )
    rows = rounds_of(tmp_path)
    assert rows[0]["reasons"] == {"1": "no reply in time"}
    assert [row["clients"] for row in rows] == [[0], [0, 1], [0, 1], [0, 1]]


@pytest.mark.run
def test_a_failed_evaluation_is_left_out_by_name(tmp_path):
    tamper = only(1, "evaluate", 2, lambda request, reply: failure(request, "gone"))
    run_in_process(tiny(tmp_path, strategy="fedavg"), tamper=tamper)
    rows = rounds_of(tmp_path)
    assert [row["failed"] for row in rows] == [[], [1]]
    assert rows[1]["clients"] == [0, 1]
    assert rows[1]["reasons"] == {"1": "evaluation: the client failed: gone"}
    found = summary_of(tmp_path)["client_accuracy"]
    assert found[1][1] == [None, None]
    assert None not in found[0][1]


@pytest.mark.run
def test_a_run_without_a_single_evaluation_fails_and_leaves_a_report(tmp_path):
    def mute(who, request, reply):
        return failure(request, "gone") if request.kind == "evaluate" else reply

    with pytest.raises(RoundError, match=r"no client was evaluated.* failed: gone"):
        run_in_process(tiny(tmp_path, strategy="fedavg"), tamper=mute)
    assert summary_of(tmp_path)["average_accuracy"] is None
    assert "No accuracy was measured" in (tmp_path / "report.html").read_text()


# ---- who is there


def who(**said):
    return lambda request, reply: Reply(request, Content(scalars={"who": said}))


def claim(partition):
    return who(partition=partition, **clients.own())


def test_a_run_that_lacks_who_was_refused_says_so_at_its_end(tmp_path):
    config = tiny(tmp_path, timeout=0.3, min_updates=2)
    with pytest.raises(RoundError) as problem:
        run_in_process(config, nodes=[11, 12], tamper=only(1, "query", None, claim(0)))
    assert str(problem.value) == (
        "clients: [0] of 2 connected in time, expected at least 2; a client without a "
        "key, node 12, claims to be client 0, which another is already"
    )


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Keys of clients 0 and 1, at nodes 11 and 12."""
    numbers = ClientNumbers(tmp_path / "client-numbers.json")
    for client in (0, 1):
        numbers.bind(11 + client, Path(f"client-{client}.pub"))
    numbers.bind(14, Path("laptop.pub"))  # the key of no number
    monkeypatch.setenv("FCL_CLIENT_NUMBERS", str(tmp_path / "client-numbers.json"))


@pytest.mark.run
def test_a_client_with_a_key_has_no_other_number_and_the_run_goes_on(
    tmp_path, keys, caplog
):
    liar, other = 0, 1
    config = tiny(tmp_path / "run", strategy="fedavg", timeout=1, min_updates=1)
    transport = run_in_process(
        config, nodes=[11, 12], tamper=only(liar, "query", None, claim(other))
    )
    why = f"client {liar} is left out: has the key of client {liar}, but claims to be "
    assert why + str(other) in caplog.text
    asked = {client for client, request in transport.asked if request.kind == "train"}
    assert asked == {other}
    rows = rounds_of(tmp_path / "run")
    assert [row["clients"] for row in rows] == [[other], [other]]
    why = f"has the key of client {liar}, but claims to be {other}"
    assert [row["reasons"] for row in rows] == [{str(liar): why}] * 2
    assert summary_of(tmp_path / "run")["left_out"] == {str(liar): why}


def test_a_node_without_a_client_s_key_may_have_what_is_nobody_s(tmp_path, keys):
    check_claim(11, 0)
    check_claim(14, 5)
    with pytest.raises(WireError, match="claims to be client 1, whose key it has not"):
        check_claim(14, 1)


def test_a_node_with_a_client_s_key_may_have_no_other_number(keys):
    for number in (1, 5):  # another's, and nobody's
        why = f"has the key of client 0, but claims to be {number}"
        with pytest.raises(WireError, match=why):
            check_claim(11, number)


STRANGE = [
    claim("1"),
    claim(-1),
    claim(1.0),
    claim([1]),
    claim(True),
    lambda request, reply: Reply(request, Content()),
    who(partition=1),
    lambda request, reply: failure(request, "who?"),
    lambda request, reply: None,
]


@pytest.mark.parametrize("answer", STRANGE)
def test_a_node_that_does_not_say_who_it_is_takes_no_part(tmp_path, answer):
    config = tiny(tmp_path, timeout=0.3, min_updates=2)
    with pytest.raises(RoundError, match=r"\[0\] of 2 connected in time, .* least 2"):
        run_in_process(config, tamper=only(1, "query", None, answer))


@pytest.mark.run
def test_nodes_beyond_the_number_of_clients_are_not_asked(tmp_path):
    tamper = only(2, "query", None, claim("nobody"))
    transport = run_in_process(
        tiny(tmp_path, strategy="fedavg"), nodes=[1, 2, 3, 4], tamper=tamper
    )
    trained = {client for client, request in transport.asked if request.kind == "train"}
    assert trained == {0, 1}
    assert summary_of(tmp_path)["clients"] == 2


# ---- the client's side


def test_what_a_task_needs_while_it_lasts_is_not_among_what_a_client_stores():
    class Learner:
        temporary_state = ("optimizer", "memory/old")

    state = {
        "base": {"w": np.array([[0.3, 2, 3.1]], np.float32)},  # 12 bytes
        "optimizer": {"mean/w": np.ones(1000)},
        "adapters/0": {"w": SparseArray((40,), np.array([7]), np.ones(1))},  # 13
        "memory": {"x": np.ones(3, np.int8)},  # 3 bytes
        "memory/old": {"w": np.ones(1000)},
        "memory/older": {"w": np.ones(2, np.int8)},  # 2 bytes
        "control": {"w": np.ones(7, np.int8)},  # 7 bytes
        "server:optimizer": {"w": np.ones(4, np.int8)},  # 4 bytes
    }
    received = {
        "base": {"w": np.ones(5, np.int8)},  # 5 bytes
        "optimizer": {"w": np.ones(1, np.int8)},  # 1 byte
    }
    # The adapter: one value of 8 bytes, and a bit for each of its entries.
    expected = (12 + 13 + 3 + 2 + 7 + 4) + (5 + 1)
    assert model_bytes(Learner(), state, received) == expected


def test_results_lie_under_a_speaking_name_and_never_on_top_of_others(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = RunConfig.from_settings(
        strategy="ewc", local_only=True, dataset="a/b,c", scenario="mixed", seed=3
    )
    name = "runs/ewc-local-only-mixed-a_b+c-seed3"
    for expected in (name, f"{name}-2", f"{name}-3"):
        assert str(free_folder(config)) == expected
        free_folder(config).mkdir(parents=True)


@pytest.mark.run
def test_a_run_without_an_output_folder_makes_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_in_process(tiny("").replace(strategy="local"))
    assert [path.parent.name for path in tmp_path.glob("runs/*/report.html")] == [
        "local-overlapped-digits-seed0"
    ]


# ---- what is recorded


@pytest.mark.run
def test_the_record_adds_up(tmp_path):
    run_in_process(tiny(tmp_path, clients=3, rounds=2))
    rows, found = rounds_of(tmp_path), summary_of(tmp_path)
    for way in ("up", "down"):
        kinds = {}
        for row in rows:
            for kind, size in row[f"bytes_{way}"].items():
                kinds[kind] = kinds.get(kind, 0) + size
        assert found["bytes_by_kind"][way] == kinds
        assert found[f"bytes_{way}"] == sum(kinds.values())
        assert found[f"nominal_bytes_{way}"] == sum(
            r[f"nominal_bytes_{way}"] for r in rows
        )
    last = [matrix[-1] for matrix in found["client_accuracy"]]
    assert found["average_accuracy"] == pytest.approx(np.mean(last))
    assert (found["rounds"], found["total_rounds"]) == (2, 4)
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["state"], progress["round"]) == ("finished", 4)
    assert progress["bytes_up"] == found["bytes_up"]
    assert progress["accuracy"] == pytest.approx(found["average_accuracy"])


@pytest.mark.run
def test_who_has_not_answered_is_at_work(tmp_path, monkeypatch):
    told = told_progress(monkeypatch)
    run_in_process(tiny(tmp_path, strategy="local", clients=3, tasks=1))
    left = [[0, 1, 2], [1, 2], [2], []]
    assert told == [
        ("starting", 0, []),
        *(("training", 1, working) for working in left),
        ("finished", 1, []),
    ]


@pytest.mark.run
def test_progress_is_finished_only_when_the_report_is_there(tmp_path, monkeypatch):
    from fcl_flower.rounds import server

    states = []

    def noted(folder):
        states.append(json.loads((folder / "progress.json").read_text())["state"])

    monkeypatch.setattr(server, "write_report", noted)
    run_in_process(tiny(tmp_path, strategy="local", tasks=1))
    assert states == ["training"]
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == "finished"


# ---- what is asked before a task


def query_run(tmp_path, name="run", tamper=None, **changes):
    """Run FedSeIT with selective transfer on a tiny text set; return the transport."""
    if not (tmp_path / "tiny").exists():
        write_topics(tmp_path)
    values = {
        "strategy": "fedseit",
        "strategy.knowledge": "sit:1",
        "strategy.clusters": 3,
        "strategy.members": 2,
        "dataset": "tiny",
        "data_root": str(tmp_path),
        "word_vectors": "tiny.vec",
        "clients": 3,
        **changes,
    }
    return run_in_process(tiny(tmp_path / name, **values), tamper=tamper)


def queries(transport):
    return [
        (client, stage_of(request))
        for client, request in transport.asked
        if request.kind == "query.survey"
    ]


@pytest.mark.run
def test_a_query_is_a_message_before_a_clients_first_round_of_a_task(tmp_path):
    transport = query_run(tmp_path, rounds=3, client_fraction=0.5, clients=4)
    asked = queries(transport)
    begins = [
        (client, stage_of(request))
        for client, request in transport.asked
        if request.kind == "train" and stage_of(request).starts_task
    ]
    assert asked == begins
    assert len({stage.round for _, stage in asked}) > 2
    assert all(stage.starts_task for _, stage in asked)
    order = [
        (stage_of(m).round, m.kind) for _, m in transport.asked if m.kind != "query"
    ]
    ranks = {"query.survey": 0, "train": 1, "evaluate": 2}
    assert order == sorted(order, key=lambda pair: (pair[0], ranks[pair[1]]))


def nan_answer(request, reply):
    mean = np.full(8, np.nan, np.float32)
    return answered(request, {"summary": {"mean": mean}})


def answered(request, payload):
    return Reply(request, messages.MessageEncoder().payload(payload))


def wide_answer(request, reply):
    return answered(request, {"summary": {"mean": np.zeros(9, np.float32)}})


@pytest.mark.run
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda request, reply: failure(request, "gone"), "the client failed: gone"),
        (nan_answer, "summary/mean: expected vectors of length at most 1"),
        (wide_answer, "summary/mean: expected 1 to 3 vectors of [8] entries"),
        (lambda request, reply: None, "no reply in time"),
    ],
    ids=["error", "nan", "shape", "silence"],
)
def test_a_client_whose_query_fails_is_named_and_trains_all_the_same(
    tmp_path, answer, why
):
    tamper = only(1, "query.survey", 2, answer)
    transport = query_run(tmp_path, tamper=tamper, timeout=0.5)
    rows = rounds_of(tmp_path / "run")
    assert [row["clients"] for row in rows] == [[0, 1, 2]] * 2
    assert [row["failed"] for row in rows] == [[], [1]]
    assert rows[1]["reasons"].keys() == {"1"}
    assert rows[1]["reasons"]["1"].startswith(f"query: {why}")
    received = {
        client: [g for g in request.content.tensors if g.startswith("adapters/")]
        for client, request in transport.asked
        if request.kind == "train" and stage_of(request).round == 2
    }
    assert received[1] == []
    assert len(received[0]) == len(received[2]) == 1
    begun = diagnostics_of(tmp_path / "run")["overlap"]["values"]
    assert {task for task, scores in begun.items() if scores} == {"0/1", "2/1"}
    assert None not in summary_of(tmp_path / "run")["client_accuracy"][1][1]


@pytest.mark.run
@pytest.mark.parametrize("method", ["fedavg", "fedweit", "stl"])
def test_divergence_is_said_with_the_rate(tmp_path, method):
    settings = {"strategy": method, "optimizer": "sgd", "learning_rate": 1e30}
    sentence = "training diverged: .* training.learning_rate is 1e.30, try a lower"
    with pytest.raises(RoundError, match=sentence):
        run_in_process(tiny(tmp_path, **settings))


@pytest.mark.run
def test_who_diverges_alone_is_in_the_remarks(tmp_path):
    def diverge(request, reply):
        return failure(request, "training diverged: heads.0.bias")

    tamper = only(1, "train", 2, diverge)
    run_in_process(tiny(tmp_path, strategy="fedavg"), tamper=tamper)
    said = summary_of(tmp_path)["remarks"]["divergence"]
    assert said.startswith("the training of client 1 has diverged")
    assert "learning_rate was 0.001" in said
