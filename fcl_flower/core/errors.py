"""Every error this project raises on purpose.

FclError
├── ConfigError     what the user asked for is wrong    (the user can fix it)
├── ContractError   an algorithm broke its contract     (its author can fix it)
├── WireError       a message cannot be decoded or used (the peer can fix it)
└── RoundError      too few usable replies in a round   (the operator can fix it)
"""


class FclError(Exception):
    """Base of all deliberate errors."""


class ConfigError(FclError):
    """A setting is wrong; the message names key, value and what was expected."""


class ContractError(FclError):
    """An algorithm broke its contract; the message names the class."""


class WireError(FclError):
    """A message cannot be decoded or used; the message names the tensor."""


class RoundError(FclError):
    """Too few usable replies arrived in a round."""
