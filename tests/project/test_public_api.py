"""The public names: exactly the documented ones, each loaded when it is used."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fcl_flower as fcl

ROOT = Path(__file__).parents[2]
DOCUMENTED = {
    *("simulate", "compare", "load", "Result", "Comparison"),
    *("RunConfig", "Algorithm", "ServerStrategy", "ClientLearner", "Params"),
    "flower_strategy",
    *("Update", "TaskStage", "TaskData", "Turn", "SparseArray"),
    *("algorithms", "datasets", "models", "metrics", "scenarios"),
    *("FclError", "ConfigError", "ContractError", "WireError", "RoundError"),
    "__version__",
}
PACKAGES = [fcl, fcl.algorithms, fcl.datasets, fcl.models, fcl.scenarios]


def loaded_by(program):
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_the_public_names_are_the_documented_ones():
    assert set(fcl.__all__) == DOCUMENTED
    assert len(fcl.__all__) == len(DOCUMENTED)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_each_name_is_there_and_no_other(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        package.simulat  # noqa: B018


def test_submodules_are_modules_and_the_rest_is_none():
    modules = {n for n in fcl.__all__ if isinstance(getattr(fcl, n), ModuleType)}
    assert modules == {"algorithms", "datasets", "models", "metrics", "scenarios"}
    assert fcl.metrics.__name__ == "fcl_flower.results.measures"


@pytest.mark.process
def test_importing_the_package_loads_nothing_but_python():
    heavy = {"torch", "flwr", "numpy", "pydantic", "rich", "click", "scipy", "ray"}
    assert not heavy & loaded_by("import fcl_flower")


@pytest.mark.process
def test_an_error_can_be_named_without_torch_and_flower():
    found = loaded_by("import fcl_flower as fcl; fcl.ConfigError; fcl.RunConfig")
    assert "pydantic" in found
    assert not {"torch", "flwr", "ray"} & found


@pytest.mark.process
def test_a_run_in_this_process_loads_neither_flower_nor_ray():
    found = loaded_by(
        "import fcl_flower as fcl\n"
        "fcl.simulate('fedavg', clients=2, tasks=1, rounds=1, progress=False)"
    )
    assert "torch" in found
    assert not {"flwr", "ray", "sklearn", "scipy", "gensim", "pandas"} & found
