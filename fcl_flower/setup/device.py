"""Where a client or a server computes."""

import torch

from fcl_flower.core.errors import refuse


def find_device(name: str) -> str:
    """Return the torch device of a name; for ``auto`` an accelerator if there is one.

    Raises:
        ConfigError: the wanted accelerator is not there.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        expected = "auto, cpu or a device that torch finds here"
        raise refuse("training.device", name, expected) from error
    return name
