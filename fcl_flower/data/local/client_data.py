"""A client's local data: the tasks in its folder when a message arrives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from typing_extensions import override

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import TaskStage
from fcl_flower.data.client_data import ClientData
from fcl_flower.data.datasets.base import Split
from fcl_flower.data.datasets.text import words
from fcl_flower.data.examples import Examples, SplitName, TaskData
from fcl_flower.data.inputs import to_inputs
from fcl_flower.data.local.layout import find_tasks
from fcl_flower.data.local.task import LocalDataSpec, LocalTask, load_task
from fcl_flower.data.text.tokenizers import Tokenizer
from fcl_flower.data.text.word_vectors import WordVectors, vectors_from


class LocalData(ClientData):
    """A client's local data.

    What is wrong with them stays here: the errors raised name no more than the task,
    since they travel to the server. Their cause names file, line and value.
    """

    def __init__(
        self,
        folder: Path,
        wanted: LocalDataSpec,
        tasks: int,
        words: Path | Tokenizer | None,
    ) -> None:
        """Look into the folder.

        Args:
            folder: the client's ``data-path``.
            wanted: what the run expects.
            tasks: how many tasks the client is asked for.
            words: where the data are text, the file of word vectors, or what numbers
                texts without one.

        Raises:
            ConfigError: the folder is not in order, or has fewer tasks as yet.
        """
        self._wanted, self._words = wanted, words
        with _discreet("data-path: the client's folder"):
            self._files = find_tasks(folder, tasks)
        if len(self._files) < tasks:
            raise ConfigError(
                f"task {tasks - 1} is not there yet: the client has "
                f"{len(self._files)} of {tasks}"
            )

    @cached_property
    @override
    def vectors(self) -> WordVectors | None:
        if not isinstance(self._words, Path):
            return None
        # The words of old tasks as well: one model answers for them all.
        tasks = tuple(self._task(number) for number in range(len(self._files)))
        with _discreet("word-vectors: the client's file"):
            return _cached_vectors(tasks, self._words, self._wanted)

    @override
    def training(self, stage: TaskStage) -> TaskData:
        train, valid, test = (
            self.examples(stage.task, split) for split in get_args(SplitName)
        )
        return TaskData(train, valid, test, self._wanted.logits)

    @override
    def examples(self, task: int, split: SplitName) -> Examples:
        words = self.vectors if isinstance(self._words, Path) else self._words
        return _examples(self._task(task), split, self._wanted.input_shape, words)

    def _task(self, number: int) -> LocalTask:
        with _discreet(f"task {number}: the client's data"):
            return load_task(self._files[number], number, self._wanted)


def local_vectors(
    tasks: Sequence[LocalTask], path: Path, wanted: LocalDataSpec
) -> WordVectors:
    """Return the vectors of all words of some tasks of texts.

    Args:
        tasks: at least one.
        path: of the file, in a format of `read_vectors`.
        wanted: what the run expects.

    Raises:
        ConfigError: the file is broken, has none of the words, or vectors of another
            width than the run's.
    """
    train = [words(text) for task in tasks for text in task.data.train.x]
    vocabulary: dict[str, None] = {}
    for task in tasks:
        splits = (task.data.train, task.valid, task.data.test)
        texts = (words(text) for split in splits for text in split.x)
        # New words come last: a client may have stored the numbers of old ones.
        vocabulary |= dict.fromkeys(sorted(set(chain.from_iterable(texts))))
    found = vectors_from(path, list(vocabulary), train, wanted.seed)
    if (width := found.table.shape[1]) != wanted.width:
        raise ConfigError(
            f"word-vectors: {path} has vectors of {width} numbers, expected "
            f"{wanted.width}, the features of the run"
        )
    return found


# A table is tens of megabytes: kept for the client that a process serves.
_cached_vectors = lru_cache(maxsize=4)(local_vectors)


@lru_cache(maxsize=8)
def _examples(
    task: LocalTask,
    split: SplitName,
    input_shape: tuple[int, ...],
    words: Tokenizer | None,
) -> Examples:
    samples = {"train": task.data.train, "valid": task.valid, "test": task.data.test}
    chosen: Split = samples[split]
    everyone = np.arange(len(chosen.y))
    x = to_inputs(task.data, chosen, everyone, input_shape, words)
    return Examples(x, torch.from_numpy(chosen.y.copy()))


@contextmanager
def _discreet(what: str) -> Iterator[None]:
    """Keep what an error says about the data where the data are."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{what} cannot be used; the client's own log says why"
        ) from error
