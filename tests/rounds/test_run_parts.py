"""A process that keeps what clients share computes what one without memory does."""

import numpy as np
import pytest
from fakes import InProcessTransport, exact, run_in_process, tiny
from resuming import outcome
from threadpoolctl import threadpool_info, threadpool_limits
from watched import keep_nothing

from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.data.word_vectors import WordVectors
from fcl_flower.rounds import client as resident
from fcl_flower.rounds.checkpoint import MemoryStateStore
from fcl_flower.rounds.client import RunParts, forget_runs, run_parts
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


@pytest.fixture(autouse=True)
def nothing_kept():
    forget_runs()
    yield
    forget_runs()


def settings_of(name):
    return {"strategy": name, "clients": 3, "rounds": 2, "max_train_per_class": 8}


def left_by(folder, settings):
    """Return all that a run leaves: numbers, and what every client keeps."""
    folder.mkdir()
    transport = run_in_process(tiny(folder, **settings))
    kept = [MemoryStateStore(p).load(before=99) for p in transport.places.values()]
    states = [None if found is None else exact(found.state) for found in kept]
    return outcome(folder), states


@pytest.mark.run
@pytest.mark.parametrize("name", ["fedavg", "fedweit", "icarl"])
def test_a_client_alone_computes_the_same_with_all_built_anew_and_copied(
    tmp_path, monkeypatch, name
):
    """With communication every method does so: see the watched runs."""
    digits = {"dataset": "digits", "model": "small"}
    settings = {**settings_of(name), **digits, "strategy.local_only": True}
    found = left_by(tmp_path / "kept", settings)
    keep_nothing(monkeypatch)
    assert left_by(tmp_path / "anew", settings) == found


# ---- what is known again


def parts_of(config, run_id="1", client=0, **node):
    return run_parts(run_id, resolve(config), NodeConfig(partition_id=client, **node))


def test_clients_of_a_run_share_its_parts(tmp_path):
    config = tiny(tmp_path)
    first = parts_of(config, client=0, data_path="a", state_path="b")

    assert parts_of(config, client=1) is first
    assert parts_of(config, client=0) is first


@pytest.mark.parametrize("again", [{"run_id": "2"}, {"seed": 5}, {"clients": 3}])
def test_another_run_or_configuration_finds_nothing_and_frees_what_was(tmp_path, again):
    run_id = again.pop("run_id", "1")
    first = parts_of(tiny(tmp_path))

    second = parts_of(tiny(tmp_path, **again), run_id)

    assert second is not first
    assert list(resident._KEPT.values()) == [second]


def test_a_node_that_is_configured_differently_has_parts_of_its_own(tmp_path):
    config = tiny(tmp_path)
    here, there = parts_of(config), parts_of(config, device="meta")

    assert there is not here
    assert there.run.config.training.device == "meta"
    assert parts_of(config) is here


@pytest.mark.run
def test_a_run_in_this_process_leaves_nothing_and_finds_nothing(tmp_path, monkeypatch):
    config = tiny(tmp_path)
    stale = parts_of(config)
    monkeypatch.setattr(stale, "network", None)

    transport = run_in_process(config, nodes=[100, 101])

    assert isinstance(transport, InProcessTransport)
    assert resident._KEPT == {}


# ---- the network


def test_a_clients_own_words_make_a_network_of_its_own(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Built, "network", lambda run, words: made.append(words))
    words = [WordVectors({}, np.zeros((1, 2), np.float32), name) for name in "ab"]
    parts = RunParts(Built(resolve(tiny(tmp_path))))

    for own in words:
        parts.network(own)

    assert made == words


def test_a_process_of_clients_takes_as_many_threads_as_their_run_has(tmp_path):
    with threadpool_limits(3):
        RunParts(Built(resolve(tiny(tmp_path, threads=2))))
        assert {pool["num_threads"] for pool in threadpool_info()} == {2}
