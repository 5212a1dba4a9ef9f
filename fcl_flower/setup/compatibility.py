"""What a learner demands of a run, and a run may not give."""

from typing import Any

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.scenarios.plan import Scenario
from fcl_flower.data.scenarios.registry import scenario_entry
from fcl_flower.models.registry import model_entry


def check_compatibility(
    half: type[ClientLearner[Any]], config: RunConfig, plan: Scenario
) -> None:
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
    if half.needs_single_head and config.head != "single":
        raise ConfigError(
            f"head: {config.head!r} is refused: expected 'single' for {name}, which "
            "trains on samples of several tasks together"
        )
    if half.needs_single_head and plan.stream is not None and not config.concept_ids:
        raise ConfigError(
            f"scenario: {plan.name!r} is refused: expected one whose tasks are told "
            f"apart, for {name}, which trains on samples of several tasks together"
        )
    if half.joint and (plan.own or plan.stream is not None):
        raise ConfigError(
            f"scenario: {plan.name!r} is refused: expected one that deals out all "
            f"tasks beforehand, for {name}, which trains on all of them at once"
        )


def has_local_data(config: RunConfig) -> bool:
    """Return whether the clients of a run have data of their own."""
    return bool(config.scenario) and scenario_entry(config.scenario).own


def check_settings(config: RunConfig) -> None:
    """Refuse a run over clients' own data that leaves open what nobody can look up.

    Raises:
        ConfigError: one sentence names the setting, and what was expected.
    """
    entry = model_entry(config.model) if config.model else None
    kind = "" if entry is None else entry.kind
    encoder = entry is not None and entry.encoder != ""
    numbered = kind in ("features", "text") and not encoder
    single, names = config.head == "single", config.label_names
    for wrong, key, value, expected in (
        (config.dataset, "dataset", config.dataset, "none"),
        (not kind, "model", config.model, "the name of a network that suits the data"),
        (
            numbered and not config.features,
            "features",
            config.features,
            "the numbers in a sample, or in a word's vector",
        ),
        (not numbered and config.features, "features", config.features, "0"),
        (
            config.public_data and kind == "text" and not encoder,
            "public-data",
            config.public_data,
            "none with word vectors, which only clients have",
        ),
        (names and not single, "labels", config.labels, "none but with a single head"),
        (
            single and (len(names) < 2 or len({*names}) < len(names)),
            "labels",
            config.labels,
            "different names of all classes, for a single head to number them alike",
        ),
        (
            not single and config.classes_per_task < 2,
            "classes-per-task",
            config.classes_per_task,
            "at least 2, the most classes that any task has",
        ),
    ):
        if wrong:
            raise ConfigError(
                f"{key}: {value!r} is refused: expected {expected}, for scenario "
                f"{config.scenario}, whose clients have data of their own"
            )
