"""From a resolved run to its objects; both apps build through here."""

from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fcl_flower.algorithms.base import (
    ClassPlan,
    ClientContext,
    ClientLearner,
    ModelShape,
    ServerContext,
    ServerStrategy,
    SumsUpdates,
    adds_up,
)
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import Algorithm, algorithm
from fcl_flower.core.errors import refuse, unknown
from fcl_flower.core.schedule import Schedule, derive
from fcl_flower.data.arrays import TabularDataset, TimeSeriesDataset
from fcl_flower.data.examples import InputSpec, PublicExamples, public_examples
from fcl_flower.data.inputs import check_shape
from fcl_flower.data.local.client import LocalDataSpec, load_public_file
from fcl_flower.data.local.formats import ENDINGS
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.registry import Scenario, draw_scenario
from fcl_flower.data.texts import EncoderTokenizer, encoder_tokenizer
from fcl_flower.data.word_vectors import WordVectors, word_vectors
from fcl_flower.models.build import create_model, seeded
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.results.trackers import TRACKERS
from fcl_flower.setup.checks import check_classes_known, check_single_head
from fcl_flower.setup.policy import build_aggregation, check_attack
from fcl_flower.setup.privacy import check_examples_apart, check_privacy
from fcl_flower.setup.resolved_run import ResolvedRun
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import snapshot


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


def validate(run: ResolvedRun) -> None:
    """Build all that a run needs, to refuse now what would fail later.

    Raises:
        ConfigError: something in the configuration does not go with the rest.
    """
    find_device(run.config.training.device)
    for name in run.config.run.trackers:
        if name not in TRACKERS:
            raise unknown("run.track", name, sorted(TRACKERS))
    plan = build_scenario(run)
    network = build_model(run, plan)
    build_strategy(run, network).init(snapshot(network, network.shared_names()))
    build_learner(run, plan, client=0)


def build_scenario(run: ResolvedRun) -> Scenario:
    """Return who learns what in which order.

    Raises:
        ConfigError: a data set is missing or the scenario cannot be cut from it.
    """
    section, data = run.config.scenario, run.config.data
    return draw_scenario(
        section.name,
        datasets=data.names,
        data_root=run.data_root,
        clients=section.clients,
        tasks=section.tasks,
        classes_per_task=section.classes_per_task or None,
        valid_fraction=section.valid_fraction,
        seed=run.config.run.seed,
        params=run.scenario_params,
        max_train_per_class=section.max_train_per_class,
        max_test_per_class=section.max_test_per_class,
        public_fraction=data.public_fraction,
        public_dataset=data.public_dataset,
    )


def build_word_vectors(run: ResolvedRun) -> WordVectors | None:
    """Return the word vectors, the same on the server and on every client.

    None for what is not text, or is read by a pre-trained encoder. With local texts
    these are vectors of no word: only their width is known.

    Raises:
        ConfigError: their file cannot be read.
    """
    if run.modality != "text" or run.model.encoder:
        return None
    data = run.config.data
    if run.scenario.local_data:
        width = run.config.model.num_features
        origin = f"each client's own file, {width} dimensions"
        none = np.zeros((1, width), np.float32)
        return WordVectors(MappingProxyType({}), none, origin)
    return word_vectors(
        data.all_names, run.data_root, data.word_vectors, run.config.run.seed
    )


def build_tokenizer(run: ResolvedRun) -> EncoderTokenizer | None:
    """Return the tokenizer of a pre-trained encoder of texts; None without one.

    Raises:
        ConfigError: there is no such encoder.
    """
    params = run.model_params
    if isinstance(params, EncoderParams) and run.modality == "text":
        return encoder_tokenizer(params.encoder, params.max_tokens)
    return None


def build_model(
    run: ResolvedRun, plan: Scenario, words: WordVectors | None = None
) -> MultiHeadModel:
    """Return the initial network, the same on the server and on every client.

    Args:
        run: resolved.
        plan: the scenario.
        words: vectors of a client's own words; None for those of the run.

    Raises:
        ConfigError: the network does not suit the data.
    """
    config = run.config
    single = config.model.head == "single"
    words = words or build_word_vectors(run)
    for name in config.data.all_names:
        source = load_dataset(name, run.data_root)
        if isinstance(source, TimeSeriesDataset | TabularDataset):
            check_shape(source, run.input_shape)
    model = create_model(
        config.model.name,
        params=run.model_params,
        tasks=config.scenario.tasks,
        classes=(len(config.data.classes) or plan.num_labels)
        if single
        else plan.classes_per_task,
        single_head=single,
        seed=config.run.seed,
        table=None if words is None else words.table,
        columns=config.model.num_features if run.modality == "tabular" else 0,
    )
    with seeded(derive(config.run.seed, "heads")):
        run.algorithm.load_client().replace_heads(model, run.params)
    return model


def build_schedule(run: ResolvedRun, plan: Scenario) -> Schedule:
    """Return which rounds belong to which task, who takes part, and who is tested."""
    config, hidden = run.config, run.scenario.hidden
    stream = None if run.hidden_tasks else plan.stream
    return Schedule(
        clients=config.scenario.clients,
        tasks=1 if hidden else config.scenario.tasks,
        rounds_per_task=config.federation.rounds_per_task,
        fraction=config.federation.client_fraction,
        seed=config.run.seed,
        evaluate_every=config.federation.evaluate_every,
        concepts=config.scenario.tasks if hidden else 0,
        concept_at=None if stream is None else stream.concept_at,
        scores=config.privacy.scores,
    )


def build_strategy(
    run: ResolvedRun, network: MultiHeadModel | None = None
) -> ServerStrategy[Any]:
    """Build the server side; of a local-only run, one that sends nothing.

    Args:
        run: resolved.
        network: of `build_model`; None to build it.

    Raises:
        ConfigError: the run is asynchronous, and the algorithm needs rounds; or the
            run is not what the algorithm needs, combines updates in a way that the
            algorithm does not, adds them up under masks where it needs more than their
            sum, or is private where it cannot be.
    """
    if run.config.strategy.local_only:
        silent = algorithm("local")
        made = silent.load_server()(
            silent.params_type(), ServerContext(run.config.run.seed)
        )
    else:
        made = _server_side(run, network)
    check_privacy(run, made)
    needs_rounds = not (made.kinds("mean") or adds_up(made))
    if run.config.asynchronous.enabled and needs_rounds:
        raise refuse(
            "asynchronous.enabled",
            True,
            f"false for {run.config.strategy.name}, which looks at all updates of a "
            "round together",
        )
    check_attack(run, made)
    made.aggregation = build_aggregation(run, made)
    if run.config.federation.secure_aggregation:
        if not isinstance(made, SumsUpdates):
            raise refuse(
                "federation.secure_aggregation",
                True,
                f"false for {run.config.title}, whose server needs other things than "
                "sums over the clients of a round",
            )
        made.check_summable()
    return made


def build_network(
    run: ResolvedRun, plan: Scenario, words: WordVectors | None = None
) -> MultiHeadModel:
    """Return the initial network of `build_model` on the run's device.

    Raises:
        ConfigError: the network does not suit the data, or the device is not there.
    """
    check_single_head(run, plan)
    device = find_device(run.config.training.device)
    return build_model(run, plan, words).to(device)


def build_learner(
    run: ResolvedRun,
    plan: Scenario,
    client: int,
    network: MultiHeadModel | None = None,
) -> ClientLearner[Any]:
    """Return the client side for one client.

    Args:
        run: resolved.
        plan: the scenario.
        client: its number, counted from 0.
        network: of `build_network`, its own to change; None to build it.

    Raises:
        ConfigError: the run is not what the algorithm needs.
    """
    torch.set_num_threads(run.config.training.threads)
    network = network or build_network(run, plan)
    context = ClientContext(
        client=client,
        seed=run.config.run.seed,
        training=build_training(run, network.smallest_batch),
        device=find_device(run.config.training.device),
        privacy=run.config.privacy,
        hidden_tasks=run.hidden_tasks,
    )
    check_examples_apart(run, network)
    made = run.algorithm.load_client()(run.params, network, context)
    if not run.config.strategy.local_only:
        return made
    return LocalOnlyLearner(made, _server_side(run, network))


def build_trainer(run: ResolvedRun) -> ServerTrainer:
    """Return what trains on the server, with the public data that there are.

    Raises:
        ConfigError: the run is not what the algorithm needs.
    """
    plan = build_scenario(run)
    check_single_head(run, plan)
    words = build_tokenizer(run) or build_word_vectors(run)
    spec = InputSpec(run.data_root, run.input_shape, True, words)
    device = find_device(run.config.training.device)
    path = run.config.data.public_path
    public = (
        load_public_file(Path(path), build_local_data_spec(run), words)
        if path
        else public_examples(plan, spec)
    )
    here = PublicExamples(*(part.to(device) for part in public))
    network = build_model(run, plan).to(device)
    make = run.algorithm.load_trainer()
    training = build_training(run, network.smallest_batch)
    return make(network, here, training, run.config.run.seed)


def build_training(run: ResolvedRun, smallest_batch: int = 1) -> Training:
    """Return how all that is trained is trained.

    Args:
        run: resolved.
        smallest_batch: of the network that is trained.

    Raises:
        ConfigError: a step has fewer examples than that.
    """
    section = run.config.training
    if section.batch_size < smallest_batch:
        raise refuse(
            "training.batch_size",
            section.batch_size,
            f"at least {smallest_batch} for model {run.config.model.name}, which "
            "normalises by the statistics of a batch",
        )
    return Training(
        epochs=section.epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        lr_patience=section.lr_patience,
        early_stopping_patience=section.early_stopping_patience,
        optimizer=OptimizerChoice(
            section.optimizer, section.momentum, section.weight_decay
        ),
        precision=section.precision,
        smallest_batch=smallest_batch,
    )


def build_local_data_spec(run: ResolvedRun) -> LocalDataSpec:
    """Return what a run expects of a client's local data."""
    datasets = {one.modality: one for one in ENDINGS}
    config, modality = run.config, run.model.modality
    return LocalDataSpec(
        dataset_type=datasets[modality],
        input_shape=run.input_shape,
        width=config.model.num_features if modality == "text" else 0,
        classes=config.scenario.classes_per_task,
        labels=config.data.classes,
        valid_fraction=config.scenario.valid_fraction,
        seed=config.run.seed,
        max_train_per_class=config.scenario.max_train_per_class,
        max_test_per_class=config.scenario.max_test_per_class,
    )


def _server_side(
    run: ResolvedRun, network: MultiHeadModel | None
) -> ServerStrategy[Any]:
    make = run.algorithm.load_server()
    network = network or build_model(run, build_scenario(run))
    context = ServerContext(
        seed=run.config.run.seed,
        model=ModelShape(network.features, network.classes, network.single_head),
        classes=_class_plan(run) if make.needs_classes else ClassPlan(),
        trainer=partial(build_trainer, run),
    )
    return make(run.params, context)


def _class_plan(run: ResolvedRun) -> ClassPlan:
    plan = build_scenario(run)
    check_classes_known(run, plan)
    tasks = range(plan.num_tasks)
    return ClassPlan(
        until=tuple(
            plan.labels_until(plan.num_tasks if plan.stream else task) for task in tasks
        ),
        names=tuple(
            load_dataset(name, run.data_root).class_names[label]
            for name, label in plan.labels
        ),
    )


def limited_threads(algorithm: Algorithm, threads: int) -> threadpool_limits:
    """Limit the threads of all libraries in this process, from now on.

    Args:
        algorithm: both its sides are imported first, and with them what they compute
            with.
        threads: at most so many for each library, at least 1.

    Returns:
        A context at whose end all have as many as before.
    """
    algorithm.load_server()
    algorithm.load_client()
    return threadpool_limits(threads)
