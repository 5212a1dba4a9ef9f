"""Matched ensembles in whole runs on digits: gain, traffic, resumption, hostility."""

import shutil

import numpy as np
import pytest
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from queries import hostile_and_absent
from resuming import check_resumed

from fcl_flower.core.errors import ConfigError
from fcl_flower.rounds import messages
from fcl_flower.rounds.replies import SURVEY
from fcl_flower.rounds.transport import Reply
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(folder, **given):
    """Return a run of three clients, some of whose tasks are the same five digits."""
    usual = {
        "strategy": "matched-ensemble",
        "dataset": "digits",
        "model": "small",
        "scenario": "overlapped",
        "classes_per_task": 5,
        "clients": 3,
        "rounds": 2,
        "epochs": 4,
        "max_train_per_class": 60,
        "learning_rate": 3e-3,
    }
    return tiny(folder, **{**usual, **given})


@pytest.mark.soak
@pytest.mark.run
def test_others_who_have_learned_the_same_make_clients_better(tmp_path):
    found = {}
    for name, given in {
        "together": {},
        "the start alone": {"strategy.ask": "own"},
        "alone": {"local_only": True},
        "unmatched": {"strategy.matching": "none"},
        "stl": {"strategy": "stl"},
    }.items():
        run_in_process(settings(tmp_path / name, max_train_per_class=20, **given))
        found[name] = summary_of(tmp_path / name)["average_accuracy"]
    assert found["unmatched"] == found["stl"]
    assert found["together"] > found["stl"] + 0.02
    assert found["together"] > found["alone"] + 0.02
    assert found["the start alone"] != found["stl"]


@pytest.mark.run
def test_a_network_travels_once_in_training_and_sums_once_a_task(tmp_path):
    transport = run_in_process(settings(tmp_path))
    got = [
        (client, group)
        for client, request in transport.asked
        if request.kind == "train"
        for group in messages.decode_payload(request.content)
        if group.startswith("networks/")
    ]
    assert got
    assert len(got) == len(set(got))
    assert not any(group.startswith(f"networks/{client}/") for client, group in got)
    up = [set(row["bytes_up"]) for row in rounds_of(tmp_path)]
    assert ["sums" in kinds for kinds in up] == [True, False, True, False]
    assert ["networks" in kinds for kinds in up] == [False, True, False, True]


@pytest.mark.run
def test_a_network_whose_reply_was_lost_comes_later(tmp_path):
    def lost(client, request, reply):
        gone = client == 0 and asked_in(request, 2)
        return failure(request, "lost") if gone else reply

    run_in_process(settings(tmp_path), tamper=lost)
    rows = rounds_of(tmp_path)
    assert [row["failed"] for row in rows] == [[], [0], [], []]
    assert ["networks" in row["bytes_up"] for row in rows] == [False, True, True, True]


@pytest.mark.run
def test_networks_travel_in_eight_bits(tmp_path):
    for dtype in ("float32", "int8"):
        run_in_process(settings(tmp_path / dtype, wire_dtype=dtype))
    whole, rounded = (summary_of(tmp_path / d) for d in ("float32", "int8"))
    for way in ("bytes_up", "bytes_down"):
        kinds = [
            sum(row[way].get("networks", 0) for row in rounds_of(tmp_path / d))
            for d in ("float32", "int8")
        ]
        assert kinds[1] < 0.5 * kinds[0]
    assert rounded["average_accuracy"] == pytest.approx(
        whole["average_accuracy"], abs=0.05
    )


@pytest.mark.run
def test_who_lost_its_state_answers_for_its_old_tasks_again(tmp_path):
    def wipe(who, request, reply):
        if who == 0 and asked_in(request, 2):
            shutil.rmtree(tmp_path / "lost-state" / "client-0")
        return reply

    run_in_process(
        settings(tmp_path / "lost", client_state=str(tmp_path / "lost-state")),
        tamper=wipe,
    )
    # Nothing is left by which it could test those of others for its old task.
    run_in_process(settings(tmp_path / "own", **{"strategy.ask": "own"}))
    assert "lost its state" in rounds_of(tmp_path / "lost")[2]["reasons"]["0"]
    lost, own = (
        summary_of(tmp_path / name)["client_accuracy"][0] for name in ("lost", "own")
    )
    assert lost[1][0] == own[1][0] > 0.9


@pytest.mark.soak
@pytest.mark.run
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    check_resumed(tmp_path, settings, 3, SURVEY)


@pytest.mark.run
def test_a_hostile_answer_is_as_good_as_none(tmp_path):
    rows, expected = hostile_and_absent(tmp_path, settings, 1, "sums", "cross")
    assert [row["failed"] for row in rows] == [[1], [], [], []]
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]


@pytest.mark.soak
@pytest.mark.run
def test_one_wrong_network_costs_others_less_than_being_alone(tmp_path):
    """Of five clients one sends a network that takes each class for the next."""

    def wrong(client, request, reply):
        if client != 0 or not asked_in(request, 4) or reply.problem:
            return reply
        content, sent = reply.content, messages.decode_payload(reply.content)
        for name in ("head.weight", "head.bias"):
            rolled = np.roll(np.asarray(sent["networks/0"][name]), 1, 0)
            content = with_array(content, "networks/0", name, array_of(rolled))
        return Reply(request, content)

    given = {"clients": 5, "tasks": 1, "rounds": 4, "seed": 2}
    found = {}
    for name, behaviour in (("honest", {}), ("wrong", {"tamper": wrong})):
        run_in_process(settings(tmp_path / name, **given), **behaviour)
        found[name] = summary_of(tmp_path / name)["client_accuracy"][1:]
    run_in_process(settings(tmp_path / "stl", strategy="stl", **given))
    found["alone"] = summary_of(tmp_path / "stl")["client_accuracy"][1:]
    honest, hostile, alone = (
        np.mean([matrix[0][0] for matrix in found[name]])
        for name in ("honest", "wrong", "alone")
    )
    assert honest > hostile > alone


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"asynchronous": True}, "asynchronous.enabled: got true, expected false for"),
        ({"aggregation": "median"}, "federation.aggregation: got 'median', expected"),
        ({"valid_fraction": 0.0, "lr_patience": 0}, "scenario.valid_fraction: got 0.0"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, given, why):
    with pytest.raises(ConfigError, match=why):
        build.validate(resolve(settings(tmp_path, **given)))
