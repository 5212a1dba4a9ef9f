"""Whole runs whose models travel as rounded differences."""

import sys

import numpy as np
import pytest
from fakes import (
    InProcessTransport,
    exact,
    rounds_of,
    run_in_process,
    summary_of,
    tiny,
)
from resuming import PulledPlugError

from fcl_flower.core.errors import RoundError
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.codec import decode, encode
from fcl_flower.rounds.transport import TRAIN, Content
from fcl_flower.simulation.in_process import run_simulated

pytestmark = pytest.mark.run

LEVELS = {"wire_dtype": "int4"}


def few(folder, **values):
    shape = {"rounds": 3, "max_train_per_class": 20, "max_test_per_class": 10}
    return tiny(folder, **{**shape, **LEVELS, **values})


def state_of(folder):
    return FolderStateStore(folder / CHECKPOINT).load(before=sys.maxsize).state


def copies_of(transport, folder):
    """Return by client its last copy of each model, from its private state."""
    kept = FolderStateStore
    found = {}
    for client in range(len(transport.places)):
        saved = kept(folder / "states" / f"client-{client}").load(sys.maxsize)
        found[client] = {
            group.removeprefix("model/"): arrays
            for group, arrays in saved.beside["copies"].items()
            if group.startswith("model/")
        }
    return found


def with_states(folder, **values):
    return few(folder, client_state=str(folder / "states"), **values)


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [("fedavg", "int4"), ("fedprox", "int8"), ("fedweit", "ternary")],
)
def test_fewer_levels_are_fewer_bytes_both_ways_and_it_still_learns(
    tmp_path, strategy, dtype
):
    run_in_process(few(tmp_path / "exact", strategy=strategy, wire_dtype="float32"))
    run_in_process(few(tmp_path / dtype, strategy=strategy, wire_dtype=dtype))
    plain, rounded = summary_of(tmp_path / "exact"), summary_of(tmp_path / dtype)
    for way, most in (("up", 0.35), ("down", 0.55)):
        kind = rounded["bytes_by_kind"][way]["base"]
        assert kind < most * plain["bytes_by_kind"][way]["base"]
    assert rounded["average_accuracy"] > plain["average_accuracy"] - 0.1


@pytest.mark.parametrize(
    ("strategy", "more"),
    [("fedavg", {}), ("fedweit", {}), ("concept-matching", {"classes_per_task": 0})],
    ids=["fedavg", "fedweit", "concept-matching"],
)
def test_clients_have_the_models_that_the_server_had_when_it_asked(
    tmp_path, monkeypatch, strategy, more
):
    folder, states = tmp_path / "run", {}
    config = with_states(folder, strategy=strategy, **more)
    save = FolderStateStore.save

    def keep(store, state, number, beside):
        save(store, state, number, beside)
        if store._folder.name == CHECKPOINT:
            states[number] = state

    monkeypatch.setattr(FolderStateStore, "save", keep)
    transport = run_in_process(config)
    asked_of = states[max(states) - 1]
    for models in copies_of(transport, folder).values():
        assert models
        for group, arrays in models.items():
            assert exact({group: arrays}) == exact({group: asked_of[group]})


def test_a_client_that_loses_its_state_gets_the_models_and_goes_on(tmp_path):
    made, whole = [], []

    def lose(client, request, reply):
        train = request.kind == TRAIN
        if client == 0 and train:
            groups = request.content.tensors
            whole.append(not any("/+" in group for group in groups))
            if len(whole) == 2:
                made[0].places[request.node].state = Content()
        return reply

    config = few(tmp_path / "run", strategy="fedavg")
    transport = InProcessTransport([11, 12], config, tamper=lose)
    made.append(transport)
    run_simulated(transport, config)
    # The third request asks for what is lost; the next one brings it.
    assert whole == [True, False, False, True, False, False]
    assert "lost" in str(rounds_of(tmp_path / "run")[2])
    assert summary_of(tmp_path / "run")["average_accuracy"] > 0.5


def copied(folder):
    found = {}
    for path in sorted((folder / "states").iterdir()):
        found[path.name] = exact(FolderStateStore(path).load().beside["copies"])
    return found


@pytest.mark.parametrize(
    ("strategy", "asynchronous"), [("fedweit", False), ("fedavg", True)]
)
def test_a_run_that_is_ended_and_resumed_comes_to_the_same_models(
    tmp_path, monkeypatch, strategy, asynchronous
):
    values = {"strategy": strategy, "asynchronous": asynchronous, "clients": 2}
    if asynchronous:
        values["simulated_durations"] = "1,1.75"
    run_in_process(with_states(tmp_path / "whole", **values))
    expected = summary_of(tmp_path / "whole")
    save = FolderStateStore.save
    folder = tmp_path / "ended"

    def pulled(store, state, number, beside):
        if store._folder.name == CHECKPOINT and number > 4:
            raise PulledPlugError
        save(store, state, number, beside)

    with monkeypatch.context() as patched:
        patched.setattr(FolderStateStore, "save", pulled)
        with pytest.raises(PulledPlugError):
            run_in_process(with_states(folder, **values))
    run_in_process(with_states(folder, **values).replace(resume=True))
    assert summary_of(folder)["accuracy_matrix"] == expected["accuracy_matrix"]
    assert exact(state_of(folder)) == exact(state_of(tmp_path / "whole"))
    assert copied(folder) == copied(tmp_path / "whole")


def test_hostile_values_without_a_limit_leave_a_state_of_finite_values(tmp_path):
    inflated = []

    def huge(client, request, reply):
        if client == 1 and request.kind == TRAIN:
            for arrays in reply.content.tensors.values():
                for name, array in arrays.items():
                    if "+levels" in array.form:
                        largest = np.abs(decode(array)).max()
                        large = decode(array) * np.float32(1e30 / largest)
                        arrays[name] = encode(large, "int8")
                        inflated.append(name)
        return reply

    values = {"strategy": "fedavg", "max_update_norm": 0.0, "rounds": 1, "tasks": 1}
    with pytest.raises(RoundError, match="predictions are NaN"):
        run_in_process(few(tmp_path / "run", **values, wire_dtype="int8"), tamper=huge)
    assert inflated
    assert rounds_of(tmp_path / "run")[0]["clients"] == [0, 1]
    base = state_of(tmp_path / "run")["base"]
    assert all(np.isfinite(tensor).all() for tensor in base.values())
