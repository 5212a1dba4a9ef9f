"""A client's local data: the tasks in its folder when a message arrives."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from typing_extensions import override

from fcl_flower.config.run_config import LookAlikes
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.examples import (
    ClientData,
    Examples,
    PublicExamples,
    SplitName,
    TaskClasses,
    TaskData,
    to_inputs,
)
from fcl_flower.data.labels import spellings
from fcl_flower.data.local.formats import (
    FileSamples,
    check_columns,
    columns_of,
    count_samples,
    read_samples,
    sample_files,
)
from fcl_flower.data.local.layout import TaskFiles, find_tasks
from fcl_flower.data.partition import at_most, train_valid_split
from fcl_flower.data.texts import Tokenizer, words
from fcl_flower.data.word_vectors import WordVectors, vectors_from
from fcl_flower.models.normalisation import FIXED, Normalisation

TEST_FRACTION = 0.2
"""Share of each class that is kept to test where a task brings no test samples."""

Stamp = tuple[str, int, int]
"""Path, time of the last change in nanoseconds, and bytes: tells a file's versions."""


@dataclass(frozen=True, slots=True)
class LocalDataSpec:
    """What a run expects of local data.

    Attributes:
        dataset_type: what the model takes.
        input_shape: of the model.
        width: numbers in a word's vector, where the data are text; 0 elsewhere.
        classes: the most classes that a task may have.
        labels: of a single head, in order; empty where each task numbers its own.
        valid_fraction: share of each class to validate where a task brings none.
        seed: the run's seed.
        max_train_per_class: samples of each class in a task to train and validate on;
            0 for all.
        max_test_per_class: likewise to test.
        places: of a single head that grows as clients name classes; 0 for any other.
        normalisation: of images.
        look_alikes: what is done with labels that look alike.
        columns: names of a table's columns of numbers, sorted; empty for any.
    """

    dataset_type: type[Dataset]
    input_shape: tuple[int, ...]
    width: int
    classes: int
    labels: tuple[str, ...]
    valid_fraction: float
    seed: int
    max_train_per_class: int = 0
    max_test_per_class: int = 0
    places: int = 0
    normalisation: Normalisation = FIXED
    look_alikes: LookAlikes = "refuse"
    columns: tuple[str, ...] = ()

    @property
    def logits(self) -> int:
        """Width of a head."""
        return self.places or len(self.labels) or self.classes

    @property
    def single_head(self) -> bool:
        """Whether all classes have one head."""
        return bool(self.places or self.labels)

    def read(self, path: Path, known: Sequence[str]) -> FileSamples:
        """Read a file of a client, its labels spelled like those that are known."""
        found = read_samples(path, self.dataset_type, self.input_shape)
        return found.spelled(known, self.look_alikes)

    def listed(self, files: TaskFiles) -> tuple[str, ...]:
        """List the labels of a task's manifest, spelled like those of the run."""
        if self.look_alikes != "merge":
            return files.labels
        found = spellings(dict.fromkeys(files.labels, 1), self.labels)
        return tuple(found.values())


@dataclass(frozen=True, slots=True, eq=False)
class LocalTask:
    """A task that is fit for training.

    The class names of ``data`` are the labels of the head, ``classes`` those of the
    task. ``valid`` has no samples where every class has a single one. ``columns`` are
    the sorted names of a sample's numbers, where they have names.
    """

    data: Dataset
    valid: Split
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()


def load_task(files: TaskFiles, number: int, spec: LocalDataSpec) -> LocalTask:
    """Read a task; later calls return the same object until one of its files changes.

    Which samples are held out depends on the task's number and the seed.
    """
    given = [path for path in (files.train, files.valid, files.test) if path]
    stamps = tuple(stamp for path in given for stamp in _stamps(path))
    return _loaded(files, number, spec, stamps)


def _stamps(path: Path) -> Iterator[Stamp]:
    try:
        for part in sample_files(path):
            found = part.stat()
            yield str(part), found.st_mtime_ns, found.st_size
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}), expected a file, or a folder "
            "of images"
        ) from error


def finished_tasks(
    folder: Path, *, marked: bool, report: Callable[[ConfigError], None]
) -> list[int]:
    """Count the training samples of each task that is there and whole.

    A task whose files cannot be read ends the list; what is wrong is reported.
    """
    found = list[int]()
    try:
        for files in find_tasks(folder, marked=marked):
            found.append(_counted(files.train, tuple(_stamps(files.train))))
    except ConfigError as error:
        report(error)
    return found


@lru_cache(maxsize=1024)
def _counted(path: Path, stamps: tuple[Stamp, ...]) -> int:
    return count_samples(path)


# Few, since a task may be large: enough for a client that stays at one.
@lru_cache(maxsize=8)
def _loaded(
    files: TaskFiles, number: int, spec: LocalDataSpec, stamps: tuple[Stamp, ...]
) -> LocalTask:
    listed = spec.listed(files)
    train = spec.read(files.train, spec.labels or listed)
    valid, test = (
        None if path is None else spec.read(path, train.names)
        for path in (files.valid, files.test)
    )
    _check_classes(train, files.name, listed, spec)
    check_columns(train.columns, train.where, spec.columns, "the run (data.columns)")
    for other in (valid, test):
        if other is not None:
            _check_against(train, other)
    order = spec.labels or listed or train.names
    numbers = {label: index for index, label in enumerate(order)}
    rest = train.split(numbers)

    def part(given: FileSamples | None, purpose: str, fraction: float) -> Split:
        nonlocal rest
        if given is not None:
            return given.split(numbers)
        rng = np.random.default_rng(derive(spec.seed, purpose, number))
        kept, cut = train_valid_split(rest.y, fraction, rng)
        cut_out, rest = rest.take(cut), rest.take(kept)
        return cut_out

    def capped(split: Split, most: int, purpose: str) -> Split:
        rng = np.random.default_rng(derive(spec.seed, purpose, number))
        return split.take(at_most(split.y, most, rng)) if most else split

    tested = part(test, "own-test", TEST_FRACTION)
    tested = capped(tested, spec.max_test_per_class, "local-max-test")
    rest = capped(rest, spec.max_train_per_class, "local-max-train")
    held = part(valid, "own-valid", spec.valid_fraction)
    if not len(tested.y):
        raise ConfigError(
            f"{train.where}: every class has a single sample, expected more, or a test "
            "file: there is nothing to test with"
        )
    data = spec.dataset_type(files.name, rest, tested, tuple(order))
    classes = tuple(name for name in order if name in train.names)
    return LocalTask(data, held, classes, train.columns)


def _check_classes(
    train: FileSamples, task: str, listed: Sequence[str], spec: LocalDataSpec
) -> None:
    names = train.names
    if len(names) < 2 and not spec.single_head:
        raise ConfigError(
            f"{train.where}: every label is {names[0]!r:.60}, expected at least two "
            "classes; with one head for the classes of all, one will do "
            "(--set model.head=single)"
        )
    if len(names) > spec.classes:
        raise ConfigError(
            f"{train.where}: has {len(names)} classes, expected at most the "
            f"{spec.classes} that the run has room for"
        )
    for label in names:
        if spec.labels and label not in spec.labels:
            raise ConfigError(
                f"{train.location(label)}: label is {label!r:.60}, expected one of the "
                f"run's labels: {', '.join(spec.labels)}"
            )
    if listed and {*listed} != {*names}:
        odd = sorted({*listed} ^ {*names})[0]
        raise ConfigError(
            f"{train.where}: label {odd!r:.60} is only here or only in the labels that "
            f"the manifest gives for {task!r}, expected it in both"
        )


def _check_against(train: FileSamples, other: FileSamples) -> None:
    for label in other.names:
        if label not in train.names:
            raise ConfigError(
                f"{other.location(label)}: label is {label!r:.60}, expected one of "
                f"those in {train.where}"
            )
    if bool(other.columns) != bool(train.columns):
        one, none = (other, train) if other.columns else (train, other)
        raise ConfigError(
            f"{none.where}: the columns have no names, expected those of {one.where}, "
            "in a file of the same format"
        )
    check_columns(other.columns, other.where, train.columns, train.where)


class LocalData(ClientData):
    """A client's local data.

    What is wrong with them stays here: the errors raised name no more than the task,
    since they travel to the server. Their cause names file, line and value.
    """

    def __init__(
        self,
        folder: Path,
        spec: LocalDataSpec,
        tasks: int,
        words: Path | Tokenizer | None,
        *,
        marked: bool = False,
    ) -> None:
        """Look for so many tasks in the folder; see `find_tasks`.

        ``words`` is, for texts, the file of word vectors, or the tokenizer of a model
        that needs none.
        """
        self._spec, self._words = spec, words
        with _hide_details("data-path: the client's folder"):
            self._files = find_tasks(folder, tasks, marked=marked)
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
        with _hide_details("word-vectors: the client's file"):
            return _cached_vectors(tasks, self._words, self._spec)

    @override
    def training(self, stage: TaskStage) -> TaskData:
        train, valid, test = (
            self.examples(stage.task, split) for split in get_args(SplitName)
        )
        return TaskData(train, valid, test, self._spec.logits)

    @override
    def examples(self, task: int, split: SplitName) -> Examples:
        words = self.vectors if isinstance(self._words, Path) else self._words
        return _examples(self._task(task), split, self._spec, words)

    @override
    def classes(self, task: int) -> TaskClasses:
        found = self._task(task)
        labels = tuple(map(found.data.class_names.index, found.classes))
        return TaskClasses(found.data.name, labels, found.classes, found.columns)

    def class_names(self, task: int) -> tuple[str, ...]:
        """Name the classes of a task, in the order of its manifest, or sorted."""
        files, spec = self._files[task], self._spec
        with _hide_details(f"task {task}: the client's data"):
            listed = spec.listed(files)
            found = spec.read(files.train, spec.labels or listed)
        return listed or found.names

    def _task(self, number: int) -> LocalTask:
        first, files = self._files[0].train, self._files[number]
        with _hide_details(f"task {number}: the client's data"):
            found = load_task(files, number, self._spec)
            if number and found.columns:
                where = str(files.train)
                check_columns(found.columns, where, columns_of(first), str(first))
        return found


def local_vectors(
    tasks: Sequence[LocalTask], path: Path, spec: LocalDataSpec
) -> WordVectors:
    """Read the vectors of all words of some tasks of texts, at least one."""
    train = [words(text) for task in tasks for text in task.data.train.x]
    vocabulary: dict[str, None] = {}
    for task in tasks:
        splits = (task.data.train, task.valid, task.data.test)
        texts = (words(text) for split in splits for text in split.x)
        # New words come last: a client may have stored the numbers of old ones.
        vocabulary |= dict.fromkeys(sorted(set(chain.from_iterable(texts))))
    found = vectors_from(path, list(vocabulary), train, spec.seed)
    if (width := found.table.shape[1]) != spec.width:
        raise ConfigError(
            f"word-vectors: {path} has vectors of {width} numbers, expected "
            f"{spec.width}, the features of the run"
        )
    return found


# A table is tens of megabytes: kept for the client that a process serves.
_cached_vectors = lru_cache(maxsize=4)(local_vectors)


@lru_cache(maxsize=8)
def _examples(
    task: LocalTask,
    split: SplitName,
    spec: LocalDataSpec,
    words: Tokenizer | None,
) -> Examples:
    chosen = task.valid if split == "valid" else task.data.split(split)
    everyone = np.arange(len(chosen.y))
    x = to_inputs(
        task.data, chosen, everyone, spec.input_shape, words, spec.normalisation
    )
    return Examples(x, torch.from_numpy(chosen.y.copy()))


@contextmanager
def _hide_details(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{what} cannot be used; the client's own log says why"
        ) from error


def load_public_file(
    path: Path, spec: LocalDataSpec, tokenizer: Tokenizer | None
) -> PublicExamples:
    """Read the server's public samples from a file in a format of local data.

    A label that is none of the run's is a class that no client has.
    """
    found = spec.read(path, spec.labels)
    split = Split(found.x, found.codes)
    data = spec.dataset_type("public", split, split, found.names)
    everyone = np.arange(len(found.codes))
    x = to_inputs(
        data, split, everyone, spec.input_shape, tokenizer, spec.normalisation
    )
    head = {label: index for index, label in enumerate(spec.labels)}
    indices = np.array([head.get(name, -1) for name in found.names], np.int64)
    y, classes = indices[found.codes], found.codes.copy()
    return PublicExamples(x, torch.from_numpy(y), torch.from_numpy(classes))
