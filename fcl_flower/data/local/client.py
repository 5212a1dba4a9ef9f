"""A client's local data, which are the tasks in its folder when a message arrives."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import chain
from logging import WARNING
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from typing_extensions import override

from fcl_flower.config.run_config import LookAlikes
from fcl_flower.core.errors import ConfigError, Fault
from fcl_flower.core.log import log
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.data.datasets import Dataset, Split
from fcl_flower.data.examples import (
    ClientData,
    Examples,
    PublicExamples,
    SplitName,
    TaskClasses,
    TaskData,
    instruction_examples,
    to_inputs,
)
from fcl_flower.data.instructions import ChatTokenizer
from fcl_flower.data.labels import spellings
from fcl_flower.data.local.formats import (
    FOLDER,
    FileSamples,
    check_columns,
    columns_of,
    count_samples,
    ending,
    read_samples,
    sample_files,
)
from fcl_flower.data.local.layout import TaskFiles, find_tasks
from fcl_flower.data.partition import at_most, train_valid_split
from fcl_flower.data.texts import Tokenizer, words
from fcl_flower.data.word_vectors import WordVectors, vectors_from
from fcl_flower.models.normalisation import FIXED, Normalisation

TEST_FRACTION = 0.2
"""The share of each class that is held out if a task brings no test samples."""

Stamp = tuple[str, int, int]
"""The version of a file: path, time of the last change in nanoseconds, and bytes."""


@dataclass(frozen=True, slots=True)
class LocalDataSpec:
    """The form of local data that a run expects.

    Attributes:
        dataset_type: type of data set that the model takes.
        input_shape: input shape of the model.
        width: numbers in a word's vector for texts; 0 for other data.
        classes: largest number of classes of a task.
        labels: labels of a single head, in order; empty if each task numbers its own.
        valid_fraction: share of each class that is held out for validation if a task
            brings no validation samples.
        seed: the run's seed.
        max_train_per_class: limit of a task's samples of each class for training and
            validation; 0 for no limit.
        max_test_per_class: limit of a task's test samples of each class; 0 for no
            limit.
        places: width of a single head that grows as clients name classes; 0 for other
            heads.
        normalisation: normalisation of images.
        look_alikes: rule for labels that look alike.
        columns: sorted names of a table's columns of numbers; empty for any columns.
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
        """The width of a head."""
        return self.places or len(self.labels) or self.classes

    @property
    def single_head(self) -> bool:
        """Whether all tasks share one head."""
        return bool(self.places or self.labels)

    def read(self, path: Path, known: Sequence[str]) -> FileSamples:
        """Read a client's file; labels that look like a known one take its spelling."""
        samples = read_samples(path, self.dataset_type, self.input_shape)
        return samples.spelled(known, self.look_alikes)

    def listed(self, files: TaskFiles) -> tuple[str, ...]:
        """List a task's labels in the manifest, in the spelling of the run's labels."""
        if self.look_alikes != "merge":
            return files.labels
        chosen = spellings(dict.fromkeys(files.labels, 1), self.labels)
        return tuple(chosen.values())


@dataclass(frozen=True, slots=True, eq=False)
class LocalTask:
    """A task of local data that is checked and split for training.

    Attributes:
        data: training and test samples; its class names are the labels of the head.
        valid: validation samples; empty if every class has a single sample.
        classes: labels of the task.
        columns: sorted names of a sample's numbers; empty if they have no names.
    """

    data: Dataset
    valid: Split
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()


def load_task(
    files: TaskFiles,
    number: int,
    spec: LocalDataSpec,
    begun: TaskClasses | None = None,
) -> LocalTask:
    """Read a task; later calls return the same object until a file of it changes.

    The task's number and the seed decide which samples are held out. ``begun`` has the
    classes and columns of the task's first round, if there was one: a class keeps its
    number in the head, and new classes come last.

    Raises:
        ConfigError: the files do not fit the run, or what the task began with.
    """
    paths = [path for path in (files.train, files.valid, files.test) if path]
    stamps = tuple(stamp for path in paths for stamp in _stamps(path))
    return _loaded(files, number, spec, begun, stamps)


def _stamps(path: Path) -> Iterator[Stamp]:
    try:
        for part in sample_files(path):
            status = part.stat()
            yield str(part), status.st_mtime_ns, status.st_size
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}), expected a file, or a folder "
            "of images",
            Fault.UNREADABLE,
        ) from error


def finished_tasks(
    folder: Path, *, marked: bool, report: Callable[[ConfigError], None]
) -> list[int]:
    """Count the training samples of each complete task.

    The list ends before a task whose files cannot be read, and its error is reported.
    """
    counts = list[int]()
    try:
        for files in find_tasks(folder, marked=marked):
            counts.append(_counted(files.train, tuple(_stamps(files.train))))
    except ConfigError as error:
        report(error)
    return counts


@lru_cache(maxsize=1024)
def _counted(path: Path, stamps: tuple[Stamp, ...]) -> int:
    return count_samples(path)


# A task may be large, and a few suffice for a client that stays at one task.
@lru_cache(maxsize=8)
def _loaded(
    files: TaskFiles,
    number: int,
    spec: LocalDataSpec,
    begun: TaskClasses | None,
    stamps: tuple[Stamp, ...],
) -> LocalTask:
    listed = spec.listed(files)
    first = begun.names if begun and not spec.single_head else ()
    train = spec.read(files.train, spec.labels or first or listed)
    valid, test = (
        None if path is None else spec.read(path, train.names)
        for path in (files.valid, files.test)
    )
    _check_classes(train, files.name, listed, spec)
    check_columns(train.columns, train.where, spec.columns, "the run (data.columns)")
    for other in (valid, test):
        if other is not None:
            _check_against(train, other)
    if begun:
        whose = "the task's first round"
        check_columns(train.columns, train.where, begun.columns, whose)
    order = spec.labels or _grown(first, listed or train.names, train, spec)
    numbers = {label: index for index, label in enumerate(order)}
    rest = train.split(numbers)

    def part(samples: FileSamples | None, purpose: str, fraction: float) -> Split:
        nonlocal rest
        if samples is not None:
            return samples.split(numbers)
        rng = np.random.default_rng(derive(spec.seed, purpose, number))
        remaining, held_out = train_valid_split(rest.y, fraction, rng)
        split, rest = rest.take(held_out), rest.take(remaining)
        return split

    def capped(split: Split, most: int, purpose: str) -> Split:
        rng = np.random.default_rng(derive(spec.seed, purpose, number))
        return split.take(at_most(split.y, most, rng)) if most else split

    tested = part(test, "own-test", TEST_FRACTION)
    tested = capped(tested, spec.max_test_per_class, "local-max-test")
    rest = capped(rest, spec.max_train_per_class, "local-max-train")
    validated = part(valid, "own-valid", spec.valid_fraction)
    if not len(tested.y):
        raise ConfigError(
            f"{train.where}: every class has a single sample, expected more, or a test "
            "file: there is nothing to test with",
            Fault.FEW,
        )
    data = spec.dataset_type(files.name, rest, tested, tuple(order))
    classes = tuple(name for name in order if name in {*train.names, *first})
    return LocalTask(data, validated, classes, train.columns)


def _grown(
    first: Sequence[str], names: Sequence[str], train: FileSamples, spec: LocalDataSpec
) -> Sequence[str]:
    """Put classes that a task began without behind those that it began with."""
    order = (*first, *(name for name in names if name not in first))
    if len(order) > spec.classes:
        raise ConfigError(
            f"{train.where}: the classes are {', '.join(names)}, expected those of the "
            f"task's first round, {', '.join(first)}: its head has no more than "
            f"{spec.classes} places (scenario.classes_per_task)",
            Fault.CHANGED,
        )
    if first and {*first} != {*names}:
        log(
            WARNING,
            "%s: the classes are %s; the head of the task keeps those of its first "
            "round in their places: %s",
            train.where,
            ", ".join(names),
            ", ".join(order),
        )
    return order


def _check_classes(
    train: FileSamples, task: str, listed: Sequence[str], spec: LocalDataSpec
) -> None:
    names = train.names
    if len(names) < 2 and not spec.single_head:
        raise ConfigError(
            f"{train.where}: every label is {names[0]!r:.60}, expected at least two "
            "classes; with one head for the classes of all, one will do "
            "(--set model.head=single)",
            Fault.CLASSES,
        )
    if len(names) > spec.classes:
        raise ConfigError(
            f"{train.where}: has {len(names)} classes, expected at most the "
            f"{spec.classes} that the run has room for",
            Fault.CLASSES,
        )
    for label in names:
        if spec.labels and label not in spec.labels:
            raise ConfigError(
                f"{train.location(label)}: label is {label!r:.60}, expected one of the "
                f"run's labels: {', '.join(spec.labels)}",
                Fault.LABEL,
            )
    if listed and {*listed} != {*names}:
        odd = sorted({*listed} ^ {*names})[0]
        raise ConfigError(
            f"{train.where}: label {odd!r:.60} is only here or only in the labels that "
            f"the manifest gives for {task!r}, expected it in both",
            Fault.LABEL,
        )


def _check_against(train: FileSamples, other: FileSamples) -> None:
    for label in other.names:
        if label not in train.names:
            raise ConfigError(
                f"{other.location(label)}: label is {label!r:.60}, expected one of "
                f"those in {train.where}",
                Fault.LABEL,
            )
    if bool(other.columns) != bool(train.columns):
        named, unnamed = (other, train) if other.columns else (train, other)
        raise ConfigError(
            f"{unnamed.where}: the columns have no names, expected those of "
            f"{named.where}, in a file of the same format",
            Fault.COLUMNS,
        )
    check_columns(other.columns, other.where, train.columns, train.where)


class LocalData(ClientData):
    """A client's local data.

    Its errors name only the task, since they travel to the server. The cause of an
    error names file, line and value, and stays with the client.
    """

    def __init__(
        self,
        folder: Path,
        spec: LocalDataSpec,
        tasks: int,
        words: Path | Tokenizer | ChatTokenizer | None,
        *,
        marked: bool = False,
        tells: bool = True,
    ) -> None:
        """Find the first tasks of a folder.

        Args:
            folder: the client's folder.
            spec: form of the data.
            tasks: number of tasks that must be there.
            words: for texts the file of word vectors, or the tokenizer of a model that
                needs no vectors.
            marked: whether only marked tasks count, as in `find_tasks`.
            tells: whether errors tell the server the kind of a fault.
        """
        self._spec, self._words, self._tells = spec, words, tells
        self._begun = dict[int, TaskClasses]()
        self._kept: Payload = {}
        with _hide_details("data-path: the client's folder", "folder", tells=tells):
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
        # The table has the words of old tasks, too, since one model serves all tasks.
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
        loaded = self._task(task)
        with self._hidden(task):
            return _examples(loaded, split, self._spec, words)

    @override
    def classes(self, task: int) -> TaskClasses:
        loaded = self._task(task)
        labels = tuple(map(loaded.data.class_names.index, loaded.classes))
        return TaskClasses(loaded.data.name, labels, loaded.classes, loaded.columns)

    @override
    def keep_classes(self, task: int) -> Payload:
        classes = self.classes(task)
        if self._begun.get(task) == classes:
            return self._kept
        text = json.dumps(asdict(classes)).encode()
        return {**self._kept, str(task): {"json": np.frombuffer(text, np.uint8)}}

    @override
    def restore_classes(self, kept: Payload) -> None:
        self._kept = kept
        for task, arrays in kept.items():
            fields = json.loads(np.asarray(arrays["json"]).tobytes())
            lists = {key: tuple(fields[key]) for key in ("labels", "names", "columns")}
            self._begun[int(task)] = TaskClasses(fields["name"], **lists)

    def class_names(self, task: int) -> tuple[str, ...]:
        """Name the classes of a task, in the order of the manifest, or sorted."""
        files, spec = self._files[task], self._spec
        with self._hidden(task):
            listed = spec.listed(files)
            samples = spec.read(files.train, spec.labels or listed)
        return listed or samples.names

    def _hidden(self, task: int) -> AbstractContextManager[None]:
        form = ending(self._files[task].train).replace(FOLDER, "images")
        subject = f"task {task}: the client's data"
        return _hide_details(subject, form or "file", tells=self._tells)

    def _task(self, number: int) -> LocalTask:
        first, files = self._files[0].train, self._files[number]
        with self._hidden(number):
            task = load_task(files, number, self._spec, self._begun.get(number))
            if number and task.columns:
                where = str(files.train)
                check_columns(task.columns, where, columns_of(first), str(first))
        return task


def local_vectors(
    tasks: Sequence[LocalTask], path: Path, spec: LocalDataSpec
) -> WordVectors:
    """Read the vectors of all words of one or more tasks of texts."""
    train = [words(text) for task in tasks for text in task.data.train.x]
    vocabulary: dict[str, None] = {}
    for task in tasks:
        splits = (task.data.train, task.valid, task.data.test)
        texts = (words(text) for split in splits for text in split.x)
        # New words come last: a client may have stored the numbers of old ones.
        vocabulary |= dict.fromkeys(sorted(set(chain.from_iterable(texts))))
    vectors = vectors_from(path, list(vocabulary), train, spec.seed)
    if (width := vectors.table.shape[1]) != spec.width:
        raise ConfigError(
            f"word-vectors: {path} has vectors of {width} numbers, expected "
            f"{spec.width}, the features of the run"
        )
    return vectors


# A table takes tens of megabytes, so the cache is for the process's own client.
_cached_vectors = lru_cache(maxsize=4)(local_vectors)


@lru_cache(maxsize=8)
def _examples(
    task: LocalTask,
    split: SplitName,
    spec: LocalDataSpec,
    words: Tokenizer | ChatTokenizer | None,
) -> Examples:
    chosen = task.valid if split == "valid" else task.data.split(split)
    all_rows = np.arange(len(chosen.y))
    if isinstance(words, ChatTokenizer):
        return instruction_examples(chosen, all_rows, words)
    x = to_inputs(
        task.data, chosen, all_rows, spec.input_shape, words, spec.normalisation
    )
    return Examples(x, torch.from_numpy(chosen.y.copy()))


@contextmanager
def _hide_details(
    subject: str, form: str = "", *, tells: bool = True
) -> Iterator[None]:
    """Replace an error by one that leaves the client.

    It names the ``form`` of the file and the kind of the fault, unless the client
    forbids that (``tells``). Without a form it names neither.
    """
    try:
        yield
    except ConfigError as error:
        kind = f" ({form}: {error.fault})" if form and tells and error.fault else ""
        raise ConfigError(
            f"{subject} cannot be used{kind}; the client's own log says why"
        ) from error


def load_public_file(
    path: Path, spec: LocalDataSpec, tokenizer: Tokenizer | ChatTokenizer | None
) -> PublicExamples:
    """Read the server's public samples from a file in a format of local data.

    A label that the run does not have is a class that no client has.
    """
    samples = spec.read(path, spec.labels)
    split = Split(samples.x, samples.codes)
    data = spec.dataset_type("public", split, split, samples.names)
    all_rows = np.arange(len(samples.codes))
    x = to_inputs(
        data, split, all_rows, spec.input_shape, tokenizer, spec.normalisation
    )
    head = {label: index for index, label in enumerate(spec.labels)}
    indices = np.array([head.get(name, -1) for name in samples.names], np.int64)
    y, classes = indices[samples.codes], samples.codes.copy()
    return PublicExamples(x, torch.from_numpy(y), torch.from_numpy(classes))
