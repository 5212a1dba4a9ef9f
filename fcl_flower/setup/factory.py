"""From a configuration to the objects of a run; both apps build through here."""

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fcl_flower.algorithms.base import ClientContext, ClientLearner, ServerStrategy
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.parsing import settings
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.datasets.arrays import TabularDataset, TimeSeriesDataset
from fcl_flower.data.datasets.registry import load_dataset
from fcl_flower.data.examples import InputSpec, PublicExamples, public_examples
from fcl_flower.data.inputs import check_shape
from fcl_flower.data.local.files import ENDINGS
from fcl_flower.data.local.public import load_public_file
from fcl_flower.data.local.task import LocalDataSpec
from fcl_flower.data.scenarios.registry import Scenario, draw_scenario, scenario_entry
from fcl_flower.data.scenarios.spec import Incremental
from fcl_flower.data.text.tokenizers import EncoderTokenizer
from fcl_flower.data.text.tokenizers import tokens as encoder_tokens
from fcl_flower.data.text.word_vectors import WordVectors, word_vectors
from fcl_flower.models.registry import MultiHeadModel, create_model, model_entry
from fcl_flower.models.transformer.pretrained import EncoderSettings
from fcl_flower.setup.compatibility import check_compatibility, has_local_data
from fcl_flower.setup.resolve import data_kind, data_root, input_shape, resolve
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot

if TYPE_CHECKING:
    from fcl_flower.training.server_trainer import ServerTrainer


def validate(config: RunConfig) -> RunConfig:
    """Return the completed configuration; refuse now what would fail later.

    Raises:
        ConfigError: something in it is unknown, or does not go with the rest.
    """
    config = resolve(config)
    algorithm(config.strategy).params(settings(config.set))
    device(config)
    plan = build_scenario(config)
    network = build_model(config, plan)
    build_strategy(config).init(snapshot(network, network.shared_names()))
    build_learner(config, plan, client=0)
    return config


def build_scenario(config: RunConfig) -> Scenario:
    """Return who learns what in which order.

    Raises:
        ConfigError: a data set is missing or the scenario cannot be cut from it.
    """
    config = resolve(config)
    return draw_scenario(
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


def build_word_vectors(config: RunConfig) -> WordVectors | None:
    """Return the word vectors, the same on the server and on every client.

    None for what is not text, or is read by a pre-trained encoder. Where clients have
    texts of their own, these are vectors of no word.

    Raises:
        ConfigError: their file cannot be read, or one is given for other data.
    """
    config = resolve(config)
    kind = data_kind(config)
    encoder = model_entry(config.model).encoder
    if kind == "text" and not encoder:
        if has_local_data(config):
            return empty_vectors(config)
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


def build_tokenizer(config: RunConfig) -> EncoderTokenizer | None:
    """Return what numbers texts for the encoder of a completed configuration.

    None where there is no encoder, or none of texts.

    Raises:
        ConfigError: there is no such encoder.
    """
    entry = model_entry(config.model)
    if entry.encoder and entry.kind == "text":
        return encoder_tokens(config.backbone, config.max_tokens)
    return None


def build_model(
    config: RunConfig, plan: Scenario, words: WordVectors | None = None
) -> MultiHeadModel:
    """Return the initial network, the same on the server and on every client.

    Args:
        config: of the run.
        plan: the scenario.
        words: vectors of a client's own words; None for those of the run.

    Raises:
        ConfigError: there is no network of that name, or it does not suit the data.
    """
    config = resolve(config)
    single = config.head == "single"
    words = words or build_word_vectors(config)
    for name in config.sources:
        source = load_dataset(name, data_root(config))
        if isinstance(source, TimeSeriesDataset | TabularDataset):
            check_shape(source, input_shape(config))
    return create_model(
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


def build_schedule(config: RunConfig) -> Schedule:
    """Return which rounds belong to which task, who takes part, and who is tested.

    Raises:
        ConfigError: clients are told their concepts, but the scenario cannot be cut.
    """
    config = resolve(config)
    hidden = scenario_entry(config.scenario).hidden
    stream = build_scenario(config).stream if config.concept_ids else None
    return Schedule(
        clients=config.clients,
        tasks=1 if hidden else config.tasks,
        rounds_per_task=config.rounds,
        fraction=config.fraction,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        concepts=config.tasks if hidden else 0,
        told=None if stream is None else stream.single_concept,
    )


def build_strategy(config: RunConfig) -> ServerStrategy[Any]:
    """Return the server half; of an isolated run, one that sends nothing.

    Raises:
        ConfigError: the name or a hyper-parameter is unknown or refused.
    """
    name = "local" if config.local_only else config.strategy
    text = "" if config.local_only else config.set
    half = algorithm(name)
    made = half.load_server()(half.params(settings(text)), config.seed)
    if config.mode == "asynchronous" and not made.averaged_groups:
        raise ConfigError(
            f"mode: {config.mode!r} is refused: expected 'synchronous' for "
            f"{config.strategy}, which looks at all updates of a round together"
        )
    if made.needs_public_data:
        made.trainer = trainer(config)
    return made


def trainer(config: RunConfig) -> "ServerTrainer":
    """Return where the server half trains, with the public data that there are.

    Raises:
        ConfigError: the run is not what the algorithm needs.
    """
    config = resolve(config)
    plan = build_scenario(config)
    check_compatibility(algorithm(config.strategy).load_client(), config, plan)
    words = build_tokenizer(config) or build_word_vectors(config)
    form = InputSpec(data_root(config), input_shape(config), True, words)
    place = device(config)
    public = (
        load_public_file(
            Path(config.public_data), local_data_spec(config, form.input_shape), words
        )
        if config.public_data
        else public_examples(plan, form)
    )
    here = PublicExamples(*(part.to(place) for part in public))
    network = build_model(config, plan).to(place)
    make = algorithm(config.strategy).load_trainer()
    return make(network, here, training(config), config.seed)


def build_learner(
    config: RunConfig, plan: Scenario, client: int, words: WordVectors | None = None
) -> ClientLearner[Any]:
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
    config = resolve(config)
    halves = algorithm(config.strategy)
    params = halves.params(settings(config.set))
    half = halves.load_client()
    check_compatibility(half, config, plan)
    place = ClientContext(
        client=client,
        seed=config.seed,
        training=training(config),
        device=device(config),
    )
    network = build_model(config, plan, words).to(place.device)
    made = half(params, network, place)
    if not config.local_only:
        return made
    server = halves.load_server()(params, config.seed)
    if server.needs_public_data:
        server.trainer = trainer(config)
    return LocalOnlyLearner(made, server)


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


def local_data_spec(config: RunConfig, input_shape: tuple[int, ...]) -> LocalDataSpec:
    """Return what a run, completed, expects of a client's data.

    Args:
        config: of the run.
        input_shape: of its model.
    """
    kinds = {kind.kind: kind for kind in ENDINGS}
    kind = model_entry(config.model).kind
    return LocalDataSpec(
        kind=kinds[kind],
        input_shape=input_shape,
        width=config.features if kind == "text" else 0,
        classes=config.classes_per_task,
        labels=config.label_names,
        valid_fraction=config.valid_fraction,
        seed=config.seed,
    )


def empty_vectors(config: RunConfig) -> WordVectors:
    """Return vectors of no word: all that the server needs is how wide they are."""
    table = np.zeros((1, config.features), np.float32)
    origin = f"each client's own file, {config.features} dimensions"
    return WordVectors(MappingProxyType({}), table, origin)
