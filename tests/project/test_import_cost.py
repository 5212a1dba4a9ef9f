"""A SuperNode starts a process for each message: what it need not load, it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "scipy",
    "sklearn",
    "gensim",
    "ray",
    "datasets",
    "pandas",
    "PIL",
    "transformers",
}


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_client_that_is_ready_has_loaded_torch_and_flower_and_no_other(strategy):
    program = f"""
import sys
import fcl_flower.client_app
from fcl_flower import assembly
from fcl_flower.config import RunConfig
config = RunConfig(strategy={strategy!r}, clients=2, tasks=2, classes_per_task=2)
assembly.learner(config, assembly.scenario(config), 0).init()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = set(done.stdout.split())

    assert {"torch", "flwr"} <= loaded
    assert not HEAVY & loaded


def test_help_loads_neither_torch_nor_flower():
    program = "import sys; import fcl_flower.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )

    assert not {"torch", "flwr", "httpx", "uvicorn"} & set(done.stdout.split())
