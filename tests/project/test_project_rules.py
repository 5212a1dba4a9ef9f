"""What Flower is told of the project, the two sides, and the contributor's guide."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from fakes import run_in_process
from run_folders import make_run

import clients
import fcl_flower
import strategies
from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.config.parsing import flatten
from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.report.run_page import write_report
from fcl_flower.rounds import messages

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("fcl_flower", "strategies", "clients")


def shown(path):
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------- project file


def test_the_version_is_the_same_everywhere():
    version = PROJECT["project"]["version"]

    assert fcl_flower.__version__ == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_flower_is_told_every_setting_with_its_default():
    app = PROJECT["tool"]["flwr"]["app"]

    # Flower refuses keys that are not here: parameters come as the text of `params`.
    params = {f"{section}.params": "" for section in ("strategy", "scenario", "model")}
    assert flatten(app["config"]) == RunConfig().flat() | params


def test_flowers_defaults_are_those_of_an_empty_configuration():
    config = flatten(PROJECT["tool"]["flwr"]["app"]["config"])

    assert RunConfig.of(config) == RunConfig()
    config["strategy.params"] = "lambda1 = 0.01"
    assert RunConfig.of(config).strategy.params == {"lambda1": 0.01}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Return the folder of the app as Flower bundles it."""
    folder = tmp_path_factory.mktemp("bundle")
    program = Path(sys.executable).parent / "flwr"
    subprocess.run(
        [program, "build", "--app", ROOT],
        cwd=folder,
        env={**os.environ, "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0"},
        check=True,
        capture_output=True,
    )
    (archive,) = folder.glob("*.fab")
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder / "app")
    return folder / "app"


@pytest.mark.process
def test_flowers_bundle_holds_every_file_that_the_app_needs(bundle):
    bundled = {str(path.relative_to(bundle)) for path in bundle.rglob("*.*")}
    needed = {
        shown(path)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.*")
        if path.suffix not in {".pyc", ".typed"}
    }

    assert needed <= bundled


@pytest.mark.process
def test_a_server_in_flowers_bundle_writes_the_report(bundle, tmp_path):
    run = make_run(tmp_path / "run")
    program = """
import sys
from pathlib import Path
import fcl_flower
from fcl_flower.results.report.run_page import write_report
print(fcl_flower.__file__)
write_report(Path(sys.argv[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, run],
        cwd=bundle,
        env={name: v for name, v in os.environ.items() if name != "PYTHONPATH"},
        check=True,
        capture_output=True,
        text=True,
    )

    assert Path(done.stdout.strip()).is_relative_to(bundle)
    written = (run / "report.html").read_text(encoding="utf-8")
    assert write_report(run).read_text(encoding="utf-8") == written


# ---------------------------------------------------------------- the two sides


def loads(program):
    """Return the names of all modules that a program has loaded at its end."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


@pytest.mark.process
def test_a_declaration_does_not_load_a_framework():
    loaded = loads(
        "from fcl_flower.algorithms.registry import algorithms\nalgorithms()"
    )

    assert "strategies.fedweit" in loaded
    assert not loaded & {"torch", "flwr", "ray", "clients", "sklearn", "scipy"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("side", "strangers"),
    [("server", {"torch", "flwr", "ray", "clients"}), ("client", {"flwr", "ray"})],
)
def test_a_side_alone_does_not_load_what_it_must_not_know(side, strangers):
    loaded = loads(
        "from fcl_flower.algorithms.registry import algorithms\n"
        f"for entry in algorithms().values(): entry.load_{side}()"
    )

    assert not loaded & strangers


# ---------------------------------------------------------------- the guide


MODULES = ("strategies/fedmedian.py", "clients/fedmedian.py")


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The guide's code by the file it is meant for; its modules can be imported."""
    text = (ROOT / "docs" / "tutorials" / "own-method.md").read_text()
    blocks = dict(
        re.findall(r"`([\w/.]+)`[^`\n]*:\n\n```\w+\n(.*?)```", text, re.DOTALL)
    )
    for package in (strategies, clients):
        folder = tmp_path / package.__name__
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [str(folder), *package.__path__])
    for name in MODULES:
        (tmp_path / name).write_text(blocks[name])
    yield blocks
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py").replace("/", "."), None)


@pytest.mark.usefixtures("guide")
def test_the_guides_algorithm_is_found_by_its_file():
    assert "fedmedian" in algorithms()
    assert algorithm("fedmedian").load_client().__name__ == "ClippedLearner"


@pytest.mark.run
@pytest.mark.usefixtures("guide")
def test_the_guides_algorithm_learns(tmp_path):
    config = RunConfig.from_settings(
        strategy="fedmedian",
        **{"strategy.params": "clip = 5.0"},
        clients=3,
        tasks=2,
        rounds=3,
        output=str(tmp_path / "run"),
    )

    run_in_process(config)

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["params"] == {"clip": 5.0}
    # Two classes a task, so that guessing gives a half.
    assert summary["average_accuracy"] > 0.7


@pytest.mark.run
@pytest.mark.usefixtures("guide")
def test_the_guides_client_changes_the_model_by_no_more_than_it_may(tmp_path):
    config = RunConfig.from_settings(
        strategy="fedmedian",
        **{"strategy.params": "clip = 0.25"},
        clients=2,
        tasks=1,
        rounds=2,
        output=str(tmp_path / "run"),
    )
    lengths = []

    def measure(client, message, reply):
        if message.kind == "train":
            sent, learned = (
                messages.decode_payload(m.content)["base"] for m in (message, reply)
            )
            change = [np.ravel(learned[name] - sent[name]) for name in sent]
            lengths.append(np.linalg.norm(np.concatenate(change)))
        return reply

    run_in_process(config, tamper=measure)

    np.testing.assert_allclose(lengths, [0.25] * 4, rtol=1e-4)


def test_the_guides_own_test_passes(guide):
    found = {}
    exec(guide["tests/algorithms/test_fedmedian.py"], found)
    tests = [value for name, value in found.items() if name.startswith("test_")]

    for test in tests:
        test()

    assert tests


def test_the_guides_algorithm_can_live_in_another_package(guide, tmp_path, monkeypatch):
    registered = tomllib.loads(guide["pyproject.toml"])["project"]["entry-points"]
    group = "fcl_flower.algorithms"
    ((name, place),) = registered[group].items()
    module, _, attribute = place.partition(":")
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir()
    source = guide[MODULES[0]].replace("strategies.fedmedian:", f"{module}:")
    path.write_text(source)
    (tmp_path / MODULES[0]).unlink()
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = algorithm(name)

    assert found is getattr(import_module(module), attribute)
    assert found.load_server().__module__ == module
    assert found.params({"clip": 0.5}).clip == 0.5


@pytest.mark.process
def test_the_guides_code_keeps_the_project_rules(guide):
    ruff = Path(sys.executable).parent / "ruff"
    for name in MODULES:
        for command in (["check"], ["format", "--diff"]):
            done = subprocess.run(
                [ruff, *command, "--stdin-filename", name, "-"],
                cwd=ROOT,
                input=guide[name],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
