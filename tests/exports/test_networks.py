"""Exported networks against the run's record and the learner, opened without us."""

import hashlib
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

import fcl_flower as fcl
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.exports.files import WRITERS
from fcl_flower.exports.manifest import manifest
from fcl_flower.exports.networks import exported

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]
SMALL = {
    "dataset": "digits",
    "clients": 2,
    "tasks": 2,
    "rounds": 1,
    "progress": False,
    "max_train_per_class": 30,
}

KEPT = {"keep_clients": True}
GROWING = {
    "model": {"growing_head": True},
    "scenario": "class-incremental",
    "classes_per_task": 2,
}
NARROW = {"name": "lenet", "width": 0.2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of a run by strategy, made when first asked for."""
    known = {}

    def of(name, title="", **settings):
        if (name, title) not in known:
            place = known[name, title] = tmp_path_factory.mktemp(name) / "run"
            given = {"run": KEPT} | SMALL | settings
            fcl.simulate(name, output=place, **given)
        return known[name, title]

    return of


@pytest.fixture
def fedavg(runs):
    return runs("fedavg")


def trained(folder, client, task):
    return exported(fcl.load(folder, client=client), task)


def write(found, form, path):
    about = manifest(found)
    WRITERS[form](found, about, path)
    return about


def opened(form, path):
    """Return a whole graph as a function, opened without this project."""
    if form == "pt2":
        return torch.export.load(path).module()
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return lambda raw: session.run(["logits"], {"input": raw.numpy()})[0]


def needs(form):
    for package in ("onnx", "onnxscript", "onnxruntime") if form == "onnx" else ():
        pytest.importorskip(package, reason="of the extra onnx")


def recorded(folder):
    return json.loads((folder / "summary.json").read_text())["client_accuracy"]


@pytest.mark.parametrize("name", ["fedavg", "fedweit", "local", "stl", "finetune"])
def test_it_predicts_what_the_record_says_of_each_client_and_task(name, runs):
    folder = runs(name, **(GROWING if name == "finetune" else {}))

    for client in range(2):
        for task in range(2):
            found = trained(folder, client, task)
            wanted = recorded(folder)[client][1][task]
            assert found.accuracy == pytest.approx(wanted, abs=1e-12)
            assert found.tested > 5
            own = found.whole(found.raw)
            shown = found.logits[: len(found.raw)][:, list(found.rows)]
            torch.testing.assert_close(own, shown, rtol=1e-4, atol=1e-4)


def test_the_state_is_opened_by_torch_with_weights_only(fedavg, tmp_path):
    found = trained(fedavg, 1, 0)
    write(found, "pt", tmp_path / "net.pt")

    state = torch.load(tmp_path / "net.pt", weights_only=True)

    body = {n.removeprefix("body."): t for n, t in state.items() if n[:4] == "body"}
    head = nn.Linear(*reversed(state["head.weight"].shape))
    head.load_state_dict({"weight": state["head.weight"], "bias": state["head.bias"]})
    hidden = torch.func.functional_call(found.network.body, body, found.inputs)
    assert state.keys() == found.network.state_dict().keys()
    assert torch.equal(head(hidden), found.logits)


def test_safetensors_hold_the_same_and_say_what_it_is(fedavg, tmp_path):
    safetensors = pytest.importorskip("safetensors", reason="of the extra onnx")
    found = trained(fedavg, 1, 0)
    write(found, "safetensors", tmp_path / "net.safetensors")

    with safetensors.safe_open(tmp_path / "net.safetensors", "pt") as file:
        about = json.loads(file.metadata()["manifest.json"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    state = found.network.state_dict()
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    plan = json.loads((fedavg / "scenario.json").read_text())["clients"][1][0]
    assert about["classes"] == [*map(str, plan["class_names"])]
    assert about["input"]["shape"] == ["N", 8, 8, 1]
    assert about["input"]["dtype"] == "uint8"
    assert (about["run"]["strategy"], about["run"]["client"]) == ("fedavg", 1)
    assert (about["run"]["seed"], about["task"]["number"]) == (0, 0)
    wanted = recorded(fedavg)[1][1][0]
    assert about["accuracy"]["value"] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_a_graph_predicts_the_same_for_any_number_of_samples(
    form, fedavg, tmp_path, monkeypatch
):
    needs(form)
    found = trained(fedavg, 1, 1)
    logger, messages = logging.getLogger("torch.onnx"), []
    source = logger.getChild("_internal.exporter._registration")
    monkeypatch.setattr(source, "handle", messages.append)
    level, path = logger.level, tmp_path / f"net.{form}"
    about = write(found, form, path)
    assert messages == [], "no run needs torchvision"
    assert logger.level == level

    graph = opened(form, path)

    for count in (len(found.raw), 1):
        wanted = found.logits[:count, list(found.rows)].numpy()
        logits = graph(found.raw[:count])
        np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
    assert [*tmp_path.iterdir()] == [path]
    if form == "pt2":
        extra = {"manifest.json": ""}
        torch.export.load(path, extra_files=extra)
        assert json.loads(extra["manifest.json"]) == json.loads(json.dumps(about))


def test_a_folder_for_the_hub_has_a_card_and_the_checksum_of_each_file(
    fedavg, tmp_path
):
    for package in ("onnx", "onnxscript", "onnxruntime", "safetensors"):
        pytest.importorskip(package, reason="of the extra onnx")
    about = write(trained(fedavg, 1, 0), "hub", tmp_path / "hub")

    listed = json.loads((tmp_path / "hub" / "manifest.json").read_text())["files"]
    assert listed.keys() == {"README.md", "model.onnx", "model.safetensors"}
    for name, known in listed.items():
        content = (tmp_path / "hub" / name).read_bytes()
        assert known["sha256"] == hashlib.sha256(content).hexdigest()
        assert known["bytes"] == len(content)
    card = (tmp_path / "hub" / "README.md").read_text()
    assert f"| classes | {', '.join(about['classes'])} |" in card
    assert f"| accuracy value | {about['accuracy']['value']} |" in card
    assert "| privacy | no differential privacy |" in card


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("form", ["pt2", "onnx"])
def test_pixels_are_standardized_inside_by_the_numbers_of_the_run(form, runs, tmp_path):
    needs(form)
    known = {"normalise": "0.1,0.2,0.3/0.5,0.6,0.7", "model": NARROW}
    found = trained(runs("fedavg", "by channel", **known), 0, 0)
    about = write(found, form, tmp_path / f"net.{form}")

    logits = opened(form, tmp_path / f"net.{form}")(found.raw)
    shown = (found.raw / 255 - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor(
        [0.5, 0.6, 0.7]
    )
    wanted = found.network(shown.permute(0, 3, 1, 2))[:, list(found.rows)]
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
    assert about["input"]["mean"] == [0.1, 0.2, 0.3]
    assert about["input"]["deviation"] == [0.5, 0.6, 0.7]
    said = "less [0.1, 0.2, 0.3], divided by [0.5, 0.6, 0.7]"
    assert said in about["input"]["inside"]


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits * (1 + 2e-3),
        lambda logits: logits[:, :1],
        lambda logits: logits[:, [0, 1, 0]],
        None,
    ],
    ids=["other digits", "fewer classes", "more classes", "no network"],
)
def test_what_a_network_alone_does_not_predict_is_refused(change, fedavg, monkeypatch):
    whole = LocalTraining.predict

    def predict(*given):
        nothing = torch.ones(len(given[-1]), 2)
        return nothing if change is None else change(whole(*given))

    monkeypatch.setattr(LocalTraining, "predict", predict)
    message = r"^strategy: got 'fedavg', expected one whose learner makes a module"
    with pytest.raises(fcl.ConfigError, match=message):
        trained(fedavg, 0, 0)


def test_a_processor_may_round_a_last_bit_otherwise(fedavg, monkeypatch):
    whole = LocalTraining.predict
    monkeypatch.setattr(
        LocalTraining, "predict", lambda *given: whole(*given) * (1 + 2e-7)
    )
    trained(fedavg, 0, 0)


def test_a_client_or_task_or_run_that_is_not_there_is_refused(fedavg, tmp_path):
    for client, task, message in (
        (2, 0, "^client: got 2, expected 0 to 1$"),
        (-1, 0, "^client: got -1, expected 0 to 1$"),
        (0, 2, "^task: got 2, expected 0 to 1, the tasks that it knows$"),
    ):
        with pytest.raises(fcl.ConfigError, match=message):
            trained(fedavg, client, task)
    with pytest.raises(fcl.ConfigError, match=r"^folder: got "):
        trained(tmp_path, 0, 0)


def test_a_run_without_its_clients_states_is_refused(tmp_path):
    given = SMALL | {"run": {"keep_clients": False}}
    fcl.simulate("fedavg", output=tmp_path / "run", **given)

    with pytest.raises(fcl.ConfigError, match=r"^run.keep_clients: got 'false'"):
        trained(tmp_path / "run", 0, 0)
    assert not (tmp_path / "run" / ".flower").exists()
