"""Which versions of this project understand each other."""

from collections.abc import Mapping

from fcl_flower import __version__
from fcl_flower.core.errors import WireError

PROTOCOL = 3
"""Raised with every change of the messages that the other side would not understand."""


def own() -> dict[str, str | int]:
    """Return what a client says of itself when it meets a server."""
    return {"version": __version__, "protocol": PROTOCOL}


def check(said: Mapping[str, object]) -> None:
    """Let in a client of this protocol, whatever its version.

    Raises:
        WireError: it has another protocol, or names none, as the first version.
    """
    if said.get("protocol") != PROTOCOL:
        version = said.get("version", "of an earlier version")
        raise WireError(
            f"runs fcl-flower {version} with protocol {said.get('protocol', 0)}, "
            f"expected protocol {PROTOCOL} as in the server's {__version__}: install "
            "the same version there"
        )
