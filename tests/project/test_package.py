"""What is published: wheel and sdist, their metadata, and that they need no clone."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGES = ("fcl_flower", "strategies", "clients")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = f"fcl_flower-{PROJECT['version']}"
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
STUDY = """
seeds = [1]

[run]
scenario.clients = 2
scenario.tasks = 1
data.datasets = "digits"
federation.rounds_per_task = 1

[[variant]]
strategy.name = "fedavg"
"""


def call(*command, **options):
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder of the sdist, and of the wheel that is built from it."""
    for package in ("build", "hatchling"):
        pytest.importorskip(package, reason=f"{package} is of the extra dev")
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """Return a folder in which the wheel is installed, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index")
    call(*pip, "--target", folder, dist / f"{NAME}-py3-none-any.whl")
    return folder


def metadata(dist):
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        return HeaderParser().parsestr(
            wheel.read(f"{NAME}.dist-info/METADATA").decode()
        )


@pytest.mark.process
def test_an_index_takes_both_and_their_description(dist):
    pytest.importorskip("twine", reason="twine is of the extra dev")
    packages = [dist / f"{NAME}.tar.gz", dist / f"{NAME}-py3-none-any.whl"]

    out = call(sys.executable, "-m", "twine", "check", "--strict", *packages)

    assert out.count("PASSED") == len(packages)


@pytest.mark.process
def test_the_wheel_holds_the_three_packages_whole_and_nothing_else(dist):
    needed = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*.*")
        if path.suffix != ".pyc"
    }
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        held = set(wheel.namelist())
    beside = held - needed

    assert needed <= held
    assert all(name.startswith(f"{NAME}.dist-info/") for name in beside)
    assert f"{NAME}.dist-info/licenses/LICENSE" in beside


@pytest.mark.process
def test_the_sdist_holds_what_it_takes_to_test_it(dist):
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    files = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE"}

    assert files | {"CITATION.cff", "CHANGELOG.md", "docs/generate.py"} <= held
    assert "tests/project/test_package.py" in held
    assert not {name for name in held if re.match(r"(runs|data|\.venv|build)/", name)}


@pytest.mark.process
def test_the_metadata_say_what_the_project_file_says(dist):
    found = metadata(dist)

    assert found["Version"] == PROJECT["version"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] == PROJECT["requires-python"]
    assert set(found.get_all("Classifier")) == set(PROJECT["classifiers"])
    assert set(found.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert found["Description-Content-Type"] == "text/markdown"


@pytest.mark.process
def test_an_installed_wheel_runs_the_demo_and_a_study_without_the_repository(
    installed, tmp_path
):
    (tmp_path / "study.toml").write_text(STUDY)
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "FCL_DATA"}}
    place = {"cwd": tmp_path, "env": kept | {"PYTHONPATH": str(installed)}}
    small = ("--clients", 2, "--tasks", 1, "--rounds", 1, "--dataset", "digits")
    fcl = installed / "bin" / "fcl"

    demo = ("--strategies", "fedavg,fedweit", *small, "--output", "demo")
    call(sys.executable, fcl, "compare", *demo, **place)
    call(sys.executable, fcl, "study", "study.toml", "--output", "study", **place)
    origin = "import fcl_flower, strategies, clients, sys\n" + (
        "print(*(m.__file__ for m in (fcl_flower, strategies, clients)), sep='\\n')"
    )
    files = call(sys.executable, "-c", origin, **place).splitlines()

    assert all(Path(file).is_relative_to(installed) for file in files)
    assert (tmp_path / "demo" / "comparison.html").stat().st_size > 100_000
    assert (tmp_path / "study" / "comparison.html").stat().st_size > 100_000
    assert len(list((tmp_path / "demo").glob("*/report.html"))) == 4


def test_the_citation_names_this_version_and_its_authors():
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert {"cff-version", "message"} <= CITATION.keys()


@pytest.mark.process
def test_a_commit_with_a_versions_tag_has_that_version():
    if not (ROOT / ".git").exists():
        pytest.skip("no clone, so no tags")
    tags = call("git", "-C", ROOT, "tag", "--points-at", "HEAD", "v*").split()

    assert set(tags) <= {f"v{PROJECT['version']}"}
