"""What is imported: a process that need not load something does not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    *("scipy", "sklearn", "gensim", "ray", "datasets", "pandas", "PIL"),
    *("transformers", "prometheus_client", "plotly"),
}


def loaded_by(program):
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_client_that_is_ready_has_loaded_torch_and_flower_and_no_other(strategy):
    """A SuperNode starts a process for each message."""
    loaded = loaded_by(
        f"""
import fcl_flower.federation.client_app
from fcl_flower.config.run_config import RunConfig
from fcl_flower.setup.factory import build_learner, build_scenario
from fcl_flower.setup.resolve import resolve
run = resolve(
    RunConfig.from_settings(
        strategy={strategy!r}, clients=2, tasks=2, classes_per_task=2
    )
)
build_learner(run, build_scenario(run), 0).init()
"""
    )

    assert {"torch", "flwr"} <= loaded
    assert not HEAVY & loaded


def test_a_run_without_metrics_loads_nothing_for_them(tmp_path):
    loaded = loaded_by(
        f"""
import fcl_flower as fcl
fcl.simulate("fedavg", clients=2, tasks=1, rounds=1, output={str(tmp_path)!r})
"""
    )

    assert "fcl_flower.federation.prepare" in loaded
    assert "prometheus_client" not in loaded


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["simulate", "--help"], ["run", "--help"], ["server", "--help"]],
    ids=" ".join,
)
def test_help_loads_neither_torch_nor_flower(arguments):
    loaded = loaded_by(
        f"""
import sys
from fcl_flower.cli.main import main
sys.argv = ["fcl", *{arguments!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
    )

    assert "click" in loaded
    assert not {"torch", "flwr", "httpx", "h11", "cryptography", *HEAVY} & loaded
