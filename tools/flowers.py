"""Run the tests of the plain federation on several releases of Flower.

Each has an environment in ``build/flowers``, with that Flower and what it needs; all
else, torch among it, is that of the environment which runs this. Without arguments the
releases are the oldest that the project allows, the newest and the nightly one that the
registry has.
"""

import os
import subprocess
import sys
import sysconfig
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "flowers"
TESTS = "tests/flower_app/test_plain_federation.py"
NIGHTLY = "flwr-nightly"
LEFT_OUT = ("flwr", "fcl_flower", "ray")
"""Beginnings of what an environment must not take from ours: Flower tells its release
by the first of its distributions on the path."""


def known(package: str, *more: str) -> str:
    """Return the newest release of a package that the registry has."""
    command = (sys.executable, "-m", "pip", "index", "versions", package, *more)
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return found.stdout.split("(")[1].split(")")[0]


def oldest() -> str:
    """Return the oldest release of Flower that the project allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (n for n in project["dependencies"] if n.startswith("flwr"))
    least = needed.partition(">=")[2].partition(",")[0]
    return least if least.count(".") == 2 else f"{least}.0"


def requirement(release: str) -> str:
    """Name what to install for a release."""
    package = NIGHTLY if ".dev" in release else "flwr"
    return f"{package}[simulation]=={release}"


def environment(release: str) -> Path:
    """Make the environment of a release, unless it is there; return its Python."""
    folder = PLACE / release
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = (python, "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, requirement(release)], check=True)
        borrow(folder)
        done.touch()
    return python


def borrow(folder: Path) -> None:
    """Let an environment find what it has not in ours, after its own."""
    others = folder / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(LEFT_OUT) and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{others}\n")


def passes(release: str, *more: str) -> bool:
    """Run the tests; what they say goes to a file beside the environment."""
    python = environment(release)
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (PLACE / f"{release}.log").open("w") as log:
        command = [python, "-m", "pytest", TESTS, "-p", "no:cacheprovider", *more]
        ended = subprocess.run(
            command, cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT
        )
    return ended.returncode == 0


def main(arguments: list[str]) -> int:
    """Test the releases that are named, with pytest's options after ``--``."""
    names, _, more = " ".join(arguments).partition("--")
    releases = names.split() or [oldest(), known("flwr"), known(NIGHTLY, "--pre")]
    good = True
    for release in releases:
        environment(release)
        began = time.monotonic()
        passed = passes(release, *more.split())
        seconds = time.monotonic() - began
        print(f"{release}: {'passed' if passed else 'failed'}, {seconds:.0f} s")
        good &= passed
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
