"""Each benchmark at its smallest size: its rows are there, and the work was the same.

How long anything takes is never asserted. Those that start many processes run on
request: ``FCL_BENCHMARKS=1 pytest tests/project/test_benchmarks.py``.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from fcl_flower.data.registry import load_dataset

BENCHMARKS = Path(__file__).parents[2] / "experiments" / "benchmarks"
COST = {"cpu", "wall", "memory", "load"}
on_request = pytest.mark.skipif(
    "FCL_BENCHMARKS" not in os.environ, reason="of minutes: set FCL_BENCHMARKS=1"
)


@pytest.fixture(autouse=True)
def modules(monkeypatch):
    """Let the benchmarks' modules be imported, and be gone afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield
    for name in set(sys.modules) - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def results(tmp_path):
    return importlib.import_module("results").Results(tmp_path / "rows.jsonl")


def cells(text):
    """Return the cells of a table in Markdown, without its head, by first cell."""
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    split = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {row[0]: row[1:] for row in split}


# ---------------------------------------------------------------- measuring


@pytest.mark.process
def test_every_process_counts_also_one_that_has_left_its_parent(tmp_path):
    measurement = importlib.import_module("measurement")
    done = tmp_path / "done"
    orphan = (
        "import os, pathlib, time\n"
        "if os.fork():\n time.sleep(1)\n os._exit(0)\n"
        "held = b'x' * 60_000_000\n"
        "while time.process_time() < 1: pass\n"
        f"pathlib.Path({str(done)!r}).touch()\n"
        "time.sleep(1)\n"
    )
    parent = (
        "import pathlib, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {orphan!r}])\n"
        f"while not pathlib.Path({str(done)!r}).exists(): time.sleep(0.1)\n"
        "time.sleep(0.5)\n"
    )
    command = [sys.executable, "-c", parent]
    env = measurement.environment(tmp_path)

    cost = measurement.measured(command, env, tmp_path / "log")

    assert cost.cpu > 0.9
    assert cost.memory > 60_000_000
    assert cost.wall > 1.5


@pytest.mark.process
def test_a_command_that_fails_is_no_measurement(tmp_path):
    measurement = importlib.import_module("measurement")
    command = [sys.executable, "-c", "raise SystemExit(3)"]

    with pytest.raises(RuntimeError, match="code 3"):
        measurement.measured(command, {}, tmp_path / "log")


def test_what_was_measured_is_not_measured_again(results):
    again = type(results)(results.file)
    results.once({"part": "x", "side": "one"}, lambda: {"cpu": 1.0})
    again = type(results)(results.file)

    again.once({"part": "x", "side": "one"}, lambda: pytest.fail("measured again"))
    again.once({"part": "x", "side": "two"}, lambda: {"cpu": 2.0})

    lines = [json.loads(line) for line in results.file.read_text().splitlines()]
    assert [line["cpu"] for line in lines] == [1.0, 2.0]
    assert again.of(side="two") == [lines[1]]


def test_a_ratio_is_that_of_a_pair():
    module = importlib.import_module("results")

    assert module.ratios([1.0, 6.0, 4.0], [1.0, 2.0, 1.0]) == "3.00 (1.00 to 4.00)"


# ---------------------------------------------------------------- (a)


def visits(results, sides, pfl_python="", rounds=(1, 2)):
    """Measure some sides at the smallest size; return it."""
    module = importlib.import_module("client_visits")
    size = module.Size(users=4, images=10, cohort=2, rounds=rounds)
    chosen = {name: module.EVERY[name] for name in sides}
    module.measure(results, size, 1, pfl_python, chosen)
    return module, size


def check_visits(results, side, lengths=(1, 2)):
    """Check that a side did the work that is asked of every side."""
    for row, rounds in zip(results.of(side=side), lengths, strict=True):
        assert row.keys() >= COST
        assert (row["rounds"], row["visits"]) == (rounds, 2 * rounds)
        assert (row["samples"], row["steps"]) == (20 * rounds, 2 * rounds)
        assert 1.5 < row["loss"] < 4


@pytest.mark.soak
@pytest.mark.process
def test_visits_in_one_process_do_the_same_work(results):
    module, size = visits(results, ["bare loop", "ours, in process"])
    found = cells(module.report(results, size))

    check_visits(results, "bare loop")
    check_visits(results, "ours, in process")
    assert found.keys() == module.EVERY.keys()
    assert found["bare loop"][1] == "1.00 (1.00 to 1.00)"
    assert found["pfl"][0] == "not run: pfl is not installed"
    assert found["ours, in Flower's runtime"][0] == "not run"


@pytest.mark.process
@pytest.mark.skipif(not find_spec("pfl"), reason="pfl is not installed")
def test_pfl_does_the_same_work(results):
    visits(results, ["pfl"], sys.executable, rounds=(2,))

    check_visits(results, "pfl", lengths=(2,))


@on_request
@pytest.mark.process
@pytest.mark.parametrize(
    "side", ["ours, in Flower's runtime", "Flower's FedAvg, in its runtime"]
)
def test_visits_in_flowers_runtime_do_the_same_work(results, side):
    visits(results, [side], rounds=(2,))

    check_visits(results, side, lengths=(2,))


@pytest.mark.soak
@pytest.mark.process
def test_a_side_that_does_other_work_is_refused(results):
    module = importlib.import_module("client_visits")
    size = module.Size(users=4, images=10, cohort=2, rounds=(1, 2))
    lazy = module.Side(module.script("bare.py"), lambda output: {"visits": 1})

    with pytest.raises(RuntimeError, match="expected"):
        module.measure(results, size, 1, "", {"lazy": lazy})

    assert not results.rows


def test_a_visit_costs_what_a_longer_run_costs_more(results):
    module = importlib.import_module("client_visits")
    size = module.Size(users=4, images=10, cohort=2, rounds=(1, 3))
    key = {"part": "a", "users": 4, "images": 10, "cohort": 2}
    same = {"memory": 5 * 10**9, "pictures": "noise", "repeat": 0}
    for side, cpus in (("bare loop", (11.0, 15.0)), ("pfl", (22.0, 34.0))):
        for rounds, cpu in zip((1, 3), cpus, strict=True):
            row = {**key, **same, "side": side, "rounds": rounds, "visits": 2 * rounds}
            results.once(row, lambda cpu=cpu: {"cpu": cpu, "wall": 2 * cpu})

    found = cells(module.report(results, size))

    assert found["bare loop"][0].startswith("1 (")
    assert found["bare loop"][3].startswith("9 (")
    assert [cell.split(" (")[0] for cell in found["pfl"]] == [
        *("3", "3.00", "6", "16", "5.00 GB")
    ]


@pytest.mark.parametrize("digits", [False, True])
def test_each_user_has_every_class_alike(tmp_path, monkeypatch, digits):
    monkeypatch.setenv("FCL_DATA", str(tmp_path))  # where there are no pictures
    users = importlib.import_module("users")
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS / "sides"), *sys.path])
    user_samples = importlib.import_module("user_samples")

    what = users.write_users(tmp_path, 3, 20, digits=digits)

    with np.load(tmp_path / "users.npz") as file:
        x, y = file["x_train"], file["y_train"]
    assert what == ("digits" if digits else "noise")
    assert x.shape == (60, 8, 8) if digits else (60, 32, 32, 3)
    assert np.bincount(y).tolist() == [6] * 10
    if digits:
        train = load_dataset("digits", tmp_path).train
        threes = {train.x[row].tobytes() for row in np.flatnonzero(train.y == 3)}
        assert all(picture.tobytes() in threes for picture in x[y == 3])
    else:
        samples = user_samples.user_samples(tmp_path / "users.npz", 3, 20)
        pictures, labels = samples[1]
        assert pictures.shape == (20, 3, 32, 32)
        assert labels.tolist() == y[20:40].tolist()
        np.testing.assert_allclose(pictures[0, :, 1, 2], x[20, 1, 2] / 255, rtol=1e-6)


# ---------------------------------------------------------------- (b)


def test_steps_of_every_side_train_on_the_same_images(results, one_thread):
    module = importlib.import_module("fedweit_step")
    size = module.Size(tasks=2, batch=2, steps=2, turns=1, width=0.1)

    module.measure(results, size, 1, "")

    found = cells(module.report(results, size))
    assert list(found) == [
        "plain Adam",
        "FedWeIT, ours, task 1",
        "FedWeIT, ours, task 2",
        "FedWeIT, as in FedKNOW, task 1",
        "FedWeIT, as in FedKNOW, task 2",
    ]
    assert {(row["steps"], row["samples"]) for row in results.rows} == {(2, 4)}
    assert all(math.isfinite(row["loss"]) for row in results.rows)
    assert len({row["loss"] for row in results.rows}) == 5, "each is another side"


def test_the_ports_first_step_is_equation_1_and_its_penalty(one_thread, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS / "sides"), *sys.path])
    fedknow = importlib.import_module("fedknow_step")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, bias=False))
    port = fedknow.FedKnowStep(model, task=1, clients=2, density=0.5, rate=0.1)
    (name,) = port.sw
    sw, mask, aw, atten = (
        group[name].detach().double()
        for group in (port.sw, port.mask, port.aw, port.atten)
    )
    gates = 1 / (1 + torch.exp(-mask))
    kb = port.kb[name].double()
    theta = sw * gates[:, None] + aw + kb[..., 0] * atten[0] + kb[..., 1] * atten[1]
    x = torch.randn(5, 3)

    torch.testing.assert_close(port.logits(x).double(), x.double() @ theta.T)
    own = 1e-4 / 2 * (aw.square().sum() + mask.square().sum()) + 1e-3 * aw.abs().sum()
    torch.testing.assert_close(port.penalty().double(), own)
    with torch.no_grad():
        port.sw[name] += 0.1
    old_gates = torch.sigmoid(port.old[0][name][0].double())
    moved = 100 / 2 * 3 * (0.1 * old_gates).square().sum()
    torch.testing.assert_close(port.penalty().double(), own + moved, rtol=1e-4, atol=0)


# ---------------------------------------------------------------- (c), (d)


@on_request
@pytest.mark.process
def test_of_many_clients_a_cohort_takes_part_and_fills_the_disk(results):
    module = importlib.import_module("many_clients")
    size = module.Size((2,), cohort=1, visits=1, strategies=("fedweit",))

    module.measure(results, size, 1, "")

    assert [row["visits"] for row in results.rows] == [1, 2]
    assert all(row.keys() >= COST for row in results.rows)
    assert all(row["files"] and row["bytes"] for row in results.rows)
    assert cells(module.report(results, size))["2"][0] == "fedweit"


@on_request
@pytest.mark.process
def test_a_masked_round_does_the_work_of_one_without_masks(results):
    module = importlib.import_module("secure_sums")
    size = module.Size((3,), visits=1)

    module.measure(results, size, 1, "")

    plain, masked = results.rows[:2], results.rows[2:]
    assert [row["visits"] for row in plain] == [row["visits"] for row in masked]
    assert [row["visits"] for row in plain] == [3, 6]
    for one, other in zip(plain, masked, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert other["up"] > 1.9 * one["up"]
    times, _, *ups = cells(module.report(results, size))["3"][2:6]
    assert float(times.split()[0]) > 0
    assert float(ups[1].split()[0]) > 1.9 * float(ups[0].split()[0])


def test_the_disk_is_known_by_the_most_that_was_there(tmp_path):
    module = importlib.import_module("many_clients")
    disk = module.Disk(tmp_path / "run")
    disk.look()
    assert (disk.files, disk.bytes) == (0, 0)
    (tmp_path / "run" / "states").mkdir(parents=True)
    for name, size in (("a", 10), ("states/b", 20)):
        (tmp_path / "run" / name).write_bytes(bytes(size))
    while disk.files < 2:
        disk.look()
    (tmp_path / "run" / "a").unlink()
    time.sleep(0.1)  # so that it looks again
    disk.look()

    assert (disk.files, disk.bytes) == (2, 30)


# ---------------------------------------------------------------- the command


def run(*arguments):
    command = [sys.executable, str(BENCHMARKS / "run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@on_request
@pytest.mark.process
def test_the_command_writes_a_table_that_says_how_it_was_made(tmp_path):
    done = run("b", tmp_path, "--quick", "--repeats", "1")

    text = (tmp_path / "fedweit_step.md").read_text()
    assert done.returncode == 0, done.stderr
    assert text.startswith("# (b) What a training step of FedWeIT costs")
    assert f"run.py b {tmp_path} --quick --repeats 1`" in text
    assert "cores, load " in text
    assert "| plain Adam |" in text
    assert text in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("z",), "parts ['z'], expected some of a, b, c, d"),
        (("--repeats", "0"), "--repeats: got 0, expected at least 1"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(tmp_path, wrong, said):
    done = run(*wrong, tmp_path)

    assert done.returncode == 2
    assert said in done.stderr
