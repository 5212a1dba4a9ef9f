"""A device computes what the processor does, within rounding.

``FCL_TEST_DEVICE`` names another device than ``cuda``: with ``cpu`` the tests try
themselves.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from every_method import smallest
from fakes import rounds_of, run_in_process, tiny
from resuming import check_resumed, small

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.models import words
from fcl_flower.setup.resolve import resolve

# CUDA reads it once, at the first product of matrices.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

DEVICE = os.environ.get("FCL_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cuda" and not torch.cuda.is_available(),
        reason="torch finds no CUDA device",
    ),
]
FEDAVG = {"strategy": "fedavg", "clients": 3, "max_train_per_class": 16}


def losses(folder, run=run_in_process, **settings):
    """Return the loss of each round of a run, where there is one."""
    run(resolve(tiny(folder, **settings)).config)
    return [line["loss"] for line in rounds_of(folder) if line.get("loss") is not None]


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_a_round_of_every_method_is_that_of_the_processor(tmp_path, monkeypatch, name):
    # A device draws dropout with numbers of its own.
    monkeypatch.setattr(words, "DROPOUT", 0.0)
    size = {"scenario": "overlapped", "tasks": 1, "max_train_per_class": 24}
    given = {**size, **smallest(name, tmp_path)}

    found = losses(tmp_path / "device", **given, device=DEVICE)

    expected = losses(tmp_path / "cpu", **given, device="cpu")
    assert found == pytest.approx(expected, rel=5e-3, nan_ok=True)


def test_bfloat16_learns_about_the_same(tmp_path):
    given = {**FEDAVG, "rounds": 2, "device": DEVICE}

    found = losses(tmp_path / "mixed", **given, precision="bfloat16")

    assert found == pytest.approx(losses(tmp_path / "whole", **given), rel=0.05)


@pytest.fixture
def repeatable():
    """Let a device add in the same order each time, as docs/howto/gpus.md says."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("repeatable")
def test_a_run_on_a_device_goes_on_where_it_ended(tmp_path):
    check_resumed(tmp_path, small(**FEDAVG, device=DEVICE, rounds=2), 2)


@pytest.mark.ray
def test_four_clients_share_a_device(tmp_path):
    """The run itself is that of one process; cards may round otherwise."""
    given = {**FEDAVG, "clients": 4}
    share = "0.25" if DEVICE == "cuda" else "0"
    command = [sys.executable, "-m", "fcl_flower.cli.main", "simulate"]
    command += ["--strategy", "fedavg", "--clients", "4", "--tasks", "2"]
    command += ["--rounds", "1", "--set", "scenario.classes_per_task=2"]
    command += ["--set", "scenario.max_train_per_class=16"]
    command += ["--set", f"training.device={DEVICE}", "--backend", "flower"]
    command += ["--workers", "4", "--gpus-per-client", share]

    subprocess.run([*command, "--output", tmp_path / "four"], check=True)

    lines = (tmp_path / "four" / "rounds.jsonl").read_text().splitlines()
    found = [json.loads(line)["loss"] for line in lines]
    expected = losses(tmp_path / "one", **given, device=DEVICE)
    assert found == pytest.approx(expected, rel=1e-3)
