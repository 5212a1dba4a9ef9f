"""The errors that this project raises on purpose.

FclError
├── ConfigError     a setting or an input is wrong      (the user can fix it)
│   └── FormatError      a file has another format          (`core.formats`)
├── ContractError   an algorithm broke its contract     (its author can fix it)
├── WireError       a message cannot be decoded or used (the peer can fix it)
│   └── RunUnknownError  the client does not know the run   (the server sends it)
├── RoundError      too few usable replies in a round   (the operator can fix it)
├── DivergenceError training gave NaN or infinity       (another rate can fix it)
└── BudgetError     the privacy budget is spent         (no fix)

Errors about settings have one form, which `config_error` and `unknown_name` make::

    clients: got -1, expected at least 1
    strategy: got 'fedwiet', expected one of fedavg, fedweit; did you mean 'fedweit'?
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Final

MESSAGE_FAILED = "this client could not answer:"
"""The beginning of the log line with the reason, by which `fcl client` finds it."""
WAITING, BEGINS = "waiting for clients", "all are here that the run waits for:"
"""The beginnings of the log lines by which `fcl run` knows whether a run has begun."""


CANDIDATES: Final = 5
"""The most names that the message about an unknown name lists."""
NEAR: Final = 0.6
"""The least likeness at which a message suggests a name."""


class FclError(Exception):
    """The base of all deliberate errors."""


class Fault(StrEnum):
    """A kind of fault in local data: it quotes nothing, and may leave the client."""

    SPELLING = "labels that look alike"
    LABEL = "a label that the run, or the training file, does not have"
    CLASSES = "more or fewer classes than a head of the run has"
    CHANGED = "other classes than at the beginning of the task"
    COLUMNS = "other columns than expected"
    CELL = "a cell that is no number"
    DIGITS = "numbers of too many digits"
    NO_LABEL = "a label that is no printable text"
    SHAPE = "samples of a shape that the model does not take"
    FEW = "too few samples to test with"
    FORM = "a file of a form that the model does not take"
    UNREADABLE = "a file that cannot be read"
    MISSING = "a file that is missing"
    LAYOUT = "a file or folder that does not belong there"


class ConfigError(FclError):
    """A setting is wrong; the message names key, value and what was expected.

    Attributes:
        fault: kind of the fault where it is one of local data.
    """

    def __init__(self, message: str, fault: Fault | None = None) -> None:
        super().__init__(message)
        self.fault = fault


class ContractError(FclError):
    """An algorithm broke its contract; the message names the class."""


class WireError(FclError):
    """A message cannot be decoded or used; the message names the tensor."""


class RunUnknownError(WireError):
    """A client gets a message about a run that it does not know."""


class RoundError(FclError):
    """Too few usable replies arrived in a round."""


class StatesLostError(RoundError):
    """All clients lose their state in each attempt, so that no attempt helps."""


class DivergenceError(FclError):
    """Training gave NaN or infinite values; the message names the rate."""


DIVERGED = "training diverged"
"""The beginning of the message of a `DivergenceError`."""


class BudgetError(FclError):
    """Another round would cost clients more privacy than the budget allows."""


class PluginWarning(UserWarning):
    """An installed package declares a thing that cannot be used, and is left out."""


def config_error(key: str, value: object, expected: str) -> ConfigError:
    """Make the error for a wrong value; ``expected`` has no full stop."""
    return ConfigError(f"{key}: got {as_set(value)}, expected {expected}")


def as_set(value: object) -> str:
    """Write a value as users set it: booleans as in TOML, all else as in Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_set, value))}]"
    return str(value).lower() if isinstance(value, bool | None) else repr(value)


def unknown_name(key: str, value: str, known: Iterable[str]) -> ConfigError:
    """Make the error for an unknown name; it lists the nearest known names."""
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
    """Name the extra to install if an import in this context fails."""
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

    Of an error of the operating system only the kind remains, since its text names
    files, whose names may hold blanks.
    """
    text = error.strerror if isinstance(error, OSError) else str(error)
    return without_paths(f"{type(error).__name__}: {text or 'without a reason'}")
