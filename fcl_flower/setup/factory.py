"""From a configuration to the objects of a run; both apps build through here."""

from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fcl_flower.algorithms.base import Learner, Place, Strategy
from fcl_flower.algorithms.local_only import IsolatedLearner
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.datasets.arrays import FeatureSet, SeriesSet
from fcl_flower.data.datasets.registry import load_source
from fcl_flower.data.examples import Form, PublicExamples, public_examples
from fcl_flower.data.inputs import check_shape
from fcl_flower.data.local.files import ENDINGS
from fcl_flower.data.local.public import own_public
from fcl_flower.data.local.task import Wanted
from fcl_flower.data.scenarios.registry import Scenario, build_scenario, scenario_entry
from fcl_flower.data.scenarios.spec import Incremental
from fcl_flower.data.text.tokenizers import Tokens
from fcl_flower.data.text.tokenizers import tokens as encoder_tokens
from fcl_flower.data.text.word_vectors import WordVectors, word_vectors
from fcl_flower.models.registry import TaskModel, build_model, model_entry
from fcl_flower.models.transformer.pretrained import EncoderSettings
from fcl_flower.setup.compatibility import check_demands, own_data
from fcl_flower.setup.resolve import completed, data_kind, data_root, input_shape
from fcl_flower.training.loop import Training
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import snapshot


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

    None for what is not text, or is read by a pre-trained encoder. Where clients have
    texts of their own, these are vectors of no word.

    Raises:
        ConfigError: their file cannot be read, or one is given for other data.
    """
    config = completed(config)
    kind = data_kind(config)
    encoder = model_entry(config.model).encoder
    if kind == "text" and not encoder:
        if own_data(config):
            return no_words(config)
        return word_vectors(
            config.sources, data_root(config), config.word_vectors, config.seed
        )
    if config.word_vectors:
        raise ConfigError(
            f"word-vectors: {config.word_vectors!r} is refused: expected none, since "
            + (
                f"{config.model} has tokens of its own"
                if encoder
                else f"{config.dataset or config.model!r} is for {kind}"
            )
        )
    return None


def tokens(config: RunConfig) -> Tokens | None:
    """Return what numbers texts for the encoder of a completed configuration.

    None where there is no encoder, or none of texts.

    Raises:
        ConfigError: there is no such encoder.
    """
    entry = model_entry(config.model)
    if entry.encoder and entry.kind == "text":
        return encoder_tokens(config.backbone, config.max_tokens)
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
        encoder=EncoderSettings(
            config.backbone,
            config.bottleneck,
            config.placement,
            config.enhanced_blocks,
            config.encoder_precision,
        ),
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
    if made.trains:
        made.bench = bench(config)
    return made


def bench(config: RunConfig) -> ServerTrainer:
    """Return where the server half trains, with the public data that there are.

    Raises:
        ConfigError: the run is not what the algorithm needs.
    """
    config = completed(config)
    plan = scenario(config)
    check_demands(algorithm(config.strategy).load_learner(), config, plan)
    words = tokens(config) or vectors(config)
    form = Form(data_root(config), input_shape(config), True, words)
    place = device(config)
    public = (
        own_public(Path(config.public_data), wanted(config, form.input_shape), words)
        if config.public_data
        else public_examples(plan, form)
    )
    here = PublicExamples(*(part.to(place) for part in public))
    network = model(config, plan).to(place)
    return ServerTrainer(network, here, training(config), config.seed)


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
        training=training(config),
        device=device(config),
    )
    network = model(config, plan, words).to(place.device)
    made = half(of_client, network, place)
    if not config.isolated:
        return made
    server = halves.load_strategy()(of_server, config.seed)
    if server.trains:
        server.bench = bench(config)
    return IsolatedLearner(made, server)


def training(config: RunConfig) -> Training:
    """Return how whoever trains does it, of a completed configuration."""
    return Training(
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        patience=config.patience,
        stop_after=config.stop_after,
    )


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


def wanted(config: RunConfig, input_shape: tuple[int, ...]) -> Wanted:
    """Return what a run, completed, expects of a client's data.

    Args:
        config: of the run.
        input_shape: of its model.
    """
    kinds = {kind.kind: kind for kind in ENDINGS}
    kind = model_entry(config.model).kind
    return Wanted(
        kind=kinds[kind],
        input_shape=input_shape,
        width=config.features if kind == "text" else 0,
        classes=config.classes_per_task,
        labels=config.label_names,
        valid_fraction=config.valid_fraction,
        seed=config.seed,
    )


def no_words(config: RunConfig) -> WordVectors:
    """Return vectors of no word: all that the server needs is how wide they are."""
    table = np.zeros((1, config.features), np.float32)
    origin = f"each client's own file, {config.features} dimensions"
    return WordVectors(MappingProxyType({}), table, origin)
