"""The aggregation policy of a run, its attack, and what does not go with them."""

from typing import Any

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerStrategy, adds_up
from fcl_flower.core.errors import refuse
from fcl_flower.setup.resolved_run import ResolvedRun


def build_aggregation(run: ResolvedRun, strategy: ServerStrategy[Any]) -> Aggregation:
    """Return how the server combines what clients send.

    Raises:
        ConfigError: the strategy does not leave that to a policy, or adds up sums,
            which cannot count alike; or the run is asynchronous, in which there is
            nothing to hold an update against.
    """
    section, name = run.config.federation, run.config.strategy.name
    policy = Aggregation(
        section.aggregation,
        section.hostile_fraction,
        section.clip_to_median,
        section.weighting,
        section.examples_limit,
    )
    own = f"for {name}, which averages no updates that way"
    alone = "in an asynchronous run, which takes one update at a time"
    for key, value, usual in (
        ("aggregation", section.aggregation, "mean"),
        ("clip_to_median", section.clip_to_median, 0),
        ("examples_limit", section.examples_limit, 0),
    ):
        if value == usual:
            continue
        if run.config.asynchronous.enabled:
            raise refuse(f"federation.{key}", value, f"{usual!r} {alone}")
        if key != "examples_limit" and not strategy.robust_aggregation:
            raise refuse(f"federation.{key}", value, f"{usual!r} {own}")
    if section.weighting != "examples" and adds_up(strategy):
        sums = f"'examples' for {name}, whose sums count samples"
        raise refuse("federation.weighting", section.weighting, sums)
    return policy


def check_attack(run: ResolvedRun, strategy: ServerStrategy[Any]) -> None:
    """Refuse an attack on something that clients of this strategy do not send.

    Raises:
        ConfigError: one sentence names the attack, and what was expected.
    """
    attack, name = run.config.federation.attack, run.config.strategy.name
    for wrong, expected in (
        (
            attack == "adapters" and not strategy.kinds("shared"),
            f"another one for {name}, whose clients receive no others' adapters",
        ),
        (
            attack in ("sign-flip", "noise", "scaling", "counts")
            and strategy.kinds("shared")
            and not (strategy.kinds("mean") or strategy.robust_aggregation),
            f"label-flip or adapters for {name}, whose clients average no models",
        ),
        (
            attack in ("sign-flip", "noise", "scaling", "counts") and adds_up(strategy),
            f"label-flip for {name}, whose clients send sums, no model",
        ),
    ):
        if wrong:
            raise refuse("federation.attack", attack, expected)
