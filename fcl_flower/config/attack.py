"""Attacks are for simulations in one process; all other runtimes refuse them here."""

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import refuse


def refuse_attack(config: RunConfig) -> None:
    """Refuse a run with hostile clients.

    Raises:
        ConfigError: it has some.
    """
    attack = config.federation.attack
    if attack:
        expected = "none, as only a simulation in one process has hostile clients"
        raise refuse("federation.attack", attack, expected)
