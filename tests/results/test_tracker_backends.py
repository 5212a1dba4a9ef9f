"""Each tracker's own files, read by its own package, against the run's."""

import sys

import pytest

import fcl_flower as fcl
from fcl_flower.algorithms.local_training import LocalTraining

SMALL = {"dataset": "digits", "clients": 2, "tasks": 1, "rounds": 2, "progress": False}
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # Of these packages about themselves.
    pytest.mark.filterwarnings("ignore"),
]


def tracked(folder, name):
    return fcl.simulate("fedavg", output=folder, run={"track": name}, **SMALL)


def test_tensorboard_reads_scalars_by_round_and_the_configuration(tmp_path):
    pytest.importorskip("tensorboard", reason="of the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stale = tmp_path / "run" / "tensorboard"
    stale.mkdir(parents=True)
    (stale / "old").write_text("of a run before")
    result = tracked(tmp_path / "run", "tensorboard")
    found = EventAccumulator(str(stale))
    found.Reload()

    losses = [(event.step, event.value) for event in found.Scalars("loss")]
    assert losses == [
        (line["round"], pytest.approx(line["loss"])) for line in result.rounds
    ]
    (last,) = found.Scalars("accuracy")
    assert (last.step, last.value) == (2, pytest.approx(result.average_accuracy))
    assert "client/1/accuracy" in found.Tags()["scalars"]
    (text,) = found.Tensors("config/text_summary")
    assert b'name = "fedavg"' in text.tensor_proto.string_val[0]
    (end,) = found.Tensors("summary/text_summary")
    assert f"| {result.average_accuracy} |".encode() in end.tensor_proto.string_val[0]
    assert not (stale / "old").exists()


def test_mlflow_reads_parameters_metrics_and_the_page(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="of the extra mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = tracked(tmp_path / "a", "mlflow")
    tracked(tmp_path / "b", "mlflow")

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
    monkeypatch.setattr(LocalTraining, "train", lambda *given: 1 / 0)
    with pytest.raises(fcl.RoundError):
        tracked(tmp_path / "run", "mlflow")

    client = mlflow.MlflowClient(address)
    experiment = client.get_experiment_by_name("fcl-flower")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"
    assert not (tmp_path / "mlflow.db").exists()


def test_weights_and_biases_keeps_the_run_on_this_machine(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="of the extra wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    result = tracked(tmp_path / "run", "wandb")

    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    (file,) = kept.glob("*.wandb")
    written = file.read_bytes()
    assert wandb.__version__.encode() in written
    for name in (b"client/1/accuracy", b"training.optimizer", b"fedavg seed 0"):
        assert name in written
    assert f"{result.average_accuracy:.10f}"[:10].encode() in written
    assert b"report.html" in written


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")],
)
def test_a_tracker_without_its_package_says_what_to_install(
    name, package, tmp_path, monkeypatch
):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"^run.track: got no package {package}.*'fcl-flower\[{name}\]'$"
    with pytest.raises(fcl.ConfigError, match=message):
        tracked(tmp_path / "run", name)
