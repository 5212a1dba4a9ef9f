"""Of old runs a client forgets what nobody misses, and no more."""

import json
import os

import pytest
from fakes import InProcessTransport, tiny

from fcl_flower.rounds.retention import remove_old_runs
from fcl_flower.simulation.in_process import run_simulated


def made(states, *names, unit="none"):
    """Make the states of runs, each a thousand seconds after the one before."""
    for name in names:
        folder = states / name / "client-0"
        folder.mkdir(parents=True)
        spec = {"config": {"privacy": {"unit": unit}}}
        (folder / "run.json").write_text(json.dumps(spec))
        (folder / "1-0.bin").write_bytes(b"state")
        when = 1000 * len(list(states.iterdir()))
        for path in (folder, folder.parent):
            os.utime(path, (when, when))


def version(states, run, name="task-01", used=""):
    models = states / run / "client-0" / "models"
    (models / name).mkdir(parents=True)
    if used:
        (models / "used").write_text(f"{used}\n")
    for path in (models.parent, models.parent.parent):
        os.utime(path, (1, 1))


def kept(states):
    return sorted(path.name for path in states.iterdir())


@pytest.mark.parametrize(
    ("keep", "left"), [(1, "d"), (2, "cd"), (3, "bcd"), (4, "abcd"), (9, "abcd")]
)
def test_the_last_runs_stay(tmp_path, keep, left):
    made(tmp_path, *"abcd")
    removed = list(remove_old_runs(tmp_path, keep, "d"))

    assert kept(tmp_path) == list(left)
    assert sorted(removed) == sorted(set("abcd") - set(left))


def test_the_current_run_stays_though_it_is_the_oldest(tmp_path):
    made(tmp_path, *"abc")
    assert sorted(remove_old_runs(tmp_path, 1, "a")) == ["b", "c"]
    assert kept(tmp_path) == ["a"]


def test_a_version_that_is_in_use_stays_and_so_does_the_last_one(tmp_path):
    made(tmp_path, *"vwxyz")
    version(tmp_path, "v", used="task-01")
    version(tmp_path, "w", used="newest")
    version(tmp_path, "x")
    os.utime(tmp_path / "x" / "client-0", (2, 2))

    assert list(remove_old_runs(tmp_path, 2, "z")) == ["w"]
    assert kept(tmp_path) == ["v", "x", "y", "z"]


def test_the_version_that_was_written_last_predicts_whatever_ran_since(tmp_path):
    made(tmp_path, *"abcd")
    for run, when in (("a", 9000), ("b", 8000)):
        version(tmp_path, run)
        os.utime(tmp_path / run / "client-0" / "models", (when, when))

    assert sorted(remove_old_runs(tmp_path, 1, "d")) == ["b", "c"]
    assert kept(tmp_path) == ["a", "d"]


def test_a_version_that_is_half_written_keeps_nothing(tmp_path):
    made(tmp_path, *"ab")
    version(tmp_path, "a", name=".task-01.new")
    assert list(remove_old_runs(tmp_path, 1, "b")) == ["a"]


def test_what_counts_the_cost_of_examples_stays(tmp_path):
    made(tmp_path, "a", unit="example")
    made(tmp_path, "b", unit="client")
    made(tmp_path, "c")
    (tmp_path / "b" / "client-0" / "run.json").write_text("damaged")

    assert list(remove_old_runs(tmp_path, 1, "c")) == ["b"]
    assert kept(tmp_path) == ["a", "c"]


def test_a_client_forgets_when_a_run_begins(tmp_path):
    states = [tmp_path / "first", tmp_path / "second"]
    for folder in states:
        made(folder, *"abcd")
    places = [
        {"state-path": str(states[0]), "keep-runs": 2},
        {"state-path": str(states[1])},
    ]
    config = tiny(tmp_path / "run", strategy="fedavg", tasks=1, id="new")
    run_simulated(InProcessTransport([100, 101], config, places=places), config)

    assert kept(states[0]) == ["d", "new"]
    assert kept(states[1]) == ["a", "b", "c", "d", "new"]
