"""The loop without rounds: who is asked when, and how much an update counts."""

from collections import Counter

import numpy as np
import pytest
from fakes import (
    InProcessTransport,
    diagnostics_of,
    failure,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
    told_progress,
    trained_by,
)
from text_sets import write_topics

from fcl_flower.aggregation.mean import interpolate
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.rounds import byte_counts, messages
from fcl_flower.rounds.transport import Reply
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_simulated


def asked_in(request):
    return messages.decode_request(request.content)


def slow(folder, **values):
    """Client 2 takes four times as long as the others."""
    shape = {
        "asynchronous": True,
        "clients": 3,
        "rounds": 2,
        "simulated_durations": "1,1,4",
    }
    return tiny(folder, **{**shape, **values})


# ---- by hand


def test_averaged_groups_are_interpolated_and_all_others_replaced():
    before = {
        "base": {"w": np.float32([1, 2]), "n": np.array([10])},
        "adapters/0/0": {"w": np.float32([1])},
    }
    after = {
        "base": {"w": np.float32([3, 2]), "n": np.array([21])},
        "adapters/0/0": {"w": np.float32([9])},
        "dense/2": {"w": np.float32([5])},
    }
    found = interpolate(before, after, 0.25, ("base", "dense"))
    assert found["base"]["w"].tolist() == [1.5, 2]
    assert found["base"]["w"].dtype == np.float32
    assert found["base"]["n"].tolist() == [13], "10 + 11 / 4, a whole number"
    assert found["adapters/0/0"] is after["adapters/0/0"]
    assert found["dense/2"] is after["dense/2"], "new: nothing to mix it with"
    assert before["base"]["w"].tolist() == [1, 2]


# ---- whole runs


@pytest.mark.run
def test_updates_are_aggregated_in_the_order_of_simulated_time(tmp_path):
    run_in_process(slow(tmp_path, strategy="fedavg"))
    rows = rounds_of(tmp_path)
    # Each has 4 rounds. 0 and 1 answer at 1, 2, 3, 4; 2 answers at 4, 8, 12, 16.
    order = [(row["clients"], row["clock"]) for row in rows]
    assert order == [
        *[([c], t) for t in (1.0, 2.0, 3.0) for c in (0, 1)],
        *[([c], 4.0) for c in (0, 1, 2)],
        *[([2], t) for t in (8.0, 12.0, 16.0)],
    ]
    # Of client 0 only client 1's and the like came between; of client 2 eight did.
    assert [row["staleness"] for row in rows] == [0, 1] + [1] * 6 + [8, 0, 0, 0]
    weights = [0.6 * (1 + row["staleness"]) ** -0.5 for row in rows]
    assert [row["weight"] for row in rows] == pytest.approx(weights)
    assert [row["task"] for row in rows] == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    summary = summary_of(tmp_path)
    assert (summary["clock"], summary["total_rounds"]) == (16.0, 12)
    assert summary["mode"] == "asynchronous"


@pytest.mark.run
def test_clients_with_a_question_are_at_work(tmp_path, monkeypatch):
    told = told_progress(monkeypatch)
    run_in_process(slow(tmp_path, strategy="local", tasks=1))
    # Whose update it is has no question yet; the slow one comes when both have ended.
    assert [working for state, _, working in told if state == "training"] == [
        *([1, 2], [0, 2], [1, 2], [2], [], [])
    ]


@pytest.mark.run
def test_the_bytes_of_the_last_tests_are_counted(tmp_path):
    sent = {"down": Counter(), "up": Counter()}

    def counted(who, request, reply):
        if request.kind != "query":
            sent["down"] += byte_counts.traffic(request.content)
            sent["up"] += byte_counts.traffic(reply.content)
        return reply

    run_in_process(slow(tmp_path, strategy="fedavg"), tamper=counted)
    summary = summary_of(tmp_path)
    assert summary["bytes_down"] == sent["down"].total()
    assert summary["bytes_up"] == sent["up"].total()
    assert summary["bytes_down"] > sum(
        sum(row["bytes_down"].values()) for row in rounds_of(tmp_path)
    )


class Leaving(InProcessTransport):
    """Client 0 is away between the first test of client 1 and its next round."""

    def nodes(self):
        kinds = [m.kind for c, m in self.asked if c == 1]
        away = "evaluate" in kinds and kinds.count("train") == 1
        return [node for node in self.places if node != 1 or not away]


@pytest.mark.run
def test_who_was_away_when_its_task_ended_is_tested_before_the_next(tmp_path):
    shape = {"clients": 2, "rounds": 1, "simulated_durations": "1.75,1"}
    config = slow(tmp_path, strategy="fedavg", **shape)
    transport = Leaving([1, 2], config)
    run_simulated(transport, config)
    kinds = [m.kind for c, m in transport.asked if c == 0]
    assert [kind for kind in kinds if kind != "query"] == [
        *("train", "evaluate", "train", "evaluate", "evaluate")
    ]
    found = np.array(summary_of(tmp_path)["client_accuracy"], dtype=float)
    assert not np.isnan(found[:, [0, 1, 1], [0, 0, 1]]).any()


@pytest.mark.run
def test_without_simulated_durations_updates_are_aggregated_as_they_arrive(tmp_path):
    config = slow(tmp_path, strategy="fedavg", simulated_durations="")
    run_in_process(config, delay=lambda client: 3 * (client == 0))
    clients = [row["clients"][0] for row in rounds_of(tmp_path)]
    assert sorted(clients) == [0] * 4 + [1] * 4 + [2] * 4
    assert clients[-1] == 0, "the slow one comes last"
    assert "clock" not in rounds_of(tmp_path)[0]


@pytest.mark.run
def test_a_client_that_fails_is_asked_again_for_the_same(tmp_path):
    failed = []

    def once(who, request, reply):
        if who == 1 and request.kind == "train" and not failed:
            failed.append(asked_in(request).stage)
            return failure(request, "a moment of weakness")
        return reply

    transport = run_in_process(slow(tmp_path, strategy="fedavg"), tamper=once)
    rounds = [stage.round for stage in trained_by(transport, 1)]
    assert rounds == [1, 1, 2, 3, 4]
    reasons = [row["reasons"] for row in rounds_of(tmp_path) if row["reasons"]]
    assert reasons == [{"1": "the client failed: a moment of weakness"}]


@pytest.mark.run
def test_the_first_loss_of_a_clients_state_is_not_counted_as_a_failure(tmp_path):
    lost = []

    def loses(who, request, reply):
        due = who == 1 and request.kind == "train" and len(lost) < times
        if due and asked_in(request).stage.round == 2:
            lost.append(request)
            return Reply(request, messages.state_lost(1))
        return reply

    times = 1
    run_in_process(
        slow(tmp_path / "a", strategy="fedavg", max_attempts=1), tamper=loses
    )
    assert sum(row["clients"] == [1] for row in rounds_of(tmp_path / "a")) == 4
    times, lost[:] = 2, []
    run_in_process(
        slow(tmp_path / "b", strategy="fedavg", max_attempts=1), tamper=loses
    )
    assert sum(row["clients"] == [1] for row in rounds_of(tmp_path / "b")) == 1


@pytest.mark.run
def test_a_client_that_always_fails_is_given_up(tmp_path):
    def never(who, request, reply):
        broken = who == 1 and request.kind == "train"
        return failure(request, "broken disk") if broken else reply

    transport = run_in_process(slow(tmp_path / "a", strategy="fedavg"), tamper=never)
    asked = [c for c, m in transport.asked if m.kind == "train"]
    assert (asked.count(0), asked.count(1), asked.count(2)) == (4, 3, 4)
    config = slow(tmp_path / "b", strategy="fedavg", min_updates=3)
    with pytest.raises(RoundError, match=r"2 clients came to the end.* 3 needed.*disk"):
        run_in_process(config, tamper=never)


@pytest.mark.run
def test_each_client_is_queried_when_it_starts_a_task(tmp_path):
    write_topics(tmp_path)
    run_in_process(
        slow(
            tmp_path / "run",
            strategy="fedseit",
            dataset="tiny",
            data_root=str(tmp_path),
            word_vectors="tiny.vec",
            **{
                "strategy.knowledge": "sit:1",
                "strategy.clusters": 3,
                "strategy.members": 2,
            },
        )
    )
    scored = diagnostics_of(tmp_path / "run")["overlap"]["values"]
    assert scored["2/1"], "the slow one finds finished tasks of both others"


# ---- what cannot be


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"client_fraction": 0.5}, "client_fraction: got 0.5, expected 1"),
        (
            {"simulated_durations": "1,2"},
            "simulated_durations: got '1,2', expected a number above 0 for each",
        ),
        ({"simulated_durations": "1,2,0"}, "simulated_durations: got"),
        ({"simulated_durations": "1,2,nan"}, "simulated_durations: got"),
        ({"simulated_durations": "1,2,x"}, "simulated_durations: got"),
    ],
)
def test_impossible_settings_are_refused(tmp_path, values, why):
    with pytest.raises(ConfigError, match=why):
        slow(tmp_path).replace(**values)


def test_an_algorithm_that_needs_rounds_is_refused(tmp_path):
    why = "asynchronous.enabled: got true, expected"
    with pytest.raises(ConfigError, match=why):
        Built(
            resolve(slow(tmp_path, strategy="concept-matching", scenario="overlapped"))
        ).strategy()
    with pytest.raises(ConfigError, match=why):
        resolve(
            slow(tmp_path, strategy="fedavg", scenario="concepts", classes_per_task=0)
        )
