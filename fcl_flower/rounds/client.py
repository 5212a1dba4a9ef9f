"""The client of a message: its run, its data, its learner and its state."""

import copy
import math
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fcl_flower.algorithms.base import ClientLearner, ServerStrategy, Turn
from fcl_flower.algorithms.local_only import SERVER
from fcl_flower.config.run_spec import NodeConfig, RunSpec
from fcl_flower.core import update_checks
from fcl_flower.core.errors import (
    DIVERGED,
    ConfigError,
    DivergenceError,
    WireError,
    config_error,
)
from fcl_flower.core.types import Arrays, Evaluation, Payload, TaskStage, Update
from fcl_flower.data.examples import (
    ClientData,
    Examples,
    ScenarioData,
    SplitName,
    TaskClasses,
    TaskData,
    batches,
    concat,
)
from fcl_flower.data.imbalance import unbalanced
from fcl_flower.data.instructions import ChatTokenizer
from fcl_flower.data.local.client import LocalData
from fcl_flower.data.word_vectors import WordVectors, find_vectors
from fcl_flower.models.heads import MultiHeadModel, mask_logits
from fcl_flower.privacy.accounting import SPENT
from fcl_flower.privacy.mechanism import is_simulated, privatize, secret_generator
from fcl_flower.results import measures
from fcl_flower.results.events import EPSILON
from fcl_flower.rounds import versions
from fcl_flower.rounds.checkpoint import (
    FolderStateStore,
    MemoryStateStore,
    Saved,
    StateStore,
    stored_bytes,
)
from fcl_flower.rounds.codec import WireFormat
from fcl_flower.rounds.copies import ModelCopy
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.secure.client import ClientSide
from fcl_flower.setup.build import Built, built, let_go, limited_threads
from fcl_flower.training.generation import rouge_l
from fcl_flower.training.loop import ClassCounts, most_confident, score
from fcl_flower.training.private import charge, planned_steps, spent_epsilon

_Key: TypeAlias = tuple[str, str, str, str]


class NetworkPool(threading.local):
    """A network for one learner after the other, a separate one in each thread.

    A copy for each message takes several times as long. So a network of this
    package is reset in place, unless a learner has rebuilt it. A network of another
    package may have more to reset: each learner gets a copy.
    """

    def __init__(self, initial: MultiHeadModel) -> None:
        """Keep the initial network, which must not change; called in each thread."""
        self._initial = initial
        self._trained = [p.requires_grad for p in initial.parameters()]
        self._network: MultiHeadModel | None = None
        self._is_ours = type(initial.body).__module__.startswith("fcl_flower.")

    def get(self) -> MultiHeadModel:
        """Lend the network in its initial state; the caller may change it.

        The network that this thread had before is taken back. All networks share the
        frozen parameters.
        """
        for parameter, trained in zip(
            self._initial.parameters(), self._trained, strict=True
        ):
            parameter.requires_grad_(trained)  # a learner may have changed shared ones
        network = self._network if self._is_ours else None
        if network is None or not network.reset(self._initial):
            self._network = network = None  # its memory is free for the next
            frozen = (p for p in self._initial.parameters() if not p.requires_grad)
            shared = {id(tensor): tensor for tensor in frozen}
            network = copy.deepcopy(self._initial, shared)
        self._network = network
        return network


class RunParts:
    """The parts that all clients of a run share on nodes with the same settings."""

    def __init__(self, run: Built) -> None:
        """Draw the scenario, and limit the threads of this process to the run's."""
        self.run = run
        _ = run.scenario
        # The reader of the data may have loaded a library with threads of its own.
        limited_threads(run.algorithm, run.config.training.threads)
        self._network: NetworkPool | None = None

    def network(self, words: WordVectors | None) -> MultiHeadModel:
        """Lend the initial network on its device; the caller may change it.

        The loan ends when the same thread asks again (`NetworkPool`). ``words`` are
        vectors of a client's own words; None for the words of the run.
        """
        if words is not None:  # of use to one client alone
            return self.run.network(words)
        if self._network is None:
            self._network = NetworkPool(self.run.network())
        return self._network.get()


_KEPT: dict[_Key, RunParts] = {}
"""The parts of one run, once for each configuration of its nodes."""


def run_parts(run: str, spec: RunSpec, node: NodeConfig) -> RunParts:
    """Find what the clients of a run share, or build it and drop another run's parts.

    The node's device and word vectors count more than those of the run.
    """
    key = (run, spec.to_json(), node.device, node.word_vectors)
    if key not in _KEPT:
        parts = RunParts(built(spec.on_node(node)))
        for other in [kept for kept in _KEPT if kept[:2] != key[:2]]:
            del _KEPT[other]
        _KEPT[key] = parts
    return _KEPT[key]


def forget_runs() -> None:
    """Drop all parts: the run has ended, and another may have the same number."""
    _KEPT.clear()
    let_go()


def client_data(run: Built, place: Place, tasks: int) -> ClientData:
    """Find the source of a client's samples."""
    if not run.spec.local_data:
        return ScenarioData(run.scenario, place.number, run.inputs)
    return local_data(run, place.node, tasks)


def local_data(run: Built, node: NodeConfig, tasks: int) -> LocalData:
    """Find a client's local data, with so many tasks."""
    if not node.data_path:
        raise ConfigError(
            "node-config data-path: missing, expected the folder with this client's "
            f"local data, for scenario {run.config.scenario.name}"
        )
    folder = Path(node.data_path).expanduser()
    words = run.tokenizer or vector_file(run)
    marked, tells = bool(node.marked_tasks), not node.hide_faults
    return LocalData(folder, run.local_data, tasks, words, marked=marked, tells=tells)


def vector_file(run: Built) -> Path | None:
    """Find the file of word vectors of a client with local data.

    None where the data are not text, or their model has a tokenizer of its own.
    """
    if run.spec.modality != "text" or run.model_entry.encoder:
        return None
    file = run.config.data.word_vectors
    if not file:
        expected = "a file, of the run or of the node, for clients with local texts"
        raise config_error("data.word_vectors", file, expected)
    return find_vectors(file, run.data_root)


def model_bytes(
    learner: ClientLearner[Any],
    state: Payload,
    received: Payload,
    size: Callable[[str, Arrays], int] = stored_bytes,
) -> int:
    """Count the bytes that a client must keep from its finished tasks.

    It needs them to predict, and to go on learning. A memory of samples and the
    importance of weights count. The moments of an optimizer do not. A client alone
    keeps all of the server's part, too. ``size`` counts the bytes of a group by its
    name and its tensors.
    """
    lasting = _without(state, (*learner.temporary_state, SPENT))
    return sum(
        size(group, arrays)
        for payload in (lasting, received)
        for group, arrays in payload.items()
    )


def _without(payload: Payload, names: Collection[str]) -> Payload:
    """Leave out the groups of some names, and those below them."""
    below = tuple(f"{name}/" for name in names)
    return {g: a for g, a in payload.items() if not f"{g}/".startswith(below)}


class Client:
    """A client within one message: the learner, its private state and its data."""

    def __init__(self, place: Place, stage: TaskStage) -> None:
        node, number = place.node, place.number
        parts = run_parts(place.run, place.spec(), node)
        self.run = run = parts.run
        self.config = config = run.config
        self.scenario = run.scenario
        self.samples = client_data(run, place, stage.task + 1)
        network = parts.network(self.samples.vectors)
        self.learner: ClientLearner[Any] = run.learner(number, network)
        if config.model.growing_head:
            self.learner.model.restrict_head(run.labels_until(stage.task))
        masked = config.federation.secure_aggregation
        self.masks = ClientSide(place, config.federation) if masked else None
        self.wire = WireFormat.of(config.federation, run.algorithm.load_server())
        self.epsilon = 0.0
        self.models: Path | None = None
        self.store: StateStore = MemoryStateStore(place)
        if config.run.client_state != "context":
            folder = Path(config.run.client_state) / f"client-{number}"
            self.store = FolderStateStore(folder, durable=False)
            if run.spec.local_data:  # no other place has the classes
                self.models = folder / versions.MODELS
        if node.state_path:
            self.store = FolderStateStore(place.folder)
            self.models = place.folder / versions.MODELS

    def load(self, before: int) -> Saved | None:
        """Load the last state of a round earlier than ``before``, if there is one."""
        saved = self.store.load(before)
        if saved is not None:
            self.samples.restore_classes(saved.beside.get("classes", {}))
        return saved

    def save(
        self, state: Payload, stage: TaskStage, spent: Payload, copy: ModelCopy
    ) -> None:
        """Save a state after a round, with what is kept beside it."""
        classes = self.samples.keep_classes(stage.task)
        beside = {"copies": copy.kept(), "classes": classes}
        self.store.save({**state, **spent}, stage.round, beside)

    def state(self, saved: Saved | None) -> Payload:
        """Take the learner's part of a saved state, or its initial state.

        The privacy cost of a repeated round counts twice. It does not in a simulation,
        which draws the same noise again.
        """
        state = self.learner.init() if saved is None else saved.state
        spent = {} if is_simulated() else self.store.last(SPENT)
        return {**state, SPENT: spent} if spent else state

    def model_copy(self, saved: Saved | None) -> ModelCopy:
        """Take up the client's copies of models that were saved with a state."""
        context = self.learner.context
        copies = {} if saved is None else saved.beside.get("copies", {})
        return ModelCopy(self.wire, context.seed, context.client, copies)

    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        """Let the learner train.

        Raises:
            DivergenceError: the new state holds NaN, or the update is not finite.
        """
        after, update = self.learner.train(Turn(state, received, stage, data))
        # A server's notes of a round are NaN where there was nothing to measure.
        notes = f"{SERVER}meta/"
        checked = {g: arrays for g, arrays in after.items() if not g.startswith(notes)}
        try:
            update_checks.no_nan(checked)
            update_checks.finite(update.payload)
        except WireError as error:
            raise self._diverged(str(error)) from error
        for name, value in update.metrics.items():
            if not math.isfinite(value):
                raise self._diverged(f"{name} is {value}")
        return after, update

    def _diverged(self, what: str) -> DivergenceError:
        rate = self.learner.context.training.learning_rate
        return DivergenceError(
            f"{DIVERGED}: {what}, expected finite values; training.learning_rate is "
            f"{rate:g}, try a lower one (--learning-rate)"
        )

    def evaluation(
        self,
        state: Payload,
        received: Payload,
        stage: TaskStage,
        *,
        before_aggregation: bool = False,
    ) -> Evaluation:
        """Test the client, and count the bytes of its model."""
        scores = self.scores(state, received, stage)
        size = model_bytes(self.learner, state, received, self.store.size)
        tasks = len(self.run.schedule.own_tasks(self.learner.context.client))
        ends = stage.ends_task and stage.task + 1 == tasks and not before_aggregation
        inferred = self.inferred(state, received, tasks) if ends else []
        return replace(scores, model_bytes=size, inferred=inferred)

    def charge_privacy(self, state: Payload, examples: int) -> Payload:
        """Count the privacy cost of the examples with this round, where it is limited.

        The count is a group beside the learner's state, as a learner returns only its
        own groups. ``state`` is the state before the round.

        Raises:
            BudgetError: the cost would exceed the privacy budget.
        """
        privacy = self.config.privacy
        if privacy.unit != "example":
            return {}
        steps = planned_steps(examples, self.run.training(), privacy.noise_multiplier)
        spent = charge(state.get(SPENT, {}), steps, privacy)
        self.epsilon = spent_epsilon(spent, privacy.delta)
        return {SPENT: spent}

    def add_noise(self, update: Update, received: Payload, stage: TaskStage) -> Update:
        """Add noise to an update before it leaves the client, where that is set."""
        privacy = self.config.privacy
        if privacy.unit == "none":
            return update
        if privacy.unit == "example":
            return replace(update, metrics={EPSILON: self.epsilon})
        context = self.learner.context
        rng = secret_generator(context.seed, "privacy", context.client, stage.round)
        return privatize(update, received, privacy.clip, privacy.noise_multiplier, rng)

    def data(self, stage: TaskStage) -> TaskData:
        """Load the client's samples of a stage."""
        data = self.samples.training(stage)
        train, valid, test = map(self._here, (data.train, data.valid, data.test))
        if self.config.scenario.joint:
            train, valid = self._of_all_tasks("train"), self._of_all_tasks("valid")
        if self.config.model.mask_loss:
            self.learner.model.restrict_head([*train.y.tolist(), *valid.y.tolist()])
        return TaskData(train, valid, test, data.classes)

    def scores(
        self,
        state: Payload,
        received: Payload,
        stage: TaskStage,
        split: SplitName = "test",
    ) -> Evaluation:
        """Test every task so far, or every concept; only the scores are filled in."""
        hidden = self.scenario.stream is not None
        blind = self.run.spec.hidden_tasks
        counted = self.config.federation.per_class
        balances = self.run.balances_scores
        accuracy, by_class, balanced, skewed = [], [], [], False
        losses: list[float] = []
        for task in range(self.scenario.num_tasks if hidden else stage.task + 1):
            models, named = received, task
            labels = self._restricted(task)
            if blind:
                # As if the client saw the concept now: fresh examples of it.
                samples = self._examples(task, "valid")
                models = self.learner.select_model(state, received, samples)
                named = stage.task
            predict = partial(self._logits, state, models, named, labels)
            test = self._examples(task, split)
            answers = ClassCounts(predict)
            measured = score(answers, test)
            if isinstance(tokenizer := self.run.tokenizer, ChatTokenizer):
                losses.append(measured.loss)
                if self._measure(task) == "rouge-l":
                    which = (self.learner, state, models, named)
                    accuracy.append(rouge_l(*which, test, tokenizer))
                    continue
            accuracy.append(measured.accuracy)
            if counted or balances:
                by_class.append(answers.by_class(test.y, self.learner.model.classes))
            if balances:
                recall = measures.recall(np.array(by_class[-1]))
                balanced.append(float(measures.mean_measured(recall, axis=0)))
                skewed |= unbalanced(test.y.cpu().numpy())
        counts = by_class if counted else ()
        if not np.isfinite(losses).all():  # a model that has diverged
            losses = []
        return Evaluation(
            accuracy, 0, counts, balanced=balanced, unbalanced=skewed, losses=losses
        )

    def _measure(self, task: int) -> str:
        """Find the measure of the answers of a task's data set."""
        listed = self.config.federation.measures
        if len(listed) == 1:
            return listed[0]
        dataset = self.scenario.clients[self.learner.context.client][task].dataset
        return listed[self.config.data.names.index(dataset)]

    def inferred(self, state: Payload, received: Payload, tasks: int) -> list[float]:
        """Test so many tasks with the most confident head for each sample.

        `Model.predict` with ``auto`` does so, too. An answer is right if the class is,
        and with a head a task, whose classes are its own, also the task. Each task
        takes a pass over all tests. Empty with one head that all tasks share.
        """
        single = self.config.model.head == "single"
        blind = self.run.spec.hidden_tasks or self.scenario.stream is not None
        if blind or tasks < 2 or (single and not self.learner.needs_task):
            return []
        head = range(len(versions.head_names(self.run)))
        named = [
            torch.tensor(
                head if single else self.samples.classes(task).labels,
                device=self.learner.context.device,
            )
            for task in range(tasks)
        ]
        tests = [self._examples(task, "test") for task in range(tasks)]
        by_test: list[list[Tensor]] = [[] for _ in tests]
        for task, labels in enumerate(named):
            predict = partial(
                self._logits, state, received, task, self._restricted(task)
            )
            for test, confidence in zip(tests, by_test, strict=True):
                with torch.no_grad():
                    parts = [predict(x) for x, _ in batches(test, 512, seed=None)]
                    logits = torch.cat(parts)[:, labels]
                    confidence.append(logits.double().softmax(1))
        fractions = []
        for task, (test, confidence) in enumerate(zip(tests, by_test, strict=True)):
            tasks_of, places = most_confident(confidence)
            if single:
                right = places == test.y
            else:
                here = tasks_of == task
                right = named[task][places[here]] == test.y[here]
            fractions.append(int(right.sum()) / len(test.y))
        return fractions

    # ---- versions

    @property
    def predicts_locally(self) -> bool:
        """Whether the client predicts with its private state alone."""
        local_only = self.config.strategy.local_only
        return local_only or self.run.algorithm.load_server().predicts_locally

    def keep_received(
        self, saved: Saved | None, received: Payload, stage: TaskStage
    ) -> None:
        """Keep a version of the received model, where it predicts.

        It is the model after the previous round, with the client's state of that time.
        """
        strategy = self.run.algorithm.load_server()
        tasks = stage.task + (not stage.starts_task)
        if self.predicts_locally or saved is None or not tasks:
            return
        if strategy.send_to_predict is not ServerStrategy.send_to_predict:
            return  # another model predicts
        needed = strategy.predicts or tuple(received)
        models = {kind: received[kind] for kind in needed if kind in received}
        before = TaskStage(stage.round - 1, tasks - 1, False, False)
        if len(models) == len(needed):
            self.keep_version(saved.state, models, before, None)

    def keep_version(
        self,
        state: Payload,
        received: Payload,
        stage: TaskStage,
        accuracy: float | None,
    ) -> None:
        """Keep a version of the model, where the node has a folder for versions.

        Args:
            state: of the client.
            received: the models of the server that predict with it.
            stage: the version is the model after this stage.
            accuracy: on the validation samples of the tasks so far; None where unknown.
        """
        if self.models is None:
            return
        earlier, learned = versions.versions(self.models), tuple[TaskClasses, ...]()
        name = f"task-{stage.task + 1:02}"
        if not stage.ends_task:
            name = f"round-{stage.round}"
            if earlier and earlier[-1].about.round >= stage.round:
                return
            if earlier:  # not read from their files again
                learned = earlier[-1].about.tasks[: stage.task + 1]
        tasks = range(0 if self.run.spec.hidden_tasks else stage.task + 1)
        spent = self.store.last(SPENT)
        about = versions.About(
            name=name,
            round=stage.round,
            tasks=(*learned, *map(self.samples.classes, tasks[len(learned) :])),
            head=versions.head_names(self.run),
            client=self.learner.context.client,
            accuracy=accuracy,
            epsilon=spent_epsilon(spent, self.config.privacy.delta) if spent else None,
            spec=self.run.spec,
        )
        lasting = _without(state, (*self.learner.temporary_state, SPENT))
        groups = {
            f"{origin}/{group}": arrays
            for origin, payload in (("state", lasting), ("received", received))
            for group, arrays in payload.items()
        }
        if (words := self.samples.vectors) is not None:
            text = np.frombuffer("\n".join(words.numbers).encode(), np.uint8)
            bound = np.asarray(words.bound)
            groups["words"] = {"words": text, "table": words.table, "bound": bound}
        versions.write(self.models, about, groups)

    def validated(
        self, state: Payload, received: Payload, stage: TaskStage
    ) -> float | None:
        """Measure the mean accuracy on the validation samples of the tasks so far.

        None without samples, or where no version is kept.
        """
        if self.models is None:
            return None
        by_task = self.scores(state, received, stage, "valid").accuracy
        measured = [accuracy for accuracy in by_task if not math.isnan(accuracy)]
        return sum(measured) / len(measured) if measured else None

    def _logits(
        self,
        state: Payload,
        received: Payload,
        task: int,
        labels: Tensor | None,
        x: Tensor,
    ) -> Tensor:
        logits = self.learner.predict(state, received, task, x)
        if labels is not None:
            logits = mask_logits(logits, labels)
        if logits.isnan().any():  # they would count as the first class
            raise self._diverged("predictions are NaN")
        return logits

    def _restricted(self, task: int) -> Tensor | None:
        """Find the labels that a task may predict, and restrict the head to them."""
        if not self.config.model.mask_logits:
            return None
        labels = self._labels(task)
        if self.config.model.mask_loss:
            self.learner.model.restrict_head(labels.tolist())
        return labels

    def _of_all_tasks(self, split: SplitName) -> Examples:
        tasks = range(self.scenario.num_tasks)
        return concat([self._examples(task, split) for task in tasks])

    def _labels(self, task: int) -> Tensor:
        # Held-out samples alone are too few to have each class of a concept.
        own = [self.samples.examples(task, split).y for split in ("train", "valid")]
        return torch.cat(own).to(self.learner.context.device)

    def _examples(self, task: int, split: SplitName) -> Examples:
        return self._here(self.samples.examples(task, split))

    def _here(self, examples: Examples) -> Examples:
        device = self.learner.context.device
        return Examples(examples.x.to(device), examples.y.to(device))
