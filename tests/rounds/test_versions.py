"""Versions of a model on the disk: whole or not there, kept, chosen and refused."""

import json
import os

import numpy as np
import pytest
from fakes import InProcessTransport, tiny

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import TaskClasses
from fcl_flower.rounds import versions
from fcl_flower.rounds.versions import About, remove_old_runs
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_simulated


@pytest.fixture(scope="module")
def spec():
    """Return the specification of a run."""
    return resolve(tiny("unused"))


@pytest.fixture
def keep(tmp_path, spec):
    """Return what writes a version, whose tensor holds the number of its round."""

    def write(name, number, tasks=1, accuracy=None):
        known = tuple(TaskClasses(f"t{n}", (0, 1), ("a", "b")) for n in range(tasks))
        about = About(
            name=name,
            round=number,
            tasks=known,
            head=(),
            client=0,
            accuracy=accuracy,
            spec=spec,
        )
        versions.write(tmp_path, about, {"state/base": {"w": np.full(3, number)}})

    return write


def names(folder):
    return [one.about.name for one in versions.versions(folder)]


def loaded(folder, name=""):
    version, groups = versions.load(folder, name)
    return version.about.name, np.asarray(groups["state/base"]["w"]).tolist()


def test_the_newest_is_loaded_unless_another_is_in_use(keep, tmp_path):
    keep("task-01", 2)
    keep("round-3", 3)
    assert loaded(tmp_path) == ("round-3", [3, 3, 3])
    versions.use(tmp_path, "task-01")
    assert loaded(tmp_path) == ("task-01", [2, 2, 2])
    keep("task-02", 4, tasks=2)
    assert loaded(tmp_path)[0] == "task-01"
    versions.use(tmp_path, "newest")
    assert loaded(tmp_path) == ("task-02", [4, 4, 4])


def test_a_version_takes_the_place_of_one_of_its_name(keep, tmp_path):
    keep("task-01", 2)
    keep("task-01", 3)
    assert loaded(tmp_path) == ("task-01", [3, 3, 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task-01"]


def test_a_process_that_ended_between_two_renames_leaves_the_old_one(keep, tmp_path):
    keep("task-01", 2)
    (tmp_path / "task-01").rename(tmp_path / ".task-01.old")
    assert loaded(tmp_path) == ("task-01", [2, 2, 2])
    keep("task-01", 3)
    assert loaded(tmp_path) == ("task-01", [3, 3, 3])


@pytest.mark.parametrize("loss", ["flip", "remove", "manifest"])
def test_a_damaged_version_is_told_and_never_loaded(loss, keep, tmp_path):
    keep("task-01", 2)
    keep("task-02", 4, tasks=2)
    (tensors,) = (tmp_path / "task-02").glob("manifest-*")
    if loss == "flip":
        tensors.write_bytes(tensors.read_bytes()[:-1] + b"x")
    elif loss == "remove":
        tensors.unlink()
    else:
        path = tmp_path / "task-02" / "version.json"
        path.write_text(path.read_text().replace('"round": 4', '"round": 5'))

    assert loaded(tmp_path) == ("task-01", [2, 2, 2])
    for call in (versions.load, versions.use):
        with pytest.raises(ConfigError, match=r"version: got 'task-02'"):
            call(tmp_path, "task-02")
    if loss != "manifest":
        assert versions.versions(tmp_path)[1].damage()


def test_another_format_is_refused(keep, tmp_path):
    keep("task-01", 2)
    path = tmp_path / "task-01" / "version.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ConfigError, match="got format 99, expected format 2"):
        versions.load(tmp_path)


def test_the_best_has_the_highest_accuracy_of_those_with_most_tasks(keep, tmp_path):
    keep("task-01", 2, accuracy=0.9)
    keep("round-3", 3, tasks=2, accuracy=0.8)
    keep("task-02", 4, tasks=2, accuracy=0.7)
    assert loaded(tmp_path, "best")[0] == "round-3"
    keep("round-5", 5, tasks=3)
    with pytest.raises(ConfigError, match="version: got 'best'"):
        versions.load(tmp_path, "best")


def test_what_a_policy_does_not_keep_is_removed(keep, tmp_path):
    for task in range(1, 5):
        keep(f"task-{task:02}", 2 * task, tasks=task)
    keep("round-3", 3, tasks=2)
    keep("round-9", 9, tasks=5)
    versions.prune(tmp_path, "tasks")
    assert names(tmp_path) == [f"task-{task:02}" for task in range(1, 5)] + ["round-9"]
    versions.use(tmp_path, "task-01")
    versions.prune(tmp_path, "last:2")
    assert names(tmp_path) == ["task-01", "task-03", "task-04", "round-9"]


# ---- states of old runs


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
    ("keep", "current", "left"),
    [(1, "d", "d"), (1, "a", "a"), (2, "d", "cd"), (3, "d", "bcd"), (9, "d", "abcd")],
)
def test_the_last_runs_stay_and_the_current_one_whatever_its_age(
    tmp_path, keep, current, left
):
    made(tmp_path, *"abcd")

    assert {*remove_old_runs(tmp_path, keep, current)} == set("abcd") - set(left)
    assert kept(tmp_path) == list(left)


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


@pytest.mark.run
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
