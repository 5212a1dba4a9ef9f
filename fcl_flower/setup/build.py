"""The objects of a run, built from its specification on both sides."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import (
    ClassPlan,
    ClientContext,
    ClientLearner,
    ModelShape,
    Params,
    ServerContext,
    ServerStrategy,
)
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import config_error, unknown_name
from fcl_flower.core.schedule import Schedule, derive
from fcl_flower.data.arrays import TabularDataset, TimeSeriesDataset
from fcl_flower.data.examples import (
    InputSpec,
    PublicExamples,
    check_shape,
    public_examples,
)
from fcl_flower.data.instructions import ChatTokenizer, chat_tokenizer
from fcl_flower.data.local.client import LocalDataSpec, load_public_file
from fcl_flower.data.local.formats import ENDINGS
from fcl_flower.data.scenarios.registry import Scenario, draw_scenario
from fcl_flower.data.texts import EncoderTokenizer, encoder_tokenizer
from fcl_flower.data.transforms import Transform, augmentation
from fcl_flower.data.word_vectors import WordVectors, find_vectors, word_vectors
from fcl_flower.models.build import create_model, seeded
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.normalisation import (
    FIXED,
    PIXELS,
    Normalisation,
    own_normalisation,
)
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.results.trackers import TRACKERS
from fcl_flower.setup.checks import check_network, check_parameters
from fcl_flower.setup.entries import Entries
from fcl_flower.training.loop import Training
from fcl_flower.training.optimizers import OptimizerChoice
from fcl_flower.training.rates import RateSchedule
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import snapshot


class Built(Entries):
    """The objects of a run.

    A property makes its object once and keeps it, since it never changes. Models,
    strategies and learners are new in each call, since callers change them.
    """

    @cached_property
    def scenario(self) -> Scenario:
        """The plan of clients, tasks and their order."""
        return draw_scenario(self.config, self.data_root, self.scenario_params)

    @property
    def balances_scores(self) -> bool:
        """Whether clients also report balanced accuracies."""
        if self.spec.modality == "instructions":
            return False
        return self.spec.local_data or self.scenario.unbalanced

    @cached_property
    def word_vectors(self) -> WordVectors | None:
        """Word vectors, the same on the server and on every client.

        None for other data, and for texts that a pre-trained encoder reads. With local
        texts the table has no word, only a width.
        """
        if self.spec.modality != "text" or self.model_entry.encoder:
            return None
        if self.spec.local_data:
            width = self.config.model.num_features
            origin = f"each client's own file, {width} dimensions"
            none = np.zeros((1, width), np.float32)
            return WordVectors(MappingProxyType({}), none, origin)
        file = self.config.data.word_vectors
        return word_vectors(
            tuple(self.scenario.sources.values()),
            find_vectors(file, self.data_root) if file else None,
            self.config.run.seed,
        )

    @cached_property
    def tokenizer(self) -> EncoderTokenizer | ChatTokenizer | None:
        """The tokenizer of a pre-trained model of texts; None without such a model."""
        params = self.model_params
        if not isinstance(params, EncoderParams):
            return None
        if self.spec.modality == "text":
            return encoder_tokenizer(params.encoder, params.max_tokens)
        if self.spec.modality == "instructions":
            return chat_tokenizer(params.encoder, params.max_tokens)
        return None

    @cached_property
    def inputs(self) -> InputSpec:
        """The form in which the network takes samples."""
        words = self.tokenizer or self.word_vectors
        single = self.config.model.head == "single"
        shape, normalisation = self.spec.input_shape, self.normalisation
        return InputSpec(shape, single, words, normalisation)

    @cached_property
    def normalisation(self) -> Normalisation:
        """The standardization of pixels before the network."""
        if self.spec.modality != "images":
            return FIXED
        return self._named_normalisation or self.model().normalisation

    @property
    def _named_normalisation(self) -> Normalisation | None:
        """The normalisation of the settings; None for the network's own.

        With ``data`` the server finds it before the first round. Until then pixels stay
        as they are.
        """
        section = self.config.data
        if statistics := section.pixel_statistics:
            return Normalisation(*statistics)
        return {"fixed": FIXED, "data": PIXELS}.get(section.normalise)

    @cached_property
    def augment(self) -> Transform | None:
        """The augmentation of inputs before a training step; None for none."""
        names = self.config.training.transforms
        images = self.spec.modality == "images"
        normalisation = self.normalisation if images else None
        return augmentation(names, normalisation) if names else None

    @cached_property
    def local_data(self) -> LocalDataSpec:
        """The form of local data that the run expects."""
        datasets = {kind.modality: kind for kind in ENDINGS}
        config, modality = self.config, self.spec.modality
        return LocalDataSpec(
            dataset_type=datasets[modality],
            input_shape=self.spec.input_shape,
            width=config.model.num_features if modality == "text" else 0,
            classes=config.scenario.classes_per_task,
            labels=config.data.classes,
            valid_fraction=config.scenario.valid_fraction,
            seed=config.run.seed,
            max_train_per_class=config.scenario.max_train_per_class,
            max_test_per_class=config.scenario.max_test_per_class,
            places=config.model.places if self.spec.names_classes else 0,
            normalisation=self.normalisation,
            look_alikes=config.data.labels,
            columns=config.data.column_names,
        )

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule: rounds of each task, participants, and tests."""
        config, hidden = self.config, self.scenario_entry.hidden
        stream = None if self.spec.hidden_tasks else self.scenario.stream
        return Schedule(
            clients=config.scenario.clients,
            tasks=self.spec.tasks,
            rounds_per_task=config.federation.rounds_per_task,
            fraction=config.federation.client_fraction,
            seed=config.run.seed,
            evaluate_every=config.federation.evaluate_every,
            concepts=config.scenario.tasks if hidden else 0,
            concept_at=None if stream is None else stream.concept_at,
            scores=config.privacy.scores,
            rounds_by_task=config.federation.listed_rounds,
            joined=config.scenario.joined_after,
            sat_out=config.scenario.tasks_sat_out,
        )

    @property
    def device(self) -> str:
        """The torch device of the run."""
        return find_device(self.config.training.device)

    def model(self, words: WordVectors | None = None) -> MultiHeadModel:
        """Make the initial network, the same on the server and on every client.

        ``words`` has vectors of a client's own words; None takes those of the run.
        """
        config, plan = self.config, self.scenario
        single = config.model.head == "single"
        words = words or self.word_vectors
        for source in plan.sources.values():
            if isinstance(source, TimeSeriesDataset | TabularDataset):
                check_shape(source, self.spec.input_shape)
        tabular = self.spec.modality == "tabular"
        model = create_model(
            config.model.name,
            params=self.model_params,
            tasks=config.scenario.tasks,
            classes=self._labels() if single else plan.classes_per_task,
            single_head=single,
            seed=config.run.seed,
            table=None if words is None else words.table,
            columns=config.model.num_features if tabular else 0,
        )
        named = self._named_normalisation
        model.normalisation = named or own_normalisation(model.body)
        with seeded(derive(config.run.seed, "heads")):
            self.algorithm.load_client().replace_heads(model, self.params)
        return model

    def labels_until(self, task: int) -> Sequence[int]:
        """List the places of a growing head that have a class after a task."""
        if self.spec.names_classes:
            return range(len(self.config.data.classes))
        return self.scenario.labels_until(task)

    def _labels(self) -> int:
        """Count the places of a single head."""
        if self.spec.names_classes:
            return self.config.model.places
        return len(self.config.data.classes) or self.scenario.num_labels

    def network(self, words: WordVectors | None = None) -> MultiHeadModel:
        """Make the `model` on the run's device."""
        return self.model(words).to(self.device)

    def training(self, smallest_batch: int = 1) -> Training:
        """Collect the settings of training, in steps of ``smallest_batch`` examples."""
        section = self.config.training
        return Training(
            epochs=section.epochs,
            batch_size=section.batch_size,
            learning_rate=section.learning_rate,
            lr_patience=section.lr_patience,
            early_stopping_patience=section.early_stopping_patience,
            optimizer=OptimizerChoice(
                section.optimizer,
                section.momentum,
                section.weight_decay,
                section.nesterov,
            ),
            balance=section.balance,
            precision=section.precision,
            smallest_batch=smallest_batch,
            schedule=self._rate_schedule(),
        )

    def _rate_schedule(self) -> RateSchedule | None:
        section = self.config.training
        if not section.lr_schedule:
            return None
        steps, factor = section.step_places, section.lr_factor
        return RateSchedule(section.lr_schedule, self.schedule, steps, factor)

    def strategy(self, network: MultiHeadModel | None = None) -> ServerStrategy[Any]:
        """Make the server side; in a local-only run it sends nothing.

        The strategy gets the shape of ``network``; None makes a `model` for it.
        """
        if self.config.strategy.local_only:
            strategy = self.server(Params(), ServerContext(self.config.run.seed))
        else:
            strategy = self._server_side(network)
        check_parameters(self, strategy)
        section = self.config.federation
        strategy.aggregation = Aggregation(
            section.aggregation,
            section.hostile_fraction,
            section.clip_to_median,
            section.weighting,
            section.examples_limit,
        )
        return strategy

    def learner(
        self, client: int, network: MultiHeadModel | None = None
    ) -> ClientLearner[Any]:
        """Make the client side of one client; it may change ``network``."""
        torch.set_num_threads(self.config.training.threads)
        network = network or self.network()
        check_network(self, network)
        context = ClientContext(
            client=client,
            seed=self.config.run.seed,
            training=self.training(network.smallest_batch),
            device=self.device,
            privacy=self.config.privacy,
            hidden_tasks=self.spec.hidden_tasks,
            augment=self.augment,
        )
        learner = self.algorithm.load_client()(self.params, network, context)
        if not self.config.strategy.local_only:
            return learner
        return LocalOnlyLearner(learner, self._server_side(network))

    def trainer(self) -> ServerTrainer:
        """Make the trainer on the server, with the run's public data."""
        path = self.config.data.public_path
        inputs = self.inputs._replace(single_head=True)
        public = (
            load_public_file(Path(path), self.local_data, inputs.tokenizer)
            if path
            else public_examples(self.scenario, inputs)
        )
        network = self.network()
        check_network(self, network)
        on_device = PublicExamples(*(part.to(self.device) for part in public))
        training = self.training(network.smallest_batch)
        make = self.algorithm.load_trainer()
        return make(network, on_device, training, self.config.run.seed)

    def _server_side(self, network: MultiHeadModel | None) -> ServerStrategy[Any]:
        make = self.algorithm.load_server()
        network = network or self.model()
        context = ServerContext(
            seed=self.config.run.seed,
            model=ModelShape(network.features, network.classes, network.single_head),
            classes=self._class_plan() if self.algorithm.needs_classes else ClassPlan(),
            trainer=self.trainer,
        )
        return make(self.params, context)

    def _class_plan(self) -> ClassPlan:
        plan = self.scenario
        tasks = range(plan.num_tasks)
        return ClassPlan(
            until=tuple(
                plan.labels_until(plan.num_tasks if plan.stream else task)
                for task in tasks
            ),
            names=tuple(
                plan.sources[name].class_names[label] for name, label in plan.labels
            ),
        )


def built(spec: RunSpec) -> Built:
    """Build the objects of a run; a process keeps those of its last run."""
    return _built(spec.to_json())


@lru_cache(maxsize=1)
def _built(text: str) -> Built:
    return Built(RunSpec.from_json(text))


def let_go() -> None:
    """Drop the kept objects, since a later run may register other things."""
    _built.cache_clear()


def validate(spec: RunSpec) -> None:
    """Build all objects of a run, to refuse settings before it starts."""
    run = Built(spec)
    find_device(run.config.training.device)
    for name in run.config.run.trackers:
        if name not in TRACKERS:
            raise unknown_name("run.track", name, sorted(TRACKERS))
    model = run.model()
    run.strategy(model).init(snapshot(model, model.shared_names()))
    threads = torch.get_num_threads()  # which every client sets
    try:
        run.learner(client=0)
    finally:
        torch.set_num_threads(threads)


def find_device(name: str) -> str:
    """Find the torch device of a name; ``auto`` prefers an accelerator."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        expected = "auto, cpu or a device that torch finds here"
        raise config_error("training.device", name, expected) from error
    return name


def limited_threads(algorithm: Algorithm, threads: int) -> threadpool_limits:
    """Limit each library to ``threads`` threads until the returned context ends.

    First it imports both sides of the algorithm, and with them their libraries.
    """
    algorithm.load_server()
    algorithm.load_client()
    return threadpool_limits(threads)
