"""The samples of a task as tensors that a model takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import torch
from torch.nn.functional import pad
from typing_extensions import override

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.data.arrays import TabularDataset, TimeSeriesDataset
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.images import to_tensor
from fcl_flower.data.instructions import NO_LABEL, ChatTokenizer
from fcl_flower.data.partition import Indices
from fcl_flower.data.scenarios.plan import Scenario, Task
from fcl_flower.data.texts import TextDataset, Tokenizer
from fcl_flower.data.word_vectors import WordVectors
from fcl_flower.models.normalisation import FIXED, Normalisation

SplitName: TypeAlias = Literal["train", "valid", "test"]


class Examples(NamedTuple):
    """A set of inputs and labels, which a cache may share: do not change it in place.

    Attributes:
        x: images, time series or features, float32, shape ``(N, *input_shape)``; or
            token ids, int64, shape (N, tokens of the longest), padded with 0 at the
            end.
        y: labels, int64, shape (N,); of instructions the tokens of each answer, shape
            (N, tokens of the longest), padded with `NO_LABEL` at the end.
    """

    x: torch.Tensor
    y: torch.Tensor


class PublicExamples(NamedTuple):
    """The server's public samples, which a cache may share.

    Attributes:
        x: inputs as in `Examples`.
        y: indices in the single head, int64, shape (N,); -1 for classes that the head
            does not have.
        classes: numbers of the classes, int64, shape (N,). They count the classes of
            all public data sets, one after the other, whether the head has them or not.
    """

    x: torch.Tensor
    y: torch.Tensor
    classes: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """The data of one task for a learner, with labels 0..classes-1.

    The loss on ``valid`` decides learning rate and stopping; ``valid`` may be empty if
    every class has a single sample. Training never sees ``test``.
    """

    train: Examples
    valid: Examples
    test: Examples
    classes: int


@dataclass(frozen=True, slots=True)
class TaskClasses:
    """The classes that the logits of a task stand for.

    Attributes:
        name: name of the task.
        labels: indices in the task's head of the classes of its training samples.
        names: names of these classes, in the same order.
        columns: names of a sample's numbers; empty if they have no names.
    """

    name: str
    labels: tuple[int, ...]
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()


class InputSpec(NamedTuple):
    """The form in which a model takes samples and labels.

    Attributes:
        input_shape: shape of a sample.
        single_head: whether labels are positions in ``scenario.labels`` instead of
            positions among the task's own classes; always true for hidden concepts.
        tokenizer: tokenizer of texts; None for other samples.
        normalisation: normalisation of images.
    """

    input_shape: tuple[int, ...]
    single_head: bool
    tokenizer: Tokenizer | ChatTokenizer | None = None
    normalisation: Normalisation = FIXED


def to_inputs(
    source: Dataset,
    samples: Split,
    indices: Indices,
    input_shape: tuple[int, ...],
    tokenizer: Tokenizer | ChatTokenizer | None,
    normalisation: Normalisation = FIXED,
) -> torch.Tensor:
    """Convert samples to tensors of a model's input shape, as in `Examples`."""
    if isinstance(source, TextDataset):
        if tokenizer is None or isinstance(tokenizer, ChatTokenizer):
            raise ConfigError(
                f"dataset: {source.name!r} is text, which needs word vectors"
            )
        return torch.from_numpy(tokenizer.token_ids([samples.x[i] for i in indices]))
    if isinstance(source, TimeSeriesDataset | TabularDataset):
        check_shape(source, input_shape)
        return torch.from_numpy(samples.x[indices])
    return to_tensor(samples.x[indices], input_shape, normalisation)


def check_shape(
    source: TimeSeriesDataset | TabularDataset, input_shape: tuple[int, ...]
) -> None:
    """Refuse samples of another shape than the model takes: only images are resized."""
    shape = source.train.x.shape[1:]
    if shape != input_shape:
        raise ConfigError(
            f"model: got input shape {input_shape}, expected {shape} for the samples "
            f"of {source.name!r}"
        )


def task_data(scenario: Scenario, client: int, task: int, spec: InputSpec) -> TaskData:
    """Collect the three splits of a client's task; client and task count from 0."""
    train, valid, test = (
        task_examples(scenario, client, task, split, spec)
        for split in get_args(SplitName)
    )
    classes = scenario.num_labels if spec.single_head else scenario.classes_per_task
    return TaskData(train, valid, test, classes)


# A few entries suffice for a client that stays at one task over many rounds.
@lru_cache(maxsize=8)
def task_examples(
    scenario: Scenario, client: int, task: int, split: SplitName, spec: InputSpec
) -> Examples:
    """Collect one split of a client's task."""
    plan = scenario.clients[client][task]
    return _examples(scenario, plan, split, getattr(plan, split), spec)


def concept_data(
    scenario: Scenario, client: int, server_round: int, spec: InputSpec
) -> TaskData:
    """Collect a client's samples of a round, counted from 1, under hidden concepts."""
    stream = scenario.stream
    if stream is None:
        raise ValueError(f"scenario {scenario.name} hides no concepts")
    concepts = stream.concepts_at(client, server_round)
    plans = {concept: scenario.clients[client][concept] for concept in concepts}
    windows = [
        (plan, stream.samples(client, server_round, concept, plan.train))
        for concept, plan in plans.items()
    ]
    train = [_examples(scenario, plan, "train", rows, spec) for plan, rows in windows]
    valid, test = (
        [task_examples(scenario, client, concept, split, spec) for concept in concepts]
        for split in ("valid", "test")
    )
    return TaskData(concat(train), concat(valid), concat(test), scenario.num_labels)


# A server has one scenario and uses its public samples every round.
@lru_cache(maxsize=2)
def public_examples(scenario: Scenario, spec: InputSpec) -> PublicExamples:
    """Collect the server's public training samples.

    Without public data sets ``x`` has shape (0, 0).
    """
    if not scenario.public:
        none = torch.empty(0, dtype=torch.int64)
        return PublicExamples(torch.empty(0, 0), none, none)
    parts, classes, offset = [], [], 0
    for plan in scenario.public:
        parts.append(_examples(scenario, plan, "train", plan.train, spec))
        labels = scenario.sources[plan.dataset].train.y[plan.train]
        classes.append(offset + np.searchsorted(plan.classes, labels))
        offset += len(plan.classes)
    return PublicExamples(*concat(parts), torch.from_numpy(np.concatenate(classes)))


def _examples(
    scenario: Scenario,
    plan: Task,
    split: str,
    indices: Indices,
    spec: InputSpec,
) -> Examples:
    source = scenario.sources[plan.dataset]
    samples = source.split(split)
    if isinstance(spec.tokenizer, ChatTokenizer):
        return instruction_examples(samples, indices, spec.tokenizer)
    labels = samples.y[indices]
    if spec.single_head:
        # All classes, since a client may be tested on classes that it never trained on.
        classes = range(source.num_classes)
        indices_in_head = [scenario.label_index(plan.dataset, n) for n in classes]
        targets = np.array(indices_in_head, np.int64)[labels]
    else:
        targets = np.searchsorted(plan.classes, labels)
    y = torch.from_numpy(targets)
    x = to_inputs(
        source,
        samples,
        indices,
        spec.input_shape,
        spec.tokenizer,
        spec.normalisation,
    )
    return Examples(x, y)


def instruction_examples(
    samples: Split, indices: Indices, tokenizer: ChatTokenizer
) -> Examples:
    """Convert instructions to tokens, and label each by the tokens of its answer."""
    x, y = tokenizer.examples([samples.x[i] for i in indices])
    return Examples(torch.from_numpy(x), torch.from_numpy(y))


def concat(parts: list[Examples]) -> Examples:
    """Concatenate one or more parts of examples; texts are padded to one width."""
    parts = [part for part in parts if len(part.y)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    # Texts are padded at the end; images are all of one size.
    x = _padded([part.x for part in parts], 0)
    y = [part.y for part in parts]
    if y[0].ndim > 1:
        y = _padded(y, NO_LABEL)
    return Examples(torch.cat(x), torch.cat(y))


def _padded(parts: list[torch.Tensor], value: int) -> list[torch.Tensor]:
    widest = max(part.shape[-1] for part in parts)
    return [pad(part, (0, widest - part.shape[-1]), value=value) for part in parts]


def rows_of(examples: Examples, rows: torch.Tensor) -> Examples:
    """Select examples; labels that are tokens end with the longest answer."""
    x, y = examples.x[rows], examples.y[rows]
    if y.ndim > 1:
        y = y[:, : int((y != NO_LABEL).sum(1).max()) if len(y) else 0]
    return Examples(x, y)


def batches(
    examples: Examples,
    batch_size: int,
    seed: int | None = None,
    smallest: int = 1,
) -> Iterator[Examples]:
    """Yield all examples once in batches as `in_batches`; a seed shuffles them."""
    count = len(examples.y)
    if seed is None:
        order = torch.arange(count)
    else:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    for chosen in in_batches(order, batch_size, smallest):
        yield rows_of(examples, chosen)


def in_batches(
    order: torch.Tensor, batch_size: int, smallest: int = 1
) -> Iterator[torch.Tensor]:
    """Yield rows in batches; the last may be smaller.

    A last batch of fewer than ``smallest`` rows joins the batch before, and is left out
    if there is no batch before.
    """
    starts = [*range(0, len(order), batch_size)]
    if starts and len(order) - starts[-1] < smallest:
        starts.pop()
    ends = [*starts[1:], len(order)]
    yield from (order[start:end] for start, end in zip(starts, ends, strict=False))


class ClientData(Protocol):
    """The samples of one client as its model takes them."""

    @property
    def vectors(self) -> WordVectors | None:
        """The vectors of the client's own words; None if the run's vectors suffice."""

    def training(self, stage: TaskStage) -> TaskData:
        """Collect the data on which the client trains in a round."""

    def examples(self, task: int, split: SplitName) -> Examples:
        """Collect one split of a task, or of a hidden concept."""

    def classes(self, task: int) -> TaskClasses:
        """Name the classes of a task, or of a hidden concept."""

    def keep_classes(self, task: int) -> Payload:
        """Write down the classes of all tasks trained so far, of which this is one.

        Empty where they cannot change from one round to the next.
        """
        return {}

    def restore_classes(self, kept: Payload) -> None:
        """Hold on to what `keep_classes` has written: each class has its number."""
        return


class ScenarioData(ClientData):
    """The samples that a scenario deals to a client."""

    def __init__(self, scenario: Scenario, client: int, spec: InputSpec) -> None:
        """Take the scenario, the client's number and its model's form of samples."""
        self._scenario, self._client, self._spec = scenario, client, spec

    @property
    @override
    def vectors(self) -> WordVectors | None:
        return None

    @override
    def training(self, stage: TaskStage) -> TaskData:
        if self._scenario.stream is None:
            return task_data(self._scenario, self._client, stage.task, self._spec)
        return concept_data(self._scenario, self._client, stage.round, self._spec)

    @override
    def examples(self, task: int, split: SplitName) -> Examples:
        return task_examples(self._scenario, self._client, task, split, self._spec)

    @override
    def classes(self, task: int) -> TaskClasses:
        plan = self._scenario.clients[self._client][task]
        names = zip(plan.classes, plan.class_names, strict=True)
        labels = [
            (self._scenario.label_index(plan.dataset, label), name)
            if self._spec.single_head
            else (place, name)
            for place, (label, name) in enumerate(names)
        ]
        labels.sort()
        return TaskClasses(
            plan.name, tuple(n for n, _ in labels), tuple(name for _, name in labels)
        )
