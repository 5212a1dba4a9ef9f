"""Under which versions, when and on what a run was made: what its numbers hang on."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fcl_flower


def environment() -> dict[str, Any]:
    """Return versions by name, commit and machine, and the time now.

    The time is in UTC (ISO 8601, to the second). A version is None where the package's
    metadata is not installed, the commit where the program is no clone of its
    repository. The machine is its kind and its cores, not its name.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "fcl-flower": fcl_flower.__version__,
            "flwr": _version("flwr"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
        "commit": commit_of(Path(fcl_flower.__file__).parents[1]),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def commit_of(root: Path) -> str | None:
    """Return the commit of a clone, with ``-dirty`` where files differ from it.

    None where the folder is no clone, or git is not there.
    """
    if not (root / ".git").exists():  # git would answer for a repository above it
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or another's clone
        return None
    return done.stdout.strip()


def told(found: Mapping[str, Any]) -> str:
    """Return what is known of an `environment` in one line; empty if nothing is."""
    versions = [f"{name} {v}" for name, v in found["versions"].items() if v]
    commit = found["commit"] and f"commit {found['commit']}"
    known = [found["date"], *versions, commit, found["machine"]]
    return ", ".join(" ".join(one.split()) for one in known if one)
