"""From a configuration to the objects of a run; both apps build through here."""

import os
from pathlib import Path
from typing import Any

import torch

from fcl_flower.algorithms import algorithm
from fcl_flower.config import RunConfig
from fcl_flower.contracts import Learner, Place, Strategy
from fcl_flower.data.draw import Incremental
from fcl_flower.data.featureset import FeatureSet
from fcl_flower.data.inputs import check_shape
from fcl_flower.data.scenarios import Scenario, build_scenario, scenario_entry
from fcl_flower.data.seriesset import SeriesSet
from fcl_flower.data.sources import load_source
from fcl_flower.data.word_vectors import WordVectors, word_vectors
from fcl_flower.demands import check_demands
from fcl_flower.errors import ConfigError
from fcl_flower.isolation import IsolatedLearner
from fcl_flower.models import TaskModel, build_model, check_kind, model_entry
from fcl_flower.own_run import check_settings, no_words, own_data
from fcl_flower.schedule import Schedule
from fcl_flower.tensors import snapshot
from fcl_flower.training import Training

_SUITS = {
    "images": "lenet",
    "series": "har-cnn",
    "features": "mlp",
    "text": "kim-cnn",
}
"""The model for each kind of data."""


def completed(config: RunConfig) -> RunConfig:
    """Return the configuration with what the user left to us.

    A data set and a scenario that suit the strategy, a model that suits the data, a
    batch size and a learning rate that suit the model, and a head, a number of rounds
    and of clients that suit the scenario.

    Raises:
        ConfigError: there is no such data set, scenario or network, the head or the
            concept ids do not suit the scenario, or something is left to us that only
            clients know.
    """
    method = algorithm(config.strategy)
    config = config.with_values(scenario=config.scenario or method.scenario)
    if own_data(config):
        check_settings(config)
    elif config.labels:
        raise ConfigError(
            f"labels: {config.labels!r} is refused: expected none, since the data sets "
            "name their classes"
        )
    else:
        config = config.with_values(dataset=config.dataset or method.dataset)
    kind = data_kind(config)
    scenario = config.scenario or ("text" if kind == "text" else "overlapped")
    name = config.model or _SUITS[kind]
    if not config.model and config.datasets == ("digits",):
        name = "small"
    check_kind(name, kind)
    network, plan = model_entry(name), scenario_entry(scenario)
    head = config.head or plan.head
    if plan.single and head != "single":
        raise ConfigError(
            f"head: {head!r} is refused: expected 'single' for scenario "
            f"{scenario}, {plan.single}"
        )
    if plan.hidden and config.mode == "asynchronous":
        raise ConfigError(
            f"mode: {config.mode!r} is refused: expected 'synchronous' for scenario "
            f"{scenario}, in which clients meet concepts by rounds"
        )
    if config.concept_ids and not (plan.hidden and config.stay):
        raise ConfigError(
            f"concept-ids: True is refused: expected it with hidden concepts that a "
            f"client meets one at a time, not with scenario {scenario} and stay "
            f"{config.stay}"
        )
    rounds = config.rounds or plan.rounds
    return config.with_values(
        scenario=scenario,
        model=name,
        features=_numbers(config, kind),
        head=head,
        clients=config.clients or plan.clients,
        classes_per_task=config.classes_per_task or len(config.label_names),
        rounds=rounds,
        evaluate_every=config.evaluate_every or max(1, rounds // 20) * plan.hidden,
        batch_size=config.batch_size or network.batch_size,
        learning_rate=config.learning_rate or network.learning_rate,
    )


def _numbers(config: RunConfig, kind: str) -> int:
    """Return how many numbers a sample is made of; 0 where it is not plain numbers.

    Raises:
        ConfigError: the data have another number of them than was given.
    """
    if own_data(config):
        return config.features
    source = load_source(config.datasets[0], data_root(config))
    found = source.train.x.shape[1] if kind == "features" else 0
    if config.features not in (0, found):
        raise ConfigError(
            f"features: {config.features} is refused: expected {found or 'none'}, as "
            f"{source.name!r} has {kind}"
        )
    return found


def input_shape(config: RunConfig) -> tuple[int, ...]:
    """Return the shape of one input of the model, of a completed configuration."""
    entry = model_entry(config.model)
    return (config.features,) if entry.kind == "features" else entry.input_shape


def checked(config: RunConfig) -> RunConfig:
    """Return the completed configuration; refuse now what would fail later.

    Raises:
        ConfigError: something in it is unknown, or does not go with the rest.
    """
    config = completed(config)
    algorithm(config.strategy).params(config.set)
    device(config)
    plan = scenario(config)
    network = model(config, plan)
    strategy(config).init(snapshot(network, network.shared_names()))
    learner(config, plan, client=0)
    return config


def data_kind(config: RunConfig) -> str:
    """Return ``images``, ``series``, ``features`` or ``text``: what is learned from.

    Raises:
        ConfigError: a data set is missing, or kinds are mixed.
    """
    if own_data(config):
        return model_entry(config.model).kind
    root = data_root(config)
    kinds = {load_source(name, root).kind for name in config.sources}
    if len(kinds) > 1:
        raise ConfigError(
            f"dataset: {','.join(config.sources)!r} is refused: expected data sets of "
            f"one kind, not {' and '.join(sorted(kinds))}"
        )
    return kinds.pop()


def data_root(config: RunConfig) -> Path:
    """Return the folder with data sets: the setting, ``$FCL_DATA`` or ``./data``."""
    return Path(config.data_root or os.environ.get("FCL_DATA") or "data").absolute()


def scenario(config: RunConfig) -> Scenario:
    """Return who learns what in which order.

    Raises:
        ConfigError: a data set is missing or the scenario cannot be cut from it.
    """
    config = completed(config)
    return build_scenario(
        config.scenario,
        datasets=config.datasets,
        data_root=data_root(config),
        clients=config.clients,
        tasks=config.tasks,
        classes_per_task=config.classes_per_task or None,
        valid_fraction=config.valid_fraction,
        window=config.window,
        stay=config.stay,
        incremental=Incremental.of(config),
        seed=config.seed,
    )


def vectors(config: RunConfig) -> WordVectors | None:
    """Return the word vectors, the same on the server and on every client.

    None for what is not text. Where clients have texts of their own, these are vectors
    of no word.

    Raises:
        ConfigError: their file cannot be read, or one is given for other data.
    """
    config = completed(config)
    kind = data_kind(config)
    if kind == "text":
        if own_data(config):
            return no_words(config)
        return word_vectors(
            config.sources, data_root(config), config.word_vectors, config.seed
        )
    if config.word_vectors:
        raise ConfigError(
            f"word-vectors: {config.word_vectors!r} is refused: expected none, since "
            f"{config.dataset or config.model!r} is for {kind}"
        )
    return None


def model(
    config: RunConfig, plan: Scenario, words: WordVectors | None = None
) -> TaskModel:
    """Return the initial network, the same on the server and on every client.

    Args:
        config: of the run.
        plan: the scenario.
        words: vectors of a client's own words; None for those of the run.

    Raises:
        ConfigError: there is no network of that name, or it does not suit the data.
    """
    config = completed(config)
    single = config.head == "single"
    words = words or vectors(config)
    for name in config.sources:
        source = load_source(name, data_root(config))
        if isinstance(source, SeriesSet | FeatureSet):
            check_shape(source, input_shape(config))
    return build_model(
        config.model,
        tasks=config.tasks,
        classes=(len(config.label_names) or plan.num_labels)
        if single
        else plan.classes_per_task,
        single_head=single,
        seed=config.seed,
        table=None if words is None else words.table,
        numbers=config.features if data_kind(config) == "features" else 0,
    )


def schedule(config: RunConfig) -> Schedule:
    """Return which rounds belong to which task, who takes part, and who is tested.

    Raises:
        ConfigError: clients are told their concepts, but the scenario cannot be cut.
    """
    config = completed(config)
    hidden = scenario_entry(config.scenario).hidden
    stream = scenario(config).stream if config.concept_ids else None
    return Schedule(
        clients=config.clients,
        tasks=1 if hidden else config.tasks,
        rounds_per_task=config.rounds,
        fraction=config.fraction,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        concepts=config.tasks if hidden else 0,
        told=None if stream is None else stream.only,
    )


def strategy(config: RunConfig) -> Strategy[Any]:
    """Return the server half; of an isolated run, one that sends nothing.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or refused.
    """
    name = "local" if config.isolated else config.strategy
    text = "" if config.isolated else config.set
    half = algorithm(name)
    made = half.load_strategy()(half.params(text)[0], config.seed)
    if config.mode == "asynchronous" and not made.averaged:
        raise ConfigError(
            f"mode: {config.mode!r} is refused: expected 'synchronous' for "
            f"{config.strategy}, which looks at all updates of a round together"
        )
    return made


def learner(
    config: RunConfig, plan: Scenario, client: int, words: WordVectors | None = None
) -> Learner[Any]:
    """Return the client half for one client.

    Args:
        config: of the run.
        plan: the scenario.
        client: its number, counted from 0.
        words: vectors of the client's own words; None for those of the run.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or refused, or the run
            is not what the algorithm needs.
    """
    torch.set_num_threads(config.threads)
    config = completed(config)
    halves = algorithm(config.strategy)
    of_server, of_client = halves.params(config.set)
    half = halves.load_learner()
    check_demands(half, config, plan)
    place = Place(
        client=client,
        seed=config.seed,
        training=Training(
            epochs=config.epochs,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            patience=config.patience,
            stop_after=config.stop_after,
        ),
        device=device(config),
    )
    network = model(config, plan, words).to(place.device)
    made = half(of_client, network, place)
    if not config.isolated:
        return made
    server = halves.load_strategy()(of_server, config.seed)
    return IsolatedLearner(made, server)


def device(config: RunConfig) -> str:
    """Return the torch device of a client.

    Raises:
        ConfigError: the wanted accelerator is not there.
    """
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device: {config.device!r} is refused: expected auto, cpu or a device "
            f"that torch finds here"
        ) from error
    return config.device
