"""The project's rules that no other tool checks, and the contributor's guide."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from fakes import run_in_process
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from run_folders import make_run

import clients
import fcl_flower
import strategies
from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.config.parsing import flatten
from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.transport import messages
from fcl_flower.results.report import write_report

ROOT = Path(__file__).parents[2]
CORE = ROOT / "fcl_flower"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("fcl_flower", "strategies", "clients")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FOLDERS = sorted({path.parent for path in SOURCES if path.is_relative_to(CORE)})
DIRECT = [
    Requirement(text)
    for group in (
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
    )
    for text in group
]


def shown(path):
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_a_file_is_short_and_says_what_it_is_for(path):
    text = path.read_text()

    assert len(text.splitlines()) <= 350
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("folder", FOLDERS, ids=shown)
def test_a_folder_has_ten_modules_at_most(folder):
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}

    assert len(modules) <= 10


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=shown)
def test_what_is_left_to_do_says_where_it_is_kept(path):
    bare = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")

    assert path == Path(__file__) or not bare.findall(path.read_text())


def calls(path, name):
    """Return how often a file calls a function by its bare name or as an attribute."""
    found = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            own = isinstance(node.func, ast.Name) and node.func.id == name
            # `path.resolve()` of pathlib takes no argument.
            other = isinstance(node.func, ast.Attribute) and node.func.attr == name
            found += own or (other and bool(node.args))
    return found


def test_a_configuration_is_resolved_where_it_enters_a_program():
    found = {shown(path): calls(path, "resolve") for path in SOURCES}

    assert {name: count for name, count in found.items() if count} == {
        "fcl_flower/api.py": 1,
        "fcl_flower/cli/check_data.py": 1,
        "fcl_flower/cli/deploy.py": 1,
        "fcl_flower/cli/main.py": 1,
        "fcl_flower/cli/simulate.py": 1,
        "fcl_flower/setup/on_node.py": 1,
        "fcl_flower/exports/trained.py": 1,
        "fcl_flower/federation/forget.py": 1,
        "fcl_flower/federation/prepare.py": 2,
        "fcl_flower/runtime/studies/choice.py": 1,
        "fcl_flower/runtime/studies/runs.py": 1,
    }


def test_nothing_names_a_place_on_somebodys_machine():
    own = re.compile(r"""(?<![\w.<])/(work|home|root|Users|mnt|opt)/|[A-Z]:\\""")
    suffixes = {".py", ".toml", ".md", ".css", ".txt", ".cfg", ".yaml", ".yml"}
    texts = [ROOT / "Makefile", ROOT / ".ci" / "run", *ROOT.glob("*.*")]
    for folder in (*PACKAGES, "tests", "experiments", "docker", "docs"):
        texts += (ROOT / folder).rglob("*")

    found = {
        f"{shown(path)}: {line.strip()}"
        for path in texts
        if path.is_file() and (path.suffix in suffixes or path.parent.name == ".ci")
        for line in path.read_text().splitlines()
        if own.search(line) and path != Path(__file__)
    }

    assert not found


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


def test_flowers_bundle_holds_every_file_that_the_app_needs(bundle):
    bundled = {str(path.relative_to(bundle)) for path in bundle.rglob("*.*")}
    needed = {
        shown(path)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.*")
        if path.suffix not in {".pyc", ".typed"}
    }

    assert needed <= bundled


def test_a_server_in_flowers_bundle_writes_the_report(bundle, tmp_path):
    run = make_run(tmp_path / "run")
    program = """
import sys
from pathlib import Path
import fcl_flower
from fcl_flower.results.report import write_report
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


def test_every_direct_dependency_is_pinned_within_its_range():
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = version

    for wanted in DIRECT:
        assert wanted.specifier.contains(pins[canonicalize_name(wanted.name)])


def test_every_package_that_is_imported_is_declared():
    declared = {canonicalize_name(wanted.name) for wanted in DIRECT}
    # Of what need not be installed here, and has another name.
    distributions = {"mlflow": ["mlflow-skinny"]} | packages_distributions()
    imported = {
        name.partition(".")[0]
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom) and node.module
            else []
        )
    }
    foreign = imported - set(sys.stdlib_module_names) - set(PACKAGES)

    for name in foreign:
        known = map(canonicalize_name, distributions.get(name, [name]))
        assert declared.intersection(known), f"{name} is imported but not declared"


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


def test_a_declaration_does_not_load_a_framework():
    loaded = loads(
        "from fcl_flower.algorithms.registry import algorithms\nalgorithms()"
    )

    assert "strategies.fedweit" in loaded
    assert not loaded & {"torch", "flwr", "ray", "clients", "sklearn", "scipy"}


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


def server_sides(path):
    """Return what the file of a client imports that is, or holds, a server side."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in names:
            if module.partition(".")[0] != "strategies":
                continue
            owner = import_module(module)
            thing = getattr(owner, name, None) if name else owner
            if thing is None:
                thing = import_module(f"{module}.{name}")
            held = vars(thing).values() if inspect.ismodule(thing) else [thing]
            if any(isinstance(o, type) and issubclass(o, ServerStrategy) for o in held):
                found.add(f"{module}:{name}")
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "clients").rglob("*.py")), ids=shown)
def test_a_client_side_imports_no_server_side(path):
    assert not server_sides(path)


@pytest.mark.parametrize(
    "line",
    [
        "from strategies.fedweit.server import FedWeit",
        "from strategies.fedweit import server",
        "from strategies import fedavg",
        "import strategies.fedavg",
    ],
)
def test_an_import_of_a_server_side_is_found(tmp_path, line):
    path = tmp_path / "client.py"
    path.write_text(f"def f():\n    {line}\n")

    assert server_sides(path)


# ---------------------------------------------------------------- the guide


MODULES = ("strategies/fedmedian.py", "clients/fedmedian.py")


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The guide's code by the file it is meant for; its modules can be imported."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
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
        if message.metadata.message_type == "train":
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
    ((group, points),) = registered.items()
    ((name, place),) = points.items()
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
