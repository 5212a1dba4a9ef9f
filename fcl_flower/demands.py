"""What a learner demands of a run, and a run may not give."""

from typing import Any

from fcl_flower.config import RunConfig
from fcl_flower.contracts import Learner
from fcl_flower.data.plan import Scenario
from fcl_flower.errors import ConfigError


def check_demands(half: type[Learner[Any]], config: RunConfig, plan: Scenario) -> None:
    """Refuse a run in which a learner would not do what it says.

    Args:
        half: the client half of the run's algorithm.
        config: of the run, completed.
        plan: its scenario.

    Raises:
        ConfigError: tasks are trained on together, but have a head each or are not
            told apart; or all of them at once, but they are not there at once.
    """
    name = config.strategy
    if half.rehearses and config.head != "single":
        raise ConfigError(
            f"head: {config.head!r} is refused: expected 'single' for {name}, which "
            "trains on samples of several tasks together"
        )
    if half.rehearses and plan.stream is not None and not config.concept_ids:
        raise ConfigError(
            f"scenario: {plan.name!r} is refused: expected one whose tasks are told "
            f"apart, for {name}, which trains on samples of several tasks together"
        )
    if half.joint and (plan.own or plan.stream is not None):
        raise ConfigError(
            f"scenario: {plan.name!r} is refused: expected one that deals out all "
            f"tasks beforehand, for {name}, which trains on all of them at once"
        )
