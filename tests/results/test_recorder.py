"""What is recorded of adapters and remarks, on a scenario worked out by hand."""

import json
import platform
import re
import tomllib
from datetime import UTC, datetime
from types import SimpleNamespace

import flwr
import numpy as np
import pytest
import torch
from fakes import rounds_of, summary_of

import fcl_flower
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ContractError, WireError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.scenarios.registry import Scenario, Task
from fcl_flower.results import recorder as recorder_module
from fcl_flower.results.diagnostics import build_diagnostics
from fcl_flower.results.monitoring import progress_file
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.traffic import Traffic

NONE = np.array([], np.int64)


def task(name, group, *class_names):
    labels = tuple(range(len(class_names)))
    return Task(name, "zoo", labels, class_names, NONE, NONE, NONE, group)


PLAN = Scenario(
    "overlapped",
    0,
    ("zoo",),
    4,
    (
        (
            task("fish", 0, "eel", "cod", "ray", "tuna"),
            task("a", 1, "b", "c", "d", "e"),
        ),
        (task("wet", 2, "cod", "ray", "b", "newt"), task("dry", 3, "ape", "fox")),
        (task("fish", 0, "eel", "cod", "ray", "tuna"), task("more", 4, "cod", "e")),
    ),
)


def made(folder, **remarks):
    config = RunConfig.from_settings(clients=3, tasks=2, rounds=5)
    recorder = Recorder(
        folder, config, PLAN, build_diagnostics(PLAN, config.privacy, None), remarks
    )
    recorder.begin()
    return recorder


@pytest.fixture
def recorder(tmp_path):
    return made(tmp_path)


def found(folder, name):
    return json.loads((folder / name).read_text())


def test_what_the_server_says_of_a_round_is_kept_in_its_line(recorder, tmp_path):
    recorder.record_round(1, 0, {}, {}, Traffic())
    recorder.record_round(2, 0, {}, {}, Traffic(), diagnostics={"spread": 0.5})
    recorder.record_round(3, 0, {}, {}, Traffic())

    lines = rounds_of(tmp_path)

    assert [line.get("diagnostics") for line in lines] == [None, {"spread": 0.5}, None]


def test_overlaps_are_listed_with_what_was_chosen_and_which_classes_are_shared(
    recorder, tmp_path
):
    diagnostics = {
        "spread": 0.5,
        "overlap/1/1/2/0/layer": 0.9,
        "overlap/1/1/2/0": 0.25,
        "overlap/1/1/0/0": -0.5,
        "overlap/0/1/2/0": 0.1,
        "overlap/0/1/1/0": 0.83,
        "overlap/0/1/1/0/layer": 0.9,
    }
    # Client 1 uses what client 0 has as a candidate, too: it is not client 0's choice.
    replies = {0: {"loss": 1.0, "attention/1/0": 0.0}, 1: {"attention/2/0": 0.4}}
    recorder.record_round(2, 1, replies, {}, Traffic(), diagnostics)
    recorder.record_round(3, 1, {1: {"attention/2/0": 0.3}}, {}, Traffic())
    recorder.finish()

    wet = {"client": 1, "task": 0, "task_name": "wet"}
    fish = {"client": 2, "task": 0, "task_name": "fish"}
    assert found(tmp_path, "overlap.json") == [
        {
            "client": 0,
            "task": 1,
            "task_name": "a",
            "candidates": [
                # "b" of the four classes b, c, d and e
                {**wet, "overlap": 0.83, "chosen": True, "same_classes": 0.25},
                {**fish, "overlap": 0.1, "chosen": False, "same_classes": 0.0},
            ],
        },
        {
            "client": 1,
            "task": 1,
            "task_name": "dry",
            "candidates": [
                {
                    **{"client": 0, "task": 0, "task_name": "fish"},
                    **{"overlap": -0.5, "chosen": False, "same_classes": 0.0},
                },
                {**fish, "overlap": 0.25, "chosen": True, "same_classes": 0.0},
            ],
        },
    ]


def test_clients_may_stand_at_different_tasks(recorder, tmp_path):
    replies = {c: {"attention/2/0": 0.1 * c, "adapter_density": 0.5} for c in (0, 1)}
    for number, told in enumerate([replies, {1: {"adapter_density": 0.0}}], start=1):
        stages = {
            c: TaskStage(number, c, starts_task=True, ends_task=True) for c in told
        }
        recorder.record_round(number, 0, told, {}, Traffic(), stages=stages)
    remarks = recorder.finish()["remarks"]
    told = [(e["client"], e["task"]) for e in found(tmp_path, "attention.json")]
    assert told == [(0, 0), (1, 1)]
    # The second visit to a task takes the place of the first.
    assert remarks["adapters"].startswith("25 % ")
    assert remarks["adapters"].endswith("1 of 2 adapters are empty")


def test_shared_classes_are_a_fraction_of_the_new_tasks_classes(recorder, tmp_path):
    recorder.record_round(2, 1, {}, {}, Traffic(), {"overlap/2/1/0/0": 0.5})
    recorder.finish()

    (entry,) = found(tmp_path, "overlap.json")

    # "cod" is one of two new classes, and one of four old ones.
    assert entry["candidates"][0]["same_classes"] == 0.5


def test_the_last_weights_and_their_groups_are_listed(recorder, tmp_path):
    weights = {"loss": 1.0, "attention/2/0": 0.4, "attention/1/0": 0.1}
    recorder.record_round(1, 0, {0: weights}, {}, Traffic())
    recorder.record_round(2, 0, {0: weights | {"attention/1/0": 0.2}}, {}, Traffic())
    recorder.finish()

    assert found(tmp_path, "attention.json") == [
        {
            "client": 0,
            "task": 0,
            "task_name": "fish",
            "foreign": [
                {
                    **{"client": 1, "task": 0, "task_name": "wet"},
                    **{"weight": 0.2, "same_group": False},
                },
                {
                    **{"client": 2, "task": 0, "task_name": "fish"},
                    **{"weight": 0.4, "same_group": True},
                },
            ],
        }
    ]


def test_without_foreign_adapters_no_file_speaks_of_them(recorder, tmp_path):
    recorder.record_round(1, 0, {0: {"loss": 1.0}}, {}, Traffic(), {"spread": 0.5})
    recorder.finish()

    assert not (tmp_path / "attention.json").exists()
    assert not (tmp_path / "overlap.json").exists()


def test_remarks_are_kept_in_the_summary(tmp_path):
    made(tmp_path, vectors="trained here on 11,314 texts").finish()

    assert summary_of(tmp_path)["remarks"] == {
        "vectors": "trained here on 11,314 texts"
    }


def test_how_sparse_the_adapters_are_is_a_remark(recorder, tmp_path):
    recorder.record_round(1, 0, {0: {"loss": 1.0}}, {}, Traffic())
    kept = {0: {"adapter_density": 0.0}, 1: {"adapter_density": 0.06}}
    recorder.record_round(2, 0, kept, {}, Traffic())
    recorder.finish()
    assert summary_of(tmp_path)["remarks"] == {
        "adapters": "3 % of the entries are kept when a task ends; 1 of 2 adapters "
        "are empty"
    }


@pytest.mark.parametrize("density", [-0.1, 1.5, float("nan")])
def test_a_density_that_is_no_fraction_is_refused(recorder, density):
    recorder.check_metrics({"adapter_density": 1.0})
    with pytest.raises(WireError, match=r"adapter_density: got .*, expected a value"):
        recorder.check_metrics({"adapter_density": density})


@pytest.mark.parametrize("name", ["overlap/3/1/0/0", "overlap/0/1/2/2"])
def test_an_overlap_of_a_task_that_does_not_exist_is_the_servers_fault(recorder, name):
    recorder.record_round(1, 1, {}, {}, Traffic(), {"overlap/0/1/2/1": 0.5})
    with pytest.raises(ContractError, match=name):
        recorder.record_round(2, 1, {}, {}, Traffic(), {name: 0.5})


class Counting:
    """Diagnostics of an algorithm that this project does not know."""

    def __init__(self):
        self.rounds = []

    def check(self, client_metrics):
        if client_metrics.get("count", 0) < 0:
            raise WireError("count: got less than 0, expected at least 0")

    def add_round(self, server_round, client_metrics, server_metrics):
        self.rounds.append((server_round, client_metrics, server_metrics))

    def files(self):
        return {"counts.json": [number for number, *_ in self.rounds]}

    def summary(self):
        return {"rounds_counted": len(self.rounds)}

    def remarks(self):
        return {"counting": "from 1"}


def test_the_recorder_serves_any_diagnostics_alike(tmp_path):
    counting = Counting()
    config = RunConfig.from_settings(clients=3, tasks=2, rounds=5)
    recorder = Recorder(tmp_path, config, PLAN, [counting], {"word vectors": "none"})
    recorder.begin()
    with pytest.raises(WireError, match="count"):
        recorder.check_metrics({"count": -1.0})
    told = {2: {"count": 4.0}}
    recorder.record_round(1, 0, told, {}, Traffic(), {"share": 0.5})
    recorder.record_round(2, 1, {}, {}, Traffic())
    summary = recorder.finish()

    assert counting.rounds == [
        (1, {(2, 0): {"count": 4.0}}, {"share": 0.5}),
        (2, {}, {}),
    ]
    assert found(tmp_path, "counts.json") == [1, 2]
    assert summary["rounds_counted"] == 2
    assert summary["remarks"] == {"word vectors": "none", "counting": "from 1"}


def test_the_environment_is_apart_from_what_the_seed_decides(recorder, tmp_path):
    before = datetime.now(UTC).replace(microsecond=0)
    environment = recorder.finish()["environment"]

    assert before <= datetime.fromisoformat(environment["date"]) <= datetime.now(UTC)
    # The builds on PyPI name CUDA in the module's version, but not in the package's.
    found = environment["versions"]
    installed, told = (v.partition("+")[0] for v in (torch.__version__, found["torch"]))
    assert installed == told
    assert found == {
        "fcl-flower": fcl_flower.__version__,
        "flwr": flwr.__version__,
        "torch": found["torch"],
        "python": platform.python_version(),
    }
    assert "environment" not in summary_of(tmp_path)


def test_the_configuration_says_on_what_it_was_run_and_is_still_one(recorder, tmp_path):
    ran = recorder.finish()["environment"]
    first, *rest = (tmp_path / "config.toml").read_text().splitlines()

    assert re.fullmatch(r"# Run: \d{4}-\d\d-\d\dT[\d:+]+, fcl-flower .*", first)
    for value in (*ran["versions"].values(), ran["machine"]):
        assert value in first
    assert RunConfig.of(tomllib.loads("\n".join([first, *rest]))).run.seed == 0
    assert not any(line.startswith("#") for line in rest)


def test_progress_is_not_written_for_every_client_of_a_large_round(
    recorder, tmp_path, monkeypatch
):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    for module in (recorder_module, progress_file):
        monkeypatch.setattr(module, "time", clock)

    def told(done, seconds):
        now[0] += seconds
        recorder.progress(1, done, 1000)
        return json.loads((tmp_path / "progress.json").read_text())["clients_done"]

    assert told(0, 0.0) == 0, "the beginning at once"
    assert [told(1, 0.1), told(2, 0.09), told(3, 0.02)] == [0, 0, 3]
    assert [told(4, 0.1), told(1000, 0.0)] == [3, 1000], "the end at once"
    assert told(0, 0.0) == 0


def test_until_there_is_a_summary_a_file_says_what_has_begun(recorder, tmp_path):
    begun = found(tmp_path, "begun.json")
    recorder.record_round(1, 0, {}, {}, Traffic())
    recorder.finish()
    finished = found(tmp_path, "summary.json")

    assert not (tmp_path / "begun.json").exists()
    assert begun["average_accuracy"] is None
    assert begun["client_accuracy"] == begun["accuracy_matrix"] == []
    assert begun["seconds"] == begun["bytes_up"] == 0
    for key in ("label", "params", "training", "clients", "total_rounds", "command"):
        assert begun[key] == finished[key]
    assert begun["environment"].keys() == finished["environment"].keys()
    assert begun["counterpart"] is finished["counterpart"] is None


def test_progress_names_who_works_and_what_is_left(tmp_path, monkeypatch):
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(recorder_module, "time", clock)
    recorder, told = made(tmp_path), {}
    for number in range(1, 11):
        # Ten rounds of 20 s; after each of two tasks a test of 2 s on each so far, of
        # which half may have been loading.
        now[0] += 20 + {5: 2, 10: 4}.get(number, 0)
        recorder.record_round(number, (number - 1) // 5, {}, {}, Traffic())
        now[0] += 1
        recorder.progress(number + 1, 0, 3, working={2, 0})
        now[0] -= 1
        told[number] = found(tmp_path, "progress.json")

    assert told[1]["left"] == pytest.approx(9 * 20 - 1)
    assert told[5]["left"] == pytest.approx(5 * 20 + 2 - 1)
    assert told[10]["left"] == 0
    assert told[10]["working"] == [0, 2]


def test_what_is_left_of_an_asynchronous_run_is_counted_in_updates(
    tmp_path, monkeypatch
):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(recorder_module, "time", clock)
    config = RunConfig.from_settings(clients=3, tasks=2, rounds=5, asynchronous=True)
    recorder = Recorder(tmp_path, config, PLAN, [])
    recorder.begin()
    for number in (1, 2):
        now[0] += 3
        recorder.record_round(number, 0, {}, {}, Traffic())
    recorder.progress(2, 0, 0)

    assert found(tmp_path, "progress.json")["left"] == pytest.approx(28 * 3)
