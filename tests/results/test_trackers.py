"""What a tracker is told, against the files of the run."""

import json
from collections import defaultdict

import numpy as np
import pytest
from fakes import run_in_process
from records import trained

import fcl_flower as fcl
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import PluginWarning
from fcl_flower.core.types import Evaluation
from fcl_flower.results.monitors import accuracy_scalars, round_scalars
from fcl_flower.results.trackers import TRACKERS, Tracker

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 2, "progress": False}


class Heard(Tracker):
    """Keeps all that it is told; fails from some call on, if asked to."""

    made = ()

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.steps = defaultdict(dict)
        self.order, self.measures, self.closed = [], None, 0
        type(self).made += (self,)

    def log(self, scalars, step):
        self.steps[step] |= scalars
        self.order.append(step)

    def finish(self, measures, report):
        self.measures, self.report = measures, report.read_text()

    def close(self):
        self.closed += 1


class Broken(Heard):
    made = ()

    def log(self, scalars, step):
        super().log(scalars, step)
        if step == 2:
            raise OSError("no route to host")


@pytest.fixture
def tracked():
    Heard.made, Broken.made = (), ()
    with (
        TRACKERS.registered("heard", Heard),
        TRACKERS.registered("broken", Broken),
    ):
        yield lambda: Heard.made


def simulate(folder, track, **settings):
    return fcl.simulate(
        "fedavg", output=folder, **(SMALL | {"run": {"track": track}} | settings)
    )


def test_a_tracker_hears_each_round_and_each_accuracy_and_the_end(tmp_path, tracked):
    result = simulate(tmp_path / "run", " heard ")

    (one,) = tracked()
    assert one.config.strategy.name == "fedavg"
    assert one.folder == tmp_path / "run"
    assert sorted(one.steps) == [1, 2, 3, 4]
    assert one.order == sorted(one.order)
    for line in result.rounds:
        told = one.steps[line["round"]]
        for key in ("loss", "valid_accuracy", "seconds", "task"):
            assert told[key] == line[key]
        assert told["bytes_up"] == sum(line["bytes_up"].values())
        assert told["bytes_down"] == sum(line["bytes_down"].values())
        assert (told["clients"], told["failed"]) == (2, 0)
        both = [told["client/0/loss"], told["client/1/loss"]]
        assert np.mean(both) == pytest.approx(line["loss"])
        assert both[0] != both[1]
    final = np.array(result.summary["client_accuracy"])[:, 1].mean(1)
    assert one.steps[4]["accuracy"] == pytest.approx(final.mean())
    assert one.steps[4]["client/1/accuracy"] == pytest.approx(final[1])
    assert one.measures["average_accuracy"] == pytest.approx(final.mean())
    assert one.measures["bytes_up"] == result.bytes_up
    assert "honest_accuracy" not in one.measures  # which is not known
    assert one.report == result.report().read_text()
    assert one.closed == 1


def test_nobody_hears_of_a_run_without_trackers(tmp_path, tracked):
    fcl.simulate("fedavg", output=tmp_path, **SMALL)

    assert not tracked()


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(tmp_path, tracked):
    with pytest.warns(PluginWarning, match=r"^run.track: broken is left .*no route"):
        result = simulate(tmp_path / "run", "broken,heard")

    (heard,), (broken,) = Heard.made, Broken.made
    assert sorted(broken.steps) == [1, 2]
    assert (broken.measures, broken.closed) == (None, 0)
    assert sorted(heard.steps) == [1, 2, 3, 4]
    assert result.summary["total_rounds"] == 4


def test_a_run_that_fails_closes_its_trackers_without_an_end(
    tmp_path, tracked, monkeypatch
):
    monkeypatch.setattr(LocalTraining, "train", lambda *given: 1 / 0)
    with pytest.raises(fcl.RoundError):
        simulate(tmp_path / "run", "heard")

    (one,) = tracked()
    assert (one.measures, one.closed) == (None, 1)


def test_a_resumed_run_tells_all_again(tmp_path, tracked):
    config = RunConfig.from_settings(
        strategy="fedavg",
        output=str(tmp_path),
        run={"track": "heard"},
        **{k: v for k, v in SMALL.items() if k != "progress"},
    )
    run_in_process(config)
    run_in_process(config.replace(resume=True))

    first, again = tracked()
    assert {s: set(first.steps[s]) for s in first.steps} == {
        s: set(again.steps[s]) for s in again.steps
    }
    for step, told in first.steps.items():
        assert again.steps[step] == told


def test_a_tracker_that_is_none_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        fcl.ConfigError, match=r"^run.track: got 'tensorbord'.*mean 'ten"
    ):
        simulate(tmp_path / "run", "tensorbord")
    assert not [*tmp_path.iterdir()]


def test_only_finite_numbers_of_known_names_are_told():
    said = {"loss": 0.5, "valid_loss": float("inf"), "$(evil)": 1.0}
    found = round_scalars(trained(3, 1, replies={7: said}, failed={8: "late"}))

    assert found["client/7/loss"] == 0.5
    assert "client/7/valid_loss" not in found
    assert not [name for name in found if "evil" in name]
    assert (found["failed"], found["clients"], found["task"]) == (1, 1, 1)
    assert "valid_accuracy" not in found


def test_an_accuracy_is_the_mean_over_clients_of_their_tasks():
    scores = {0: Evaluation([0.5, 1.0], 9), 2: Evaluation([0.25], 9)}

    assert accuracy_scalars(scores) == {
        "accuracy": 0.5,
        "client/0/accuracy": 0.75,
        "client/2/accuracy": 0.25,
    }
    assert accuracy_scalars({0: Evaluation([], 9)}) == {}


def test_a_command_may_name_trackers(tmp_path):
    from fcl_flower.cli.options import FLAGS

    assert "track" in FLAGS
    assert RunConfig.from_settings(track="a, b").run.trackers == ("a", "b")
    assert json.loads(json.dumps(RunConfig().flat()))["run.track"] == ""
