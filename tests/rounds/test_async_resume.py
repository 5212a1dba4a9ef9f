"""Asynchronous runs that are ended at every event, and then go on."""

import json
import sys

import numpy as np
import pytest
from analytic_cases import start
from fakes import InProcessTransport, exact, rounds_of, run_in_process, summary_of, tiny
from resuming import PulledPlugError

from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import Assignment, TaskStage
from fcl_flower.results.journal import Journal
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.pending_requests import (
    PendingRequest,
    PendingRequests,
)
from fcl_flower.service.changes import forget
from fcl_flower.simulation.in_process import run_simulated


class Plug:
    """Counts what a run does outside its memory, and ends it before one of that."""

    def __init__(self):
        self.done = 0
        self.last = sys.maxsize

    def before(self, action):
        def run(*args, **kwargs):
            self.done += 1
            if self.done > self.last:
                raise PulledPlugError
            return action(*args, **kwargs)

        return run


@pytest.fixture
def plug(monkeypatch):
    """At every line of the journal, every part of a checkpoint, every request."""
    plug = Plug()
    for owner, name in (
        (Journal, "add"),
        (FolderStateStore, "save"),
        (InProcessTransport, "send"),
    ):
        monkeypatch.setattr(owner, name, plug.before(getattr(owner, name)))
    return plug


def small(folder, **values):
    """Client 1 takes almost twice as long as client 0."""
    shape = {
        **{"asynchronous": True, "clients": 2, "tasks": 2, "rounds": 1},
        **{"max_train_per_class": 12, "max_test_per_class": 8},
        **{"simulated_durations": "1,1.75", "client_state": str(folder / "states")},
    }
    return tiny(folder, **{**shape, **values})


def whole(folder):
    """All that a run leaves and that does not depend on time."""
    journal = []
    for line in (folder / "journal.jsonl").read_text().splitlines():
        event = json.loads(line)
        event["told"].pop("seconds", None)
        if event["what"] not in ("begun", "finished"):  # with the time of the day
            journal.append((event["what"], event["round"], event["told"]))
    state = FolderStateStore(folder / CHECKPOINT).load(before=sys.maxsize)
    return (
        summary_of(folder),
        rounds_of(folder),
        (folder / "accuracy.csv").read_text(),
        journal,
        exact(state.state),
    )


def ended_and_resumed(tmp_path, plug, every, values):
    """Hold runs that were ended after some events against a whole one.

    Returns how many events that had.
    """
    run_in_process(small(tmp_path / "whole", **values))
    expected, events = whole(tmp_path / "whole"), plug.done
    for last in range(3, events, every):
        config = small(tmp_path / str(last), **values)
        plug.done, plug.last = 0, last
        with pytest.raises(PulledPlugError):
            run_in_process(config)
        plug.last = sys.maxsize
        run_in_process(config.replace(resume=True))
        assert whole(tmp_path / str(last)) == expected, f"ended after {last} events"
    return events


@pytest.mark.run
@pytest.mark.parametrize(
    ("every", "values"),
    [
        pytest.param(1, {"strategy": "fedavg"}, marks=pytest.mark.fuzz),
        pytest.param(1, {"strategy": "fedweit"}, marks=pytest.mark.fuzz),
        (9, {"strategy": "fedavg", "simulated_durations": ""}),
        (13, {"strategy": "fedweit", "wire_dtype": "float16"}),
    ],
    ids=str,
)
def test_a_run_that_is_ended_at_any_event_ends_with_the_same_numbers(
    tmp_path, plug, every, values
):
    assert ended_and_resumed(tmp_path, plug, every, values) > 20


@pytest.mark.run
def test_a_run_that_is_ended_at_every_event_in_turn_comes_to_the_same_end(
    tmp_path, plug
):
    run_in_process(small(tmp_path / "whole", strategy="fedweit"))
    config = small(tmp_path / "ended", strategy="fedweit")
    for allowed in range(3, 200):
        plug.done, plug.last = 0, allowed
        try:
            run_in_process(config)
        except PulledPlugError:
            config = config.replace(resume=True)
        else:
            break
    assert allowed > 10
    assert whole(tmp_path / "ended") == whole(tmp_path / "whole")


class Late(InProcessTransport):
    """The node of client 0 comes when client 1 was asked to train."""

    def nodes(self):
        came = (1, "train") in asked_of(self)
        return [node for node in self.places if came or node != 1]


def asked_of(transport):
    return [(client, m.kind) for client, m in transport.asked]


@pytest.mark.run
@pytest.mark.parametrize("asked", [False, True])
def test_who_comes_late_is_tested_after_the_task_that_it_had_ended(tmp_path, asked):
    class Ending(InProcessTransport):
        def push(self, request, seconds):
            client, kind = self.client(request), request.kind
            if (client, kind) == (0, "evaluate") and not asked:
                raise PulledPlugError
            if (client, kind) == (1, "evaluate"):  # a checkpoint knows of the other
                raise PulledPlugError
            name = super().push(request, seconds)
            if kind == "evaluate":
                self.waits[name] = sys.maxsize
            return name

    durations = "" if asked else "1,1.75"
    config = small(
        tmp_path, strategy="fedavg", simulated_durations=durations, timeout=2.0
    )
    with pytest.raises(PulledPlugError):
        run_simulated(Ending([1, 2], config), config)
    kept = pending(tmp_path)
    assert [c for c, q in kept.requests.items() if q.kind == "evaluate"] == (
        [0] if asked else []
    )
    transport = Late([1, 2], config)
    run_simulated(transport, config.replace(resume=True))
    of_0 = [kind for client, kind in asked_of(transport) if client == 0]
    assert of_0 == ["query", "evaluate", "train", "evaluate", "evaluate"]
    found = np.array(summary_of(tmp_path)["client_accuracy"], dtype=float)
    assert not np.isnan(found[:, [0, 1, 1], [0, 0, 1]]).any()


def pending(folder):
    beside = FolderStateStore(folder / CHECKPOINT).load().beside
    return PendingRequests.from_payload(beside["asked"])


def test_what_is_in_flight_comes_back_from_a_checkpoint(tmp_path):
    stage = TaskStage(7, 1, starts_task=True, ends_task=False)
    asked = PendingRequest(
        "query.survey",
        stage,
        2,
        Assignment(
            TaskStage(3, 1, starts_task=False, ends_task=True), 2, evaluate=True
        ),
        {"base": {"w": np.float32([1, 2])}, "adapters/0/1": {}},
    )
    given = PendingRequests({4: asked, 2: asked}, {2: {"done": 1}})
    state = {"base": {"w": np.float32([3])}}
    store = FolderStateStore(tmp_path / CHECKPOINT)
    store.save(state, 7, {"asked": given.to_payload()})
    saved = FolderStateStore(tmp_path / CHECKPOINT).load()
    assert exact(saved.state) == exact(state)
    again = pending(tmp_path)
    assert list(again.requests) == [4, 2], "in the order of asking"
    assert again.progress == {2: {"done": 1}}
    found = again.requests[2]
    assert exact(found.payload) == exact(asked.payload)
    for name in ("kind", "stage", "tasks", "assignment"):
        assert getattr(found, name) == getattr(asked, name)


@pytest.mark.run
def test_after_forgetting_clients_are_asked_anew_of_what_is_left(tmp_path, plug):
    shape = {"asynchronous": True, "simulated_durations": "1,1,1.75", "tasks": 2}
    shape["client_state"] = str(tmp_path / "states")
    config = start(tmp_path / "run", **shape)
    run_in_process(start(tmp_path / "whole", **{**shape, "client_state": "context"}))
    plug.done, plug.last = 0, plug.done * 2 // 3
    with pytest.raises(PulledPlugError):
        run_in_process(config)
    plug.last = sys.maxsize
    assert pending(tmp_path / "run").requests
    forget(tmp_path / "run", client=0)
    assert not pending(tmp_path / "run").requests
    transport = run_in_process(config.replace(resume=True))
    asked = {client for client, request in transport.asked}
    assert asked == {0, 1, 2}
    assert len(rounds_of(tmp_path / "run")) == 6


def test_a_state_with_a_group_named_as_what_is_asked_is_refused(tmp_path):
    for name in ("asked/mine", "copies/rest/mine"):
        with pytest.raises(ContractError, match=f"state: got the group '{name}', exp"):
            FolderStateStore(tmp_path).save({name: {"x": np.ones(3)}}, 1)
