"""A task's samples as tensors, ready for a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from fcl_flower.data.images import to_tensor
from fcl_flower.data.imageset import Split
from fcl_flower.data.plan import Scenario
from fcl_flower.data.sources import load_source
from fcl_flower.data.word_vectors import WordVectors
from fcl_flower.errors import ConfigError


class Examples(NamedTuple):
    """Inputs and labels; may be shared with a cache, so not to be changed in place.

    Attributes:
        x: images, float32, shape ``(N, *input_shape)``; or documents, int64 word
            numbers, shape (N, words of the longest), padded with 0 at the end.
        y: int64, shape (N,).
    """

    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TaskData:
    """All that a learner sees of one task.

    Attributes:
        train: what the parameters are fitted to.
        valid: what the learning rate and stopping are decided by; may be empty
            where every class has a single sample.
        test: never seen in training.
        classes: number of labels, which are 0..classes-1.
    """

    train: Examples
    valid: Examples
    test: Examples
    classes: int


def task_data(
    scenario: Scenario,
    client: int,
    task: int,
    *,
    data_root: Path,
    input_shape: tuple[int, ...],
    single_head: bool,
    vectors: WordVectors | None = None,
) -> TaskData:
    """Return the three splits of one task of one client.

    Args:
        scenario: the plan.
        client: counted from 0.
        task: counted from 0, in the client's own order.
        data_root: where the sources are.
        input_shape: of the model.
        single_head: label by position in ``scenario.labels`` instead of by position
            among the task's own classes.
        vectors: number the words, where the data are text.
    """

    def split(name: Literal["train", "valid", "test"]) -> Examples:
        return task_examples(
            scenario,
            client,
            task,
            name,
            data_root=data_root,
            input_shape=input_shape,
            single_head=single_head,
            vectors=vectors,
        )

    classes = scenario.num_labels if single_head else scenario.classes_per_task
    return TaskData(split("train"), split("valid"), split("test"), classes)


# A few entries only: enough for a client that stays at one task over many rounds.
@lru_cache(maxsize=8)
def task_examples(
    scenario: Scenario,
    client: int,
    task: int,
    split: Literal["train", "valid", "test"],
    *,
    data_root: Path,
    input_shape: tuple[int, ...],
    single_head: bool,
    vectors: WordVectors | None = None,
) -> Examples:
    """Return one split alone (an evaluation needs no training images).

    The arguments are those of `task_data`.
    """
    plan = scenario.clients[client][task]
    source = load_source(plan.dataset, data_root)
    indices = {"train": plan.train, "valid": plan.valid, "test": plan.test}[split]
    known = (
        [scenario.labels.index((plan.dataset, label)) for label in plan.classes]
        if single_head
        else range(len(plan.classes))
    )
    samples = source.test if split == "test" else source.train
    positions = np.searchsorted(plan.classes, samples.y[indices])
    y = torch.from_numpy(np.asarray(known, np.int64)[positions])
    if isinstance(samples, Split):
        return Examples(to_tensor(samples.x[indices], input_shape), y)
    if vectors is None:
        raise ConfigError(
            f"dataset: {plan.dataset!r} is text, which needs word vectors"
        )
    numbers = vectors.numbered([samples.x[i] for i in indices])
    return Examples(torch.from_numpy(numbers), y)


def batches(
    examples: Examples, batch_size: int, seed: int | None = None
) -> Iterator[Examples]:
    """Yield all examples once; the last batch may be smaller.

    Args:
        examples: N of them; none gives no batch.
        batch_size: at least 1.
        seed: of the shuffling; None keeps the order.
    """
    count = len(examples.y)
    if seed is None:
        order = torch.arange(count)
    else:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    for start in range(0, count, batch_size):
        chosen = order[start : start + batch_size]
        yield Examples(examples.x[chosen], examples.y[chosen])
