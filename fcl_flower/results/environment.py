"""Under which versions, and when, a run was made: what its numbers may depend on."""

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fcl_flower import __version__


def environment() -> dict[str, Any]:
    """Return versions by name, and the time now in UTC (ISO 8601, to the second).

    A version is None where the package's metadata is not installed.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "fcl-flower": __version__,
            "flwr": _version("flwr"),
            "torch": _version("torch"),
            "python": platform.python_version(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
