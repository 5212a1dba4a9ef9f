"""Running and comparing from Python."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import summary_of
from torch import nn

import fcl_flower as fcl
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.data.transforms import TRANSFORMS
from fcl_flower.models.registry import MODELS
from fcl_flower.results import measures as metrics
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation import in_process
from strategies.fedavg import FedAvg

SMALL = {"clients": 2, "tasks": 2, "rounds": 1, "classes_per_task": 2, "seed": 3}


def simulate(algorithm="fedavg", **settings):
    return fcl.simulate(algorithm, **{**SMALL, "progress": False, **settings})


def compare(algorithms=("fedavg",), **settings):
    small = {key: value for key, value in SMALL.items() if key != "seed"}
    return fcl.compare(algorithms, **{**small, "progress": False, **settings})


def table_of(classes=4, columns=5, shift=0):
    """Columns of noise, one of which is raised: that of the label and a shift."""
    rng = np.random.default_rng(7)
    y = np.arange(60 * classes) % classes
    x = rng.normal(size=(len(y), columns)).astype(np.float32)
    x[np.arange(len(y)), (y + shift) % classes] += 4
    return x[: 40 * classes], y[: 40 * classes], x[40 * classes :], y[40 * classes :]


# ---- results


@pytest.fixture(scope="module")
def result():
    return simulate(rounds=2)


@pytest.mark.run
def test_a_result_says_what_its_folder_holds(result):
    summary = json.loads((result.folder / "summary.json").read_text())
    assert result.summary == summary
    assert result.accuracy.shape == (2, 2, 2)
    assert np.isnan(result.accuracy[:, 0, 1]).all()
    assert result.average_accuracy == metrics.average_accuracy(result.accuracy)
    assert result.forgetting == metrics.forgetting(result.accuracy)
    assert result.backward_transfer == metrics.backward_transfer(result.accuracy)
    assert [row["round"] for row in result.rounds] == [1, 2, 3, 4]
    for way in ("up", "down"):
        counted = sum(sum(row[f"bytes_{way}"].values()) for row in result.rounds)
        assert getattr(result, f"bytes_{way}") == counted > 0
    assert result.config.scenario.name == "overlapped"
    assert result.config.federation.rounds_per_task == 2
    assert "fedavg, seed 3" in repr(result)
    assert result.report().read_text().startswith("<!")
    shown = result._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!')
    assert "<html" not in shown


@pytest.mark.run
def test_a_table_has_a_row_for_each_accuracy_that_was_measured(result, monkeypatch):
    rows = result.table()

    assert [(r["client"], r["after_task"], r["task"]) for r in rows] == [
        *((0, 0, 0), (0, 1, 0), (0, 1, 1)),
        *((1, 0, 0), (1, 1, 0), (1, 1, 1)),
    ]
    for r in rows:
        assert r["accuracy"] == result.accuracy[r["client"], r["after_task"], r["task"]]
    lines = str(rows).splitlines()
    assert lines[0] == "| client | after_task | task | accuracy |"
    assert lines[2] == f"| 0 | 0 | 0 | {rows[0]['accuracy']:.3f} |"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fcl.ConfigError, match=r"pip install 'fcl-flower.frames"):
        result.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert result.to_pandas() == list(rows)


@pytest.mark.run
def test_without_an_output_the_folder_lives_as_long_as_the_result(tmp_path):
    result = simulate()
    folder = result.folder
    kept = result.save(tmp_path / "kept")
    assert folder.is_dir()

    del result
    gc.collect()

    assert not folder.exists()
    assert kept.folder == tmp_path / "kept"
    assert fcl.Result.load(kept.folder).summary == kept.summary
    with pytest.raises(fcl.ConfigError, match=r"folder: .*does not exist yet"):
        kept.save(tmp_path / "kept")


@pytest.mark.run
def test_an_output_is_kept_and_a_finished_run_not_replaced(tmp_path):
    result = simulate(output=tmp_path / "run")

    assert result.folder == tmp_path / "run"
    with pytest.raises(fcl.ConfigError, match=r"output: .*without a finished run"):
        simulate(output=tmp_path / "run")
    del result
    gc.collect()
    assert fcl.Result.load(str(tmp_path / "run")).config.strategy.name == "fedavg"


def test_a_folder_without_a_run_is_no_result(tmp_path):
    with pytest.raises(fcl.ConfigError, match=r"folder: got .*finished run"):
        fcl.Result.load(tmp_path)


@pytest.mark.run
def test_a_run_that_fails_leaves_its_log(monkeypatch):
    def broken(*_):
        raise ValueError("no gradient today")

    monkeypatch.setattr(LocalTraining, "train", broken)
    with pytest.raises(fcl.RoundError, match="no gradient today") as failed:
        simulate(max_attempts=1)

    (note,) = failed.value.__notes__
    folder = note.rpartition(" ")[2]
    assert "in broken" in (Path(folder) / "flower.log").read_text()
    shutil.rmtree(folder)


# ---- what is run


@pytest.mark.run
def test_a_configuration_is_run_as_it_is_and_with_changes(tmp_path):
    config = fcl.RunConfig.from_settings(**SMALL, strategy="ewc")

    same = fcl.simulate(config, progress=False, output=tmp_path / "same")
    named = simulate("ewc", output=tmp_path / "named")
    strong = simulate("ewc", strategy={"strength": 7.0}, tasks=1)
    other = fcl.simulate(config, progress=False, tasks=1)

    assert summary_of(same.folder) == summary_of(named.folder)
    assert other.accuracy.shape == (2, 1, 1)
    assert other.config.strategy.name == "ewc"
    assert strong.config.strategy.params["strength"] == 7.0


@pytest.mark.run
def test_progress_is_shown_unless_it_is_not_wanted(capsys):
    simulate(progress=True)
    shown = capsys.readouterr().out
    simulate()

    assert "fedavg seed 3: task 0 of 0 to 1" in shown
    assert "finished" in shown
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clinets": 3}, "clinets: .* did you mean 'clients'"),
        ({"rounds": 0}, "rounds_per_task: got 0, expected more than 0"),
        ({"algorithm": "fedavgg"}, "strategy: .* did you mean 'fedavg'"),
        ({"strategy": "ewc"}, "strategy.name: got 'ewc', expected only its param"),
        ({"strategy": {"x": 1}}, "strategy.x"),
        ({"backend": "ray"}, "backend: got 'ray', expected one of flower, in-process"),
        (
            {"workers": 0},
            "workers: got 0, expected a whole number of at least 1, or None",
        ),
        ({"workers": "2"}, "workers: got '2', expected a whole number of at least 1"),
        ({"workers": True}, "workers: got true, expected a whole number of at least 1"),
        ({"workers": 2, "data": table_of()}, "workers: .*1, as data is a Python obj"),
        (
            {"dataset": "digits", "data": table_of()},
            "dataset: .*none, as data is given",
        ),
        ({"model": "lenett"}, "model: .* did you mean 'lenet'"),
        ({"model": lambda: 5}, "no nn.Module"),
        ({"dataset": "stdlib-docs", "model": nn.Flatten()}, "as the data are text"),
        ({"output": Path(__file__) / "x"}, "output: .*a folder that can be written"),
        ({"output": "o\udcff"}, r"output: got 'o.udcff', expected a name in UTF-8"),
        (
            {"output": "x" * 256},
            "output: .*x... of 256 bytes', .* at most 255",
        ),
        ({"output": "\u20ac" * 86}, "output: .* of 258 bytes', expected a name of at"),
        ({"algorithm": None}, "algorithm: got none, expected a name, or an Algorithm"),
        ({"data": "digits"}, "data: got 'str', expected a Dataset, or a list of x_tr"),
        ({"data": np.zeros(4)}, "data: got 'ndarray', expected a Dataset"),
        ({"data": [np.zeros((2, 3))]}, "data: got 'list', expected .* y_test"),
        ({"model": 7}, "model: got 7, expected a name, a mapping, or a body"),
        (
            {"model": nn.Linear(9, 4)},
            r"Linear: got .*\(1, 8, 8\) .*, expected \(2, fea",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "+".join(given),
)
def test_what_cannot_be_run_is_answered_in_one_sentence(settings, message):
    with pytest.raises(fcl.FclError, match=message):
        simulate(**settings)


@pytest.mark.process
@pytest.mark.parametrize(
    "form", ["strategies.py", "strategies/__init__.py", "clients/__init__.py"]
)
def test_a_file_of_the_users_that_hides_the_methods_is_named(tmp_path, form):
    mine = tmp_path / form
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("")
    script = tmp_path / "run.py"
    script.write_text("import fcl_flower\nfcl_flower.simulate('fedavg')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    package = form.partition("/")[0].removesuffix(".py")
    assert f"{package}: got {mine}, expected " in done.stderr.splitlines()[-1]
    assert "rename the other" in done.stderr


def test_a_working_folder_that_was_deleted_is_named(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(fcl.ConfigError, match=r"working folder was deleted, .*cd"):
        simulate()


def test_the_threads_of_the_caller_stay(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        validate(resolve(fcl.RunConfig.from_settings(strategy="fedavg")))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


# ---- objects of one's own


class Body(nn.Module):
    """Features of a table's row."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 16)

    def forward(self, x):
        return torch.relu(self.layer(x))


@pytest.mark.run
def test_arrays_are_learned_and_named_by_their_content():
    one = simulate(data=table_of(), rounds=5, learning_rate=0.02)
    same = simulate(data=fcl.datasets.from_arrays(*table_of()), rounds=5)
    other = simulate(data=table_of(shift=1), rounds=5)

    assert one.average_accuracy > 0.9
    name = one.config.data.datasets
    assert name.startswith("arrays-")
    assert same.config.data.datasets == name != other.config.data.datasets
    with pytest.raises(fcl.ConfigError, match="arrays-"):
        simulate(dataset=name)


def body():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Body()


@pytest.mark.run
@pytest.mark.parametrize(
    "model", [Body, body(), lambda: Body()], ids=["class", "module", "function"]
)
def test_a_module_is_a_body(model):
    result = simulate(data=table_of(), model=model, rounds=10, learning_rate=0.02)

    assert result.average_accuracy > 0.9
    assert result.config.model.name in {"Body", "own"}
    assert result.config.model.name not in MODELS


@pytest.mark.run
@pytest.mark.parametrize(
    ("shape", "channels"), [((8, 8), (1, 8, 8)), ((6, 4, 3), (3, 6, 4))]
)
def test_a_body_of_images_gets_their_channels_first(shape, channels):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(80, *shape), dtype=np.uint8)
    y = np.arange(80) % 4
    seen = set()

    class Looks(nn.Flatten):
        def forward(self, batch):
            seen.add(tuple(batch.shape[1:]))
            return super().forward(batch)

    simulate(data=(x, y, x, y), model=Looks, tasks=1)

    assert seen == {channels}


class Lazy(LocalTraining):
    """Learns nothing."""

    def fit(self, *arguments, **named):
        raise AssertionError("not used")

    def train(self, turn):
        update = fcl.Update(turn.received, len(turn.data.train.y))
        return turn.state, update


@pytest.mark.run
def test_an_algorithm_of_ones_own_is_found_for_this_run_alone():
    own = fcl.Algorithm(name="lazy", server=FedAvg, client=Lazy)

    result = simulate(own)

    assert result.config.strategy.name == "lazy"
    assert "lazy" not in algorithms()
    with pytest.raises(fcl.ConfigError, match="strategy: got 'lazy'"):
        simulate("lazy")


def test_an_algorithm_of_ones_own_has_a_name_of_its_own():
    with pytest.raises(fcl.ConfigError, match="strategy: got 'ewc', expected a name"):
        simulate(fcl.Algorithm(name="ewc", server=FedAvg, client=Lazy))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("data", {"data": table_of()}),
        ("model", {"model": Body}),
        ("augment", {"augment": torch.flip}),
        (
            "algorithm",
            {"algorithm": fcl.Algorithm(name="a", server=FedAvg, client=LocalTraining)},
        ),
    ],
)
def test_objects_need_this_process(key, settings):
    with pytest.raises(fcl.ConfigError, match=f"expected in-process, as {key} is"):
        simulate(backend="flower", **settings)


# ---- augmentation


def darker(images, generator):
    return images * torch.rand(len(images), 1, 1, 1, generator=generator)


@pytest.mark.run
def test_training_samples_are_augmented_by_name_or_by_a_callable(tmp_path):
    plain = simulate()
    named = simulate(augment="flip,crop")
    own = simulate(augment=darker, output=tmp_path / "own")
    losses = {one.rounds[0]["loss"] for one in (plain, named, own)}
    assert len(losses) == 3
    assert named.config.training.augment == "flip,crop"
    assert own.config.training.augment == "darker"
    assert "darker" not in TRANSFORMS


@pytest.mark.run
def test_a_run_that_goes_on_is_given_its_callable_again(tmp_path):
    simulate(augment=darker, output=tmp_path, run={"keep_clients": True})

    def longer(**given):
        fcl.simulate(resume=tmp_path, tasks=3, progress=False, **given)

    with pytest.raises(fcl.ConfigError, match="augment: got 'darker'"):
        longer()
    with pytest.raises(fcl.ConfigError, match="augment: got 'flip', expected none bes"):
        longer(augment="flip")
    # Then it is known, and all that is wrong is the longer plan.
    with pytest.raises(fcl.ConfigError, match="tasks: got 3, expected 2 as planned"):
        longer(augment=darker)


def test_what_is_neither_names_nor_callable_is_refused():
    with pytest.raises(fcl.ConfigError, match="augment: got 3, expected names sep"):
        simulate(augment=3)


# ---- comparisons


@pytest.mark.run
def test_a_comparison_has_every_algorithm_with_every_seed_and_keeps_them(
    tmp_path, monkeypatch
):
    found = compare(["fedavg", "ewc"], seeds=[1, 2], output=tmp_path)

    rows = [(r.config.title, r.config.run.seed) for r in found.results]
    titles = ["fedavg", "local", "ewc", "ewc local-only"]
    assert rows == [(title, seed) for seed in (1, 2) for title in titles]
    assert [row["label"] for row in found.table()] == titles
    assert "| fedavg | 1, 2 |" in str(found.table())
    mean = np.mean([found.results[i].average_accuracy for i in (0, 4)])
    assert found.table()[0]["average_accuracy"]["mean"] == pytest.approx(mean)
    assert found.report() == tmp_path / "comparison.html"
    assert "&lt;html" in found._repr_html_()
    assert repr(found) == ("<Comparison of fedavg, local, ewc, ewc local-only: 8 runs>")
    monkeypatch.setattr(in_process, "run_in_process", None)
    again = compare(["fedavg", "ewc"], seeds=[1, 2], output=tmp_path)
    assert [r.summary for r in again.results] == [r.summary for r in found.results]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert [(row["label"], row["seed"]) for row in found.to_pandas()] == rows


@pytest.mark.run
def test_a_comparison_without_an_output_lives_as_long_as_a_result_of_it():
    found = compare(seeds=[1])
    folder, result = found.folder, found.results[0]
    del found
    gc.collect()
    assert result.rounds
    del result
    gc.collect()
    assert not folder.exists()


@pytest.mark.run
def test_objects_of_ones_own_are_compared():
    own = fcl.Algorithm(name="lazy", server=FedAvg, client=Lazy, counterpart="local")

    found = compare(["fedavg", own], data=table_of(), model=Body, rounds=5)

    fedavg, _, lazy = (result.average_accuracy for result in found.results)
    assert fedavg > lazy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithms": ()}, "algorithms: .*one or more"),
        ({"algorithms": "fedavg"}, "algorithms: got 'fedavg'"),
        ({"seeds": []}, "seeds: .*one or more"),
        ({"seeds": 3}, "seeds: got 3, expected a list of one or more"),
        ({"seed": 1}, "seed: got 1, expected none, as there are seeds"),
        ({"strategy": {"lambda9": 1}}, "strategy.lambda9"),
    ],
)
def test_what_cannot_be_compared_is_answered_in_one_sentence(settings, message):
    with pytest.raises(fcl.ConfigError, match=message):
        compare(**settings)
