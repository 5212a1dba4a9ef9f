"""A trained model, which predicts the classes of raw samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fcl_flower.algorithms.base import ClientLearner
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Arrays, Payload, TaskStage
from fcl_flower.data.examples import Examples
from fcl_flower.data.instructions import ChatTokenizer
from fcl_flower.data.local.formats import RawSamples
from fcl_flower.data.texts import words
from fcl_flower.data.word_vectors import WordVectors, find_vectors, with_words
from fcl_flower.models.heads import mask_logits
from fcl_flower.prediction.inputs import InputReader
from fcl_flower.prediction.places import client_models, is_run, run_models
from fcl_flower.prediction.simulated import end_of_run, finished_run
from fcl_flower.rounds import versions
from fcl_flower.rounds.versions import About
from fcl_flower.setup.build import Built
from fcl_flower.training.loop import most_confident

AUTO: Final = "auto"
"""The task for which the most confident head answers each sample."""
BATCH = 512
"""The number of samples in one pass, as in an evaluation."""


class Prediction(NamedTuple):
    """The answer to one sample.

    Attributes:
        name: name of the likeliest class.
        probability: its softmax probability, from 0 to 1.
        task: task whose head has answered, from 0; None where all tasks have one head.
        probabilities: probability of each class by name, the likeliest first.
    """

    name: str
    probability: float
    task: int | None
    probabilities: Mapping[str, float]


class Model:
    """The model with which a client, or a server, predicts.

    `load` makes it. Tasks are counted from 0, or called by their names.

    Attributes:
        run: objects of its run.
        state: private state of the client.
        received: groups that the server has sent for prediction.
        about: description of the version, with its tasks and classes.
        versions: names of all versions in its folder.
    """

    def __init__(
        self,
        run: Built,
        about: About,
        state: Payload,
        received: Payload,
        versions: Sequence[str],
        vectors: WordVectors | None = None,
    ) -> None:
        """Keep the parts that `load` has read.

        ``vectors`` are those of a client's own words.
        """
        self.run, self.about = run, about
        self.state, self.received = state, received
        self.versions = tuple(versions)
        self._words = vectors or run.word_vectors
        self._learner: ClientLearner[Any] | None = None
        self.reader = InputReader(run)

    @property
    def learner(self) -> ClientLearner[Any]:
        """The client side, which computes the logits."""
        if self._learner is None:
            network = self.run.network(self._words)
            self._learner = self.run.learner(self.about.client or 0, network)
        return self._learner

    @property
    def words(self) -> WordVectors | None:
        """The words of the model, each with its vector; None without texts."""
        return self._words

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks that the model has learned, in their order."""
        return tuple(task.name for task in self.about.tasks)

    @property
    def classes(self) -> tuple[tuple[str, ...], ...]:
        """The names of the classes of each task."""
        return tuple(task.names for task in self.about.tasks)

    # ---- raw samples

    def predict(
        self,
        x: object,
        task: int | str | None = None,
        recent: tuple[object, Sequence[str]] | None = None,
    ) -> list[Prediction]:
        """Predict the classes of raw samples.

        Args:
            x: images as uint8 or in [0, 1], shape (N, H, W) or (N, H, W, 3); series,
                shape (N, channels, steps); rows of a table, shape (N, columns), in the
                order of the task's columns; or texts. A path names a file with such
                samples, or a folder of images.
            task: number from 0, name, or ``auto``; None where all tasks have one head,
                or the model has one task.
            recent: a few samples of the present, and the names of their classes; with
                hidden concepts only.

        Raises:
            ConfigError: the samples do not fit, or a task or recent samples are needed
                and missing.
        """
        if isinstance(x, Path):
            samples = self.read(x, task).x
        else:
            samples = self.reader.samples(x)
        examples = None
        if recent is not None:
            examples = self.examples(self.reader.samples(recent[0]), recent[1])
        return self.answer(samples, task, examples)

    def read(self, path: Path, task: int | str | None, form: str = "") -> RawSamples:
        """Read a user's file of samples; see `InputReader.read`.

        A table must have the columns of the task, or of all tasks if none is named.
        """
        tasks = self.about.tasks
        if task not in (None, AUTO):
            tasks = (tasks[self.number(task)],)
        columns = {task.columns for task in tasks if task.columns}
        if len(columns) > 1:
            expected = "a task, as the tables of the tasks have different columns"
            raise config_error("task", task, expected)
        return self.reader.read(path, next(iter(columns), ()), form)

    def examples(self, samples: Any, labels: Sequence[str]) -> Examples:  # noqa: ANN401
        """Turn raw samples and the names of their classes into a learner's examples.

        Raises:
            ConfigError: the model has no class of such a name, or some samples have no
                name.
        """
        names = self._names(0)
        for name in labels:
            if name not in names:
                expected = f"one of {', '.join(names)}"
                raise config_error("recent", name, expected)
        inputs = self._inputs(samples)
        if not 0 < len(inputs) == len(labels):
            expected = "a few samples, each with the name of its class"
            raise config_error("recent", f"{len(labels)} labels", expected)
        y = torch.tensor([names.index(name) for name in labels])
        return Examples(inputs, y)

    def answer(
        self,
        samples: Any,  # noqa: ANN401
        task: int | str | None,
        recent: Examples | None,
    ) -> list[Prediction]:
        """Predict samples that were read or checked; see `predict`."""
        inputs = self._inputs(samples)
        if task == AUTO and self._by_task:
            return self._by_confidence(inputs)
        number = self.number(task)
        by_sample = self.probabilities(inputs, number, recent).tolist()
        names, answering = self._names(number), None
        if self._by_task and self.tasks:
            answering = number
        return [_prediction(row, names, answering) for row in by_sample]

    def _by_confidence(self, inputs: Tensor) -> list[Prediction]:
        tasks = range(len(self.about.tasks))
        by_task = [self.probabilities(inputs, task) for task in tasks]
        return [
            _prediction(by_task[task][row].tolist(), self._names(task), task)
            for row, task in enumerate(most_confident(by_task)[0].tolist())
        ]

    def _inputs(self, samples: Any) -> Tensor:  # noqa: ANN401
        vectors = self._words
        if vectors is not None:
            texts = {word for text in samples for word in words(text)}
            if new := sorted(texts - vectors.numbers.keys()):
                file = self.run.config.data.word_vectors
                path = find_vectors(file, self.run.data_root) if file else None
                self._words = with_words(vectors, new, path, self.run.config.run.seed)
                self._learner = None  # its network has the old table
        tokenizer = self.run.tokenizer or self._words
        if isinstance(tokenizer, ChatTokenizer):
            expected = "prompts for `prediction.answers`, as it has no classes"
            raise config_error("x", "samples of a language model", expected)
        return self.reader.to_inputs(samples, tokenizer)

    # ---- tensors

    def number(self, task: int | str | None) -> int:
        """Find the number of a task, from 0; see `predict`.

        Raises:
            ConfigError: there is no such task, or the model needs a task and none was
                named.
        """
        names = self.tasks
        last = len(names) - 1
        if task is None or task == AUTO:
            if self._by_task and last > 0:
                choices = ", ".join(f"{n} ({name})" for n, name in enumerate(names))
                reason = f"{self.run.config.title} has a model for each task"
                expected = f"{AUTO} or one of {choices}, as {reason}"
                raise config_error("task", task, expected)
            return max(last, 0)
        if isinstance(task, str):
            if task in names:
                return names.index(task)
            if not task.isdecimal():
                expected = f"a number, or one of {', '.join(names)}"
                raise config_error("task", task, expected)
            task = int(task)
        if not 0 <= task <= last:
            raise config_error("task", task, f"0 to {last}, the tasks that it knows")
        return task

    def logits(
        self, inputs: Tensor, task: int, recent: Examples | None = None
    ) -> Tensor:
        """Compute the learner's logits, shape (N, classes), of prepared inputs.

        Args:
            inputs: shape (N, *input_shape), or token ids.
            task: number from 0.
            recent: samples of the present; with hidden concepts only.

        Raises:
            ConfigError: concepts are hidden, and there are no samples of the present.
        """
        learner, model = self.learner, self.run.config.model
        received, device = self.received, self.learner.context.device
        labels = None
        if model.mask_logits and self.about.tasks and self.about.client is not None:
            labels = torch.tensor(self.about.tasks[task].labels, device=device)
        if model.growing_head:
            last = len(self.about.tasks) - 1
            learner.model.restrict_head(self.run.labels_until(last))
        if labels is not None and model.mask_loss:
            learner.model.restrict_head(labels.tolist())
        if self.run.spec.hidden_tasks:
            if recent is None:
                expected = "a few labelled samples of the present, by which "
                expected += f"{self.run.config.title} chooses a model"
                raise config_error("recent", None, expected)
            recent = Examples(recent.x.to(device), recent.y.to(device))
            received = learner.select_model(self.state, received, recent)
            task = self.run.spec.tasks - 1
        with torch.no_grad():
            parts = [
                learner.predict(self.state, received, task, part.to(device)).cpu()
                for part in torch.split(inputs, BATCH)
            ]
        logits = torch.cat(parts)
        return logits if labels is None else mask_logits(logits, labels.cpu())

    def probabilities(
        self, inputs: Tensor, task: int, recent: Examples | None = None
    ) -> Tensor:
        """Compute the probabilities of the named classes, shape (N, names)."""
        # Some heads have more places than there are named classes.
        places = list(range(len(self.about.head)))
        if not self._single:
            places = list(self.about.tasks[task].labels)
        logits = self.logits(inputs, task, recent)[:, places]
        probabilities: Tensor = logits.double().softmax(1)
        return probabilities

    @property
    def _single(self) -> bool:
        return self.run.config.model.head == "single"

    @property
    def _by_task(self) -> bool:
        return not self._single or self.learner.needs_task

    def _names(self, task: int) -> Sequence[str]:
        return self.about.head if self._single else self.about.tasks[task].names


def _prediction(
    row: Sequence[float], names: Sequence[str], task: int | None
) -> Prediction:
    ordered = sorted(zip(row, names, strict=True), key=lambda pair: -pair[0])
    probability, name = ordered[0]
    return Prediction(name, probability, task, {n: p for p, n in ordered})


def load(
    path: str | Path,
    *,
    client: int | None = None,
    run: str | None = None,
    version: str | None = None,
) -> Model:
    """Open a trained model.

    Args:
        path: folder of a finished simulation, of a federation's server, or of a
            client's state (``fcl client --state``).
        client: number of the client, from 0; not needed if one client alone has its
            state there.
        run: name of one of the runs that a client remembers; None for the run written
            last.
        version: name of the version, ``newest`` or ``best``; None for the version in
            use, which is the newest unless one was chosen.

    Raises:
        ConfigError: there is no such model, or it is damaged; a simulation has kept no
            states; or only the clients have the model.

    >>> from sklearn.datasets import load_digits
    >>> from fcl_flower.api import simulate
    >>> sizes = {"clients": 1, "tasks": 2, "classes_per_task": 2, "rounds": 6}
    >>> run = simulate("stl", seed=1, progress=False, **sizes)
    >>> model = load(run.folder)
    >>> model.tasks, model.classes
    (('digits/4', 'digits/0'), (('1', '9'), ('4', '8')))
    >>> image = load_digits().images[4] / 16
    >>> answer = model.predict(image[None], task="digits/0")[0]
    >>> answer.name, round(answer.probability, 1)
    ('4', 1.0)
    """
    folder = Path(path)
    if not folder.is_dir():
        expected = "the folder of a run or of a client's state"
        raise config_error("folder", str(folder), expected)
    if not is_run(folder):
        return _of_version(client_models(folder, run, client), client, version)
    if models := run_models(folder, client):
        return _of_version(models, client, version)
    built = finished_run(folder)
    last = built.config.scenario.clients - 1
    if client is None and last:
        raise config_error("client", client, f"a number from 0 to {last}")
    about, state, received = end_of_run(built, folder, client or 0)
    if version not in (None, about.name, versions.NEWEST):
        raise config_error("version", version, f"{about.name!r}, of a simulation")
    return Model(built, about, state, received, [about.name])


def _of_version(models: Path, client: int | None, name: str | None) -> Model:
    version, groups = versions.load(models, name or "")
    about = version.about
    run = Built(about.spec.with_settings(device="cpu"))
    names = [other.about.name for other in versions.versions(models)]
    state, received, own = _below("state/", groups), _below("received/", groups), None
    if saved := groups.get("words"):
        text = np.asarray(saved["words"]).tobytes().decode().split("\n")
        numbers = {word: number for number, word in enumerate(text, 1)}
        table, bound = np.asarray(saved["table"]), float(np.asarray(saved["bound"]))
        own = WordVectors(MappingProxyType(numbers), table, "of the version", bound)
    model = Model(run, about, state, received, names, own)
    if about.client is None:
        _become_the_servers(model, client or 0)
    return model


def _below(prefix: str, groups: Payload) -> dict[str, Arrays]:
    return {
        n.removeprefix(prefix): g for n, g in groups.items() if n.startswith(prefix)
    }


def _become_the_servers(model: Model, client: int) -> None:
    """Let a server's state predict as a client without a private state would."""
    run, about = model.run, model.about
    strategy = run.strategy()
    if strategy.predicts_locally or run.config.model.head != "single":
        expected = "that of a client's state, as a part of the model of "
        expected += f"{run.config.title} is at the clients alone"
        raise config_error("folder", "that of a server", expected)
    last = len(about.tasks) - 1
    stage = TaskStage(about.round, last, starts_task=False, ends_task=True)
    model.received = strategy.send_to_predict(model.state, stage, client)
    model.state = model.learner.init()
