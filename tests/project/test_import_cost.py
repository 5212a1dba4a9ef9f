"""What is imported: a process that need not load something does not."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

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
import fcl_flower.flower_app.client_app
from fcl_flower.config.run_config import RunConfig
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
run = resolve(
    RunConfig.from_settings(
        strategy={strategy!r}, clients=2, tasks=2, classes_per_task=2
    )
)
Built(run).learner(0).init()
"""
    )

    assert {"torch", "flwr"} <= loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_run_without_metrics_loads_nothing_for_them_nor_a_compiler(
    tmp_path, strategy
):
    loaded = loaded_by(
        f"""
import fcl_flower as fcl
fcl.simulate({strategy!r}, clients=2, tasks=1, rounds=1, output={str(tmp_path)!r})
"""
    )

    assert "fcl_flower.rounds.prepare" in loaded
    assert not {"prometheus_client", "torch._dynamo"} & loaded


def command(*arguments, code):
    """Return a program that gives the command and expects an exit code."""
    return f"""
import sys
from fcl_flower.cli.main import main
sys.argv = ["fcl", *{arguments!r}]
try:
    main()
except SystemExit as ended:
    assert (ended.code or 0) == {code}
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["simulate", "--help"], ["run", "--help"], ["server", "--help"]],
    ids=" ".join,
)
def test_help_loads_neither_torch_nor_flower(arguments):
    loaded = loaded_by(command(*arguments, code=0))

    assert "click" in loaded
    assert not {"torch", "flwr", "httpx", "h11", "cryptography", *HEAVY} & loaded


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--strategy", "nosuch"],
        ["simulate", "--scenario", "nosuch"],
        ["simulate", "--model", "nosuch"],
        ["simulate", "--dataset", "nosuch"],
        ["simulate", "--set", "lambda=1"],
        ["simulate", "--gpus-per-client", "0.5"],
        ["compare", "--strategies", "fedavg,nosuch"],
        ["study", "nosuch.toml"],
    ],
    ids=" ".join,
)
def test_what_is_refused_is_refused_before_anything_heavy_is_loaded(arguments):
    loaded = loaded_by(command(*arguments, code=2))

    assert "fcl_flower.config.run_config" in loaded
    assert not {"torch", "flwr", *HEAVY} & loaded


def test_what_waits_beside_a_supernode_has_not_loaded_flower():
    """It lasts for months on small devices, and only looks after the others."""
    loaded = loaded_by("import fcl_flower.deploy.client")

    assert "fcl_flower.deploy.client" in loaded
    assert not {"torch", "flwr", "numpy", "pydantic", "psutil", *HEAVY} & loaded
    assert not {"cryptography", "click", "ctypes", "importlib.metadata"} & loaded


SUPERNODE = """
from fcl_flower.deploy.speedups.supernode import leave_out
leave_out()
import flwr.supernode.cli.flower_supernode, flwr.supernode.main
import fcl_flower.deploy.speedups.resident, fcl_flower.deploy.speedups.stopped_runs
"""


def test_a_supernode_loads_no_database_and_no_colours_of_source_code():
    loaded = loaded_by(SUPERNODE)

    assert "flwr.supernode.start_client_internal" in loaded
    assert not {"torch", "sqlalchemy", "alembic", "mako", "pygments", *HEAVY} & loaded


def test_what_a_supernode_leaves_out_is_there_where_it_is_used(tmp_path):
    loaded_by(f"""{SUPERNODE}
from flwr.supercore.object_store import ObjectStoreFactory
store = ObjectStoreFactory({str(tmp_path / "objects.db")!r}).store()
assert len(store) == 0
assert type(store).__module__ == "flwr.supercore.object_store.sql_object_store"
""")


@pytest.mark.parametrize("arguments", [["list"], ["list", "fedweit"]], ids=" ".join)
def test_what_there_is_can_be_shown_without_anything_heavy(arguments):
    loaded = loaded_by(command(*arguments, code=0))

    assert "fcl_flower.models.registry" in loaded
    assert not {"torch", "flwr", *HEAVY} & loaded
