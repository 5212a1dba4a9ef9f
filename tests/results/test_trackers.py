"""What a tracker hears, and each one's own files, read by its own package."""

import sys
from collections import defaultdict

import numpy as np
import pytest
from fakes import run_in_process
from records import begun, evaluated, trained

import fcl_flower as fcl
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import PluginWarning
from fcl_flower.core.types import Evaluation
from fcl_flower.results.trackers import (
    TRACKERS,
    accuracy_scalars,
    round_scalars,
    tracking,
)

SMALL = {"dataset": "digits", "clients": 2, "tasks": 2, "rounds": 1, "progress": False}
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Of these packages about themselves.
    pytest.mark.filterwarnings("ignore"),
]


class Heard:
    """Keeps all that it is told; fails at some step, if asked to."""

    made = ()
    fails = 0

    def __init__(self, config, folder):
        self.config, self.folder = config, folder
        self.steps = defaultdict(dict)
        self.order, self.measures, self.closed = [], None, 0
        type(self).made += (self,)

    def __enter__(self):
        return self.log

    def log(self, scalars, step):
        if step is None:
            self.measures = scalars
            self.report = (self.folder / "report.html").read_text()
            return
        self.steps[step] |= scalars
        self.order.append(step)
        if step == self.fails:
            raise OSError("no route to host")

    def __exit__(self, *error):
        self.closed += 1
        self.error = error[0]


@pytest.fixture
def tracked():
    Heard.made = ()
    with TRACKERS.registered("heard", Heard):
        yield lambda: Heard.made


def simulate(folder, track, **settings):
    return fcl.simulate(
        "fedavg", output=folder, **(SMALL | {"run": {"track": track}} | settings)
    )


@pytest.mark.run
def test_a_tracker_hears_each_round_and_each_accuracy_and_the_end(tmp_path, tracked):
    result = simulate(tmp_path / "run", " heard ")
    (one,) = tracked()
    assert one.config.strategy.name == "fedavg"
    assert one.folder == tmp_path / "run"
    assert sorted(one.steps) == [1, 2]
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
    final = np.array(result.summary["client_accuracy"])[:, 1].mean(1)
    assert one.steps[2]["accuracy"] == pytest.approx(final.mean())
    assert one.steps[2]["client/1/accuracy"] == pytest.approx(final[1])
    assert one.measures["average_accuracy"] == pytest.approx(final.mean())
    assert one.measures["bytes_up"] == result.bytes_up
    assert "honest_accuracy" not in one.measures  # which is not known
    assert one.report == result.report().read_text()
    assert one.closed == 1


@pytest.mark.run
def test_a_resumed_run_tells_all_again_and_one_that_fails_has_no_end(
    tmp_path, tracked, monkeypatch
):
    size = {key: value for key, value in SMALL.items() if key != "progress"}
    run = {"output": str(tmp_path), "run": {"track": "heard"}}
    config = RunConfig.from_settings(strategy="fedavg", **size, **run)
    run_in_process(config)
    run_in_process(config.replace(resume=True))
    first, again = tracked()
    assert first.steps == again.steps

    monkeypatch.setattr(LocalTraining, "train", lambda *given: 1 / 0)
    with pytest.raises(fcl.RoundError):
        simulate(tmp_path / "broken", "heard")
    assert (tracked()[-1].measures, tracked()[-1].closed) == (None, 1)
    assert issubclass(tracked()[-1].error, fcl.RoundError)


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(tmp_path):
    one, broken = Heard(None, tmp_path), Heard(None, tmp_path)
    broken.fails = 2
    with tracking({"broken": broken, "heard": one}) as hear:
        hear(begun())
        hear(trained(1))
        message = r"^run.track: broken is left .*no route"
        with pytest.warns(PluginWarning, match=message):
            hear(evaluated(2, 0, {0: [0.5]}))
        hear(trained(2))
    assert (broken.order, one.order) == ([1, 2], [1, 2, 2])
    assert (broken.closed, one.closed) == (0, 1)


def test_a_tracker_that_is_none_is_refused_before_anything_runs(tmp_path):
    message = r"^run.track: got 'tensorbord'.*mean 'ten"
    with pytest.raises(fcl.ConfigError, match=message):
        simulate(tmp_path / "run", "tensorbord")
    assert not [*tmp_path.iterdir()]


def test_only_finite_numbers_of_known_names_are_told():
    said = {"loss": 0.5, "valid_loss": float("inf"), "$(evil)": 1.0}
    found = round_scalars(trained(3, 1, replies={7: said}, failed={8: "late"}))
    assert found["client/7/loss"] == 0.5
    assert not {"client/7/valid_loss", "valid_accuracy"} & {*found}
    assert not [name for name in found if "evil" in name]
    assert (found["failed"], found["clients"], found["task"]) == (1, 1, 1)
    scores = {0: Evaluation([0.5, 1.0], 9), 2: Evaluation([0.25], 9)}
    of_clients = {"client/0/accuracy": 0.75, "client/2/accuracy": 0.25}
    assert accuracy_scalars(scores) == {"accuracy": 0.5, **of_clients}
    assert accuracy_scalars({0: Evaluation([], 9)}) == {}


# ---- packages of others


@pytest.mark.run
def test_tensorboard_reads_scalars_by_round_and_the_configuration(tmp_path):
    pytest.importorskip("tensorboard", reason="of the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stale = tmp_path / "run" / "tensorboard"
    stale.mkdir(parents=True)
    (stale / "old").write_text("of a run before")
    result = simulate(tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(stale))
    found.Reload()

    losses = [(event.step, event.value) for event in found.Scalars("loss")]
    assert losses == [
        (line["round"], pytest.approx(line["loss"])) for line in result.rounds
    ]
    last = found.Scalars("accuracy")[-1]
    assert (last.step, last.value) == (2, pytest.approx(result.average_accuracy))
    assert "client/1/accuracy" in found.Tags()["scalars"]
    (text,) = found.Tensors("config/text_summary")
    assert b'name = "fedavg"' in text.tensor_proto.string_val[0]
    (end,) = found.Tensors("summary/text_summary")
    assert f"| {result.average_accuracy} |".encode() in end.tensor_proto.string_val[0]
    assert not (stale / "old").exists()


@pytest.mark.run
def test_mlflow_reads_parameters_metrics_and_the_page(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="of the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = simulate(tmp_path / "a", "mlflow")
    simulate(tmp_path / "b", "mlflow")
    assert mlflow.environment_variables.MLFLOW_DISABLE_TELEMETRY.get()

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fcl-flower")
    runs = client.search_runs([experiment.experiment_id], order_by=["start_time"])
    run = runs[0]

    assert len(runs) == 2
    assert run.info.run_name == "fedavg seed 0"
    assert run.info.status == "FINISHED"
    assert run.data.params["training.optimizer"] == "adam"
    assert len(run.data.params) == len(result.config.flat())
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [
        (line["round"], line["loss"]) for line in result.rounds
    ]
    assert run.data.metrics["final/average_accuracy"] == result.average_accuracy
    page = tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "report.html"
    assert page.read_bytes() == result.report().read_bytes()


def test_a_run_that_failed_is_one_in_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="of the extra mlflow")
    address = f"sqlite:///{tmp_path / 'mine.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    with (
        pytest.raises(fcl.RoundError),
        TRACKERS["mlflow"](RunConfig(), tmp_path / "run"),
    ):
        raise fcl.RoundError("nobody answers")

    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("fcl-flower")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.process
@pytest.mark.run
def test_weights_and_biases_keeps_the_run_on_this_machine(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="of the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = simulate(tmp_path / "run", "wandb")
    assert not wandb.env.error_reporting_enabled()

    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = kept.glob("*.wandb")
    written = file.read_bytes()
    assert wandb.__version__.encode() in written
    for name in (b"client/1/accuracy", b"training.optimizer", b"fedavg seed 0"):
        assert name in written
    assert f"{result.average_accuracy:.10f}"[:10].encode() in written
    assert b"report.html" in written


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_without_its_package_says_what_to_install(
    name, tmp_path, monkeypatch
):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"^run.track: got no package {name}.*'fcl-flower\[{name}\]'$"
    with pytest.raises(fcl.ConfigError, match=message):
        simulate(tmp_path / "run", name)
