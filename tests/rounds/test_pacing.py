"""Rounds that do not wait for all: in simulated time by hand, and in real time."""

import math
import time

import pytest
from fakes import (
    InProcessTransport,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
    trained_by,
)
from resuming import check_resumed

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.record import Lateness
from fcl_flower.rounds import pacing
from fcl_flower.rounds.pacing import Quorum
from fcl_flower.simulation.in_process import run_simulated


def quick(folder, **values):
    """Client 2 takes half as long again as the others."""
    shape = {
        **{"strategy": "fedavg", "clients": 3, "tasks": 1, "rounds": 9},
        **{"quorum": 0.6, "simulated_durations": "1,1,1.5"},
    }
    return tiny(folder, **{**shape, **values})


BUSY = "is still busy with an earlier round"


@pytest.mark.run
def test_a_late_client_is_busy_and_then_asked_less_and_less_often(tmp_path):
    transport = run_in_process(quick(tmp_path))
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [[0, 1]] * 9
    assert [row["clock"] for row in rows] == list(range(1, 10))
    late = "was late: the round had its quorum"
    # Asked at 0, 2, 4 and 7, and ready at 1.5, 3.5, 5.5 and 8.5.
    assert [row["reasons"]["2"] for row in rows] == [
        *(late, BUSY),
        *(late, BUSY),
        *(late, BUSY),
        "was late 3 times in a row, and is asked again in round 8",
        *(late, BUSY),
    ]
    assert [stage.round for stage in trained_by(transport, 2)] == [1, 3, 5, 8]
    summary = summary_of(tmp_path)
    assert summary["late_replies"] == {"2": 4}
    assert summary["clock"] == 9.0


@pytest.mark.run
def test_a_deadline_that_is_a_multiple_of_the_quorums_time_lets_it_in(tmp_path):
    run_in_process(quick(tmp_path, deadline_factor=1.5))
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [[0, 1, 2]] * 9
    assert rows[-1]["clock"] == 9 * 1.5
    assert summary_of(tmp_path)["late_replies"] == {}


@pytest.mark.run
def test_a_late_client_is_not_tested_beside_the_others(tmp_path):
    run_in_process(quick(tmp_path, rounds=1))
    found = summary_of(tmp_path)["client_accuracy"]
    assert found[2] == [[None]]
    assert None not in found[0][0]


@pytest.mark.run
def test_a_run_that_was_ended_knows_who_was_late(tmp_path):
    check_resumed(tmp_path, quick, 7)


# ---- in real time


def after_hello(pulls):
    """Client 2 says who it is at once, and then lets one wait."""
    said = []

    def delay(client):
        said.append(client)
        return pulls if client == 2 and said.count(2) > 1 else 0

    return delay


@pytest.mark.run
def test_a_silent_client_costs_no_round_its_timeout(tmp_path):
    config = quick(tmp_path, simulated_durations="", rounds=4, timeout=60)
    began = time.monotonic()
    run_in_process(config, delay=after_hello(10**9))
    assert time.monotonic() - began < 30
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [[0, 1]] * 4
    assert "was late" in rows[0]["reasons"]["2"]
    assert [row["reasons"]["2"] for row in rows[1:]] == [BUSY] * 3
    assert summary_of(tmp_path)["late_replies"] == {"2": 1}


@pytest.mark.run
def test_in_a_simulation_seconds_say_nothing_of_a_client(tmp_path):
    config = quick(tmp_path, simulated_durations="", rounds=2, timeout=60)
    transport = InProcessTransport([1, 2, 3], config, delay=after_hello(2))
    transport.simulated = True

    run_simulated(transport, config)

    assert [row["clients"] for row in rounds_of(tmp_path)] == [[0, 1, 2]] * 2
    assert None not in summary_of(tmp_path)["client_accuracy"][2][0]


def silent(kind):
    """Client 2 never answers messages of a kind."""

    def tamper(client, request, reply):
        hit = client == 2 and request.kind == kind
        return None if hit else reply

    return tamper


@pytest.mark.run
def test_who_is_silent_in_a_test_costs_no_timeout(tmp_path):
    config = quick(
        *(tmp_path,),
        **{"simulated_durations": "", "tasks": 2, "rounds": 1, "timeout": 60},
    )
    began = time.monotonic()
    run_in_process(config, tamper=silent("evaluate"), delay=lambda client: 0)

    assert time.monotonic() - began < 30
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [[0, 1, 2], [0, 1]]
    late = "evaluation: was late: the round had its quorum"
    assert [row["reasons"]["2"] for row in rows] == [late, BUSY]
    found = summary_of(tmp_path)
    assert found["client_accuracy"][2] == [[None, None], [None, None]]
    assert None not in found["client_accuracy"][1][1]
    assert found["late_replies"] == {}, "its update was in time"


def test_an_asynchronous_run_has_no_quorum(tmp_path):
    with pytest.raises(ConfigError, match=r"federation.quorum: got 0.6, expected 1"):
        quick(tmp_path, asynchronous=True)


# ---- when a round is closed, by hand


@pytest.mark.parametrize(
    ("rule", "times", "asked", "closes"),
    [
        (Quorum(), [], 3, math.inf),
        (Quorum(), [1, 2], 3, math.inf),
        (Quorum(), [1, 5, 2], 3, 5),
        (Quorum(0.5), [3], 4, math.inf),
        (Quorum(0.5), [3, 1], 4, 3),
        (Quorum(0.5), [3, 1, 9], 4, 3),  # who comes later moves nothing
        (Quorum(0.5, 2.5), [3, 1, 9], 4, 7.5),
        (Quorum(0.5, 0.2), [3, 1], 4, 3),  # not before its quorum
        (Quorum(0.51), [3, 1], 4, math.inf),
        (Quorum(0.5, least=3), [3, 1], 4, math.inf),
        (Quorum(0.5, least=3), [3, 1, 4], 4, 4),
        (Quorum(0.28), [1] * 7, 25, 1),  # 0.28 * 25 = 7.000000000000001
        (Quorum(0.5), [], 0, math.inf),
    ],
)
def test_the_quorum_and_its_time_close_a_round(rule, times, asked, closes):
    assert rule.closes_at(times, asked) == closes


# ---- when a client that was late is asked again, by hand


def late(server_round, times=1, busy_until=0.0):
    return Lateness(server_round, times, busy_until)


def test_the_pause_doubles_up_to_the_longest():
    pauses = [pacing.next_round(late(10, times)) - 11 for times in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 16, 16, 16]


def test_a_resting_client_is_named_with_the_round_of_its_return():
    known = {1: late(4, 3), 2: late(4, 1)}
    why = "was late 3 times in a row, and is asked again in round 7"
    assert pacing.backing_off(known, 6, [0, 1, 2]) == {1: why}
    assert pacing.backing_off(known, 7, [0, 1, 2]) == {}
    assert pacing.backing_off(known, 6, [0, 2]) == {}


def test_a_client_is_busy_until_its_time():
    known = {1: late(4, busy_until=2.5), 2: late(4, busy_until=3.0)}
    assert pacing.busy(known, 2.5, [0, 1, 2]) == {2}
    assert pacing.busy(known, 2.4, [0, 1]) == {1}


def test_time_passes_until_enough_are_free():
    known = {1: late(4, busy_until=2.5), 2: late(4, busy_until=3.0)}
    found = [
        pacing.next_free_time(known, 2.0, [0, 1, 2], least) for least in (1, 2, 3, 9)
    ]
    assert found == [2.0, 2.5, 3.0, 3.0]
    assert pacing.next_free_time(known, 2.0, [], 1) == 2.0
    assert pacing.next_free_time(known, 9.0, [1, 2], 2) == 9.0
