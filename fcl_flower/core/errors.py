"""Every error this project raises on purpose.

FclError
├── ConfigError     what the user asked for is wrong    (the user can fix it)
│   └── FormatError      a file is of another version       (`core.formats`)
├── ContractError   an algorithm broke its contract     (its author can fix it)
├── WireError       a message cannot be decoded or used (the peer can fix it)
│   └── RunUnknownError  nobody has told the client the run (the server tells it)
├── RoundError      too few usable replies in a round   (the operator can fix it)
├── DivergenceError training has left the finite numbers (another rate can fix it)
└── BudgetError     the privacy budget is spent         (nobody can, and nobody should)

Errors about settings have one form, which `config_error` and `unknown_name` make::

    clients: got -1, expected at least 1
    strategy: got 'fedwiet', expected one of fedavg, fedweit; did you mean 'fedweit'?
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Final

MESSAGE_FAILED = "this client could not answer:"
"""Begins the line of a client's log that says why, by which `fcl client` finds it."""
WAITING, BEGINS = "waiting for clients", "all are here that the run waits for:"
"""Begin the lines of a run's log by which `fcl run` knows whether it has begun."""


CANDIDATES: Final = 5
"""Names that the message of an unknown one lists at most."""
NEAR: Final = 0.6
"""Likeness from which on a name is what may have been meant."""


class FclError(Exception):
    """Base of all deliberate errors."""


class ConfigError(FclError):
    """A setting is wrong; the message names key, value and what was expected."""


class ContractError(FclError):
    """An algorithm broke its contract; the message names the class."""


class WireError(FclError):
    """A message cannot be decoded or used; the message names the tensor."""


class RunUnknownError(WireError):
    """A client is asked of a run that it knows no longer, or not yet."""


class RoundError(FclError):
    """Too few usable replies arrived in a round."""


class StatesLostError(RoundError):
    """All clients lose their state again and again: no other attempt mends that."""


class DivergenceError(FclError):
    """Training has made NaN or infinite values; the message names the rate."""


DIVERGED = "training diverged"
"""Begins its message."""


class BudgetError(FclError):
    """Going on would cost clients more privacy than the budget allows."""


class PluginWarning(UserWarning):
    """An installed package declares what cannot be used; all else goes on."""


def config_error(key: str, value: object, expected: str) -> ConfigError:
    """Make the error for a wrong value; ``expected`` has no full stop."""
    return ConfigError(f"{key}: got {as_set(value)}, expected {expected}")


def as_set(value: object) -> str:
    """Write a value as it is set: switches as in TOML, all else as in Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_set, value))}]"
    return str(value).lower() if isinstance(value, bool | None) else repr(value)


def unknown_name(key: str, value: str, known: Iterable[str]) -> ConfigError:
    """Make the error for a name that does not exist, with the nearest that do."""
    alike = {name: SequenceMatcher(None, name, value).ratio() for name in known}
    names = sorted(alike, key=lambda name: -alike[name])
    if not names:
        return ConfigError(f"{key}: got {value!r}, expected none, as there are none")
    shown = ", ".join(names[:CANDIDATES])
    others = len(names) - CANDIDATES
    more = f" or one of {others} others" if others > 0 else ""
    hint = f"; did you mean {names[0]!r}?" if alike[names[0]] >= NEAR else ""
    return ConfigError(f"{key}: got {value!r}, expected one of {shown}{more}{hint}")


@contextmanager
def require_extra(name: str, need: str) -> Iterator[None]:
    """Say which extra to install where an import in this context fails."""
    try:
        yield
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise ConfigError(
            f"{need}: got no package {package}, expected it installed: pip install "
            f"'fcl-flower[{name}]'"
        ) from error


_PATH = re.compile(
    r"""(?P<quote>['"])(?:~|/).*?(?P=quote)  # quoted, which may hold blanks
    |(?<![\w/.~<])(?:~/|/(?=\w|\.))[^\s'",;:()]*  # from a root, up to a blank
    """,
    re.VERBOSE,
)


def without_paths(text: str) -> str:
    """Replace each absolute path in a sentence by ``(a path)``."""
    return _PATH.sub("(a path)", text)


def unforeseen(error: BaseException) -> str:
    """Describe an unforeseen error without anything of local data.

    An error of the operating system is told by its kind: its text names files, which
    may lie anywhere and have blanks in their names.
    """
    text = error.strerror if isinstance(error, OSError) else str(error)
    return without_paths(f"{type(error).__name__}: {text or 'without a reason'}")
