"""Turn what both sides say into the content of messages, and back."""

import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import (
    AnyArray,
    Arrays,
    Assignment,
    Evaluation,
    Payload,
    ReceivedArrays,
    TaskStage,
    TensorSpec,
    Update,
)
from fcl_flower.rounds.codec import (
    EXACT,
    LEVELS,
    Encoded,
    WireDtype,
    WireFormat,
    decode,
    encode,
    is_matrix,
    spec,
)
from fcl_flower.rounds.stored import StoredArrays
from fcl_flower.rounds.transport import Content, Value

STAGE = "fcl.stage"
METRICS = "fcl.metrics"
SCORES = "fcl.scores"
STATE_LOST = "fcl.forgotten"
RUN_UNKNOWN = "fcl.unknown-run"
SPEC = "fcl.run"
TASKS = "tasks"
CLASSES = "classes"
NUM_EXAMPLES = "num-examples"
NUMBER = "fcl.number"

MAX_BYTES = 2**31
MAX_EXAMPLES = 2**31
MAX_SAMPLES = 2**31
MAX_TASKS = 2**16
MAX_NAMES = 2**12
MAX_NAME = 200
MAX_METRICS = 2**14  # the journal keeps every scalar of every round
METRIC_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z][\w.-]*(/[\w.-]+)*", re.ASCII)
"""The names that a client may give a scalar: ``loss`` or ``attention/3/0``."""
MAX_SCALAR = 3.4e38  # a float32's range: sums over clients stay finite

_STAGE = {"round": int, "task": int, "first": bool, "last": bool}
"""The parts of a stage on the wire, in the order of the fields of `TaskStage`.

The last two names are shorter than those of the fields, for which published byte counts
were measured.
"""
BY_CLASS = ("right", "tested", "answered")
"""Names of the counts of `Evaluation.by_class`, each for all tasks in a row."""
BY_TASK = {"inferred": 1.0, "balanced-accuracy": 1.0, "losses": MAX_SCALAR}
"""Names of the scores by task that not every client sends, and the largest values."""
UNBALANCED = "unbalanced"

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Tensor: TypeAlias = AnyArray | Encoded
"""A tensor, or an encoded one, such as a difference."""
Tensors: TypeAlias = Mapping[str, Tensor]

# ---- sending


class MessageEncoder:
    """Encodes payloads; the same tensor is encoded once, to the same object.

    Flower stores an object by its content, so that a tensor for all clients is uploaded
    to the SuperLink once. Keep an encoder for one round only: it holds the tensors that
    it has seen.
    """

    def __init__(self, wire: WireFormat = EXACT) -> None:
        """Encode float32 tensors as ``wire`` says; other dtypes keep theirs."""
        self._wire = wire
        self._made: dict[tuple[int, WireDtype], tuple[object, Any]] = {}

    def payload(self, payload: Mapping[str, Tensors]) -> Content:
        """Encode a payload, group by group."""
        content = Content()
        for group, arrays in payload.items():
            precision = self._wire.precision(group)
            if isinstance(arrays, StoredArrays):
                # What travels exactly has the form that the disk has.
                read = (
                    arrays.encoded if precision == "float32" else partial(dict, arrays)
                )
                arrays = self._once(arrays, precision, read)
            content.tensors[group] = {
                name: self._encoded(tensor, precision)
                for name, tensor in arrays.items()
            }
        return content

    def encode_request(
        self, payload: Mapping[str, Tensors], assignment: Assignment
    ) -> Content:
        """Encode a payload with the assignment of the client that receives it."""
        content = self.payload(payload)
        content.scalars[STAGE] = _stage_values(
            assignment.stage, since=assignment.since, evaluate=assignment.evaluate
        )
        return content

    def encode_update(
        self,
        update: Update,
        stage: TaskStage,
        evaluation: Evaluation | None = None,
        payload: Mapping[str, Tensors] | None = None,
    ) -> Content:
        """Encode an update with its weight, its scalars and its scores, if it has some.

        ``payload`` has the tensors in the form in which they travel; None for those of
        the update.
        """
        content = self.payload(update.payload if payload is None else payload)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        content.scalars[STAGE] = _stage_values(stage)
        content.scalars[METRICS] = {**metrics, NUM_EXAMPLES: update.num_examples}
        if evaluation is not None:
            content.scalars[SCORES] = encode_evaluation(evaluation)
        return content

    def _encoded(self, tensor: Tensor, precision: WireDtype) -> Encoded:
        if isinstance(tensor, Encoded):
            return tensor
        if precision in LEVELS and not is_matrix(tensor):
            precision = "float32"
        return self._once(tensor, precision, partial(encode, tensor, precision))

    def _once(
        self, source: Tensor | Tensors, precision: WireDtype, make: Callable[[], T]
    ) -> T:
        key = id(source), precision
        if key not in self._made:
            self._made[key] = source, make()
        made: T = self._made[key][1]
        return made


def state_lost(server_round: int) -> Content:
    """Make the reply of a client that lacks its state of a round."""
    return Content(scalars={STATE_LOST: {"round": server_round}})


def _stage_values(stage: TaskStage, **more: int | bool) -> dict[str, Value]:
    return {**dict(zip(_STAGE, astuple(stage), strict=True)), **more}


# ---- receiving


def decode_request(content: Content) -> Assignment:
    """Decode the assignment in a request."""
    stage, fields = _stage(content, since=int, evaluate=bool)
    return Assignment(stage, fields["since"], fields["evaluate"])


def decode_update(content: Content, asked: TaskStage) -> Update:
    """Decode the update of a reply; its tensors are not decoded yet."""
    stage, _ = _stage(content)
    if stage != asked:
        raise WireError(f"{STAGE}: expected an answer to {asked}, got one to {stage}")
    metrics: dict[str, Any] = dict(content.scalars.get(METRICS, {}))
    if len(metrics) > MAX_METRICS:
        raise WireError(
            f"{METRICS}: expected at most {MAX_METRICS} scalars, got {len(metrics)}"
        )
    examples = [metrics.pop(NUM_EXAMPLES, None)]
    name = f"{METRICS}/{NUM_EXAMPLES}"
    (num_examples,) = _numbers(name, examples, 1, int, MAX_EXAMPLES)
    for name, value in metrics.items():
        if not METRIC_NAME.fullmatch(name):
            raise WireError(
                f"{METRICS}: expected names of up to 64 letters, digits and ._-/, "
                f"got {name[:64]!r}"
            )
        if type(value) not in (int, float) or not abs(value) <= MAX_SCALAR:
            raise WireError(
                f"{METRICS}/{name}: expected a finite float32, got {value!r:.100}"
            )
        metrics[name] = float(value)
    return Update(received_payload(content), num_examples, metrics)


# ---- short messages


def greeting(spec: str, number: int | None = None) -> Content:
    """Ask a node for its client's number and its version.

    The greeting carries the run, if that is known, and a number for a client that has
    none.
    """
    content = Content(scalars={SPEC: {"json": spec}} if spec else {})
    if number is not None:
        content.scalars[NUMBER] = {"client": number}
    return content


def told_run(content: Content) -> str:
    """Read the run in a greeting; empty if there is none."""
    return str(content.scalars[SPEC]["json"]) if SPEC in content.scalars else ""


def told_number(content: Content) -> int | None:
    """Read the number that a greeting gives a client; None if it gives none."""
    number = content.scalars.get(NUMBER, {}).get("client")
    return number if type(number) is int and number >= 0 else None


def finished_tasks(content: Content) -> tuple[int, ...]:
    """Read the number of samples of each finished task of a client.

    Raises:
        WireError: these are no such numbers.
    """
    samples: Any = content.scalars[TASKS]["samples"]
    count = min(len(samples), MAX_TASKS) if isinstance(samples, list) else 0
    return tuple(_numbers(f"{TASKS}/samples", samples, count, int, MAX_SAMPLES))


def class_names(content: Content) -> tuple[str, ...]:
    """Read the names of the classes of a client's task.

    Raises:
        WireError: these are no names, or a name cannot be listed.
    """
    names: Any = content.scalars[CLASSES]["names"]
    some = isinstance(names, list) and len(names) <= MAX_NAMES
    if not some or not all(map(_can_be_listed, names)):
        raise WireError(
            f"classes/names: expected names without commas, got {names!r:.60}"
        )
    return tuple(dict.fromkeys(names))


def _can_be_listed(name: object) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name == name.strip()
        and name.isprintable()
        and "," not in name
    )


# ---- payloads


def decode_payload(content: Content, max_bytes: int = MAX_BYTES) -> Payload:
    """Decode the payload of a message, read-only; see `received_payload`."""
    return decoded(received_payload(content, max_bytes))


def received_payload(content: Content, max_bytes: int = MAX_BYTES) -> Payload:
    """Read the payload of a message; none of its tensors is decoded yet.

    There is one budget for the whole message, in which each tensor takes the size of
    its dense form. A few bytes may claim many gigabytes of zeros, and many small claims
    add up like a large one.
    """
    payload, left = dict[str, Arrays](), max_bytes
    for group, tensors in content.tensors.items():
        specs: dict[str, TensorSpec] = {}
        for name in tensors:
            specs[name] = about = _named(spec, group, tensors, left, name)
            left -= math.prod(about.shape) * about.dtype.itemsize
        read = partial(_named, decode, group, tensors, max_bytes)
        payload[group] = ReceivedArrays(specs, read)
    return payload


def _named(
    read: Callable[[Encoded, int], T],
    group: str,
    tensors: Mapping[str, Encoded],
    max_bytes: int,
    name: str,
) -> T:
    """Describe or decode a tensor; an error names it."""
    try:
        return read(tensors[name], max_bytes)
    except WireError as error:
        raise WireError(f"{group}/{name}: {error}") from error


def decoded(payload: Payload) -> Payload:
    """Decode every tensor of a payload."""
    return {group: dict(arrays) for group, arrays in payload.items()}


def _stage(content: Content, **more: type) -> tuple[TaskStage, dict[str, Any]]:
    fields: dict[str, Any] = dict(content.scalars.get(STAGE, {}))
    expected = {**_STAGE, **more}
    if {name: type(value) for name, value in fields.items()} != expected:
        raise WireError(f"{STAGE}: expected {sorted(expected)}, got {fields}")
    return TaskStage(*(fields[name] for name in _STAGE)), fields


def _numbers(
    name: str, values: object, count: int, kind: type[Number], most: float
) -> list[Number]:
    """Read so many numbers from zero on; a whole number is a float, too."""
    listed: list[Any] = [None]  # no number
    if isinstance(values, list) and len(values) == count:
        listed = values
    numbers = [n for n in listed if type(n) in (int, kind) and 0 <= n <= most]
    if len(numbers) < len(listed):
        shown = reprlib.repr(values)
        raise WireError(
            f"{name}: expected {count} numbers in [0, {most:g}], got {shown:.60}"
        )
    return [kind(number) for number in numbers]


# ---- scores


def encode_evaluation(evaluation: Evaluation) -> dict[str, Value]:
    """Encode a client's scores as a table."""
    by_task = (evaluation.inferred, evaluation.balanced, evaluation.losses)
    by_name = zip(*evaluation.by_class, strict=True)
    counts = dict(zip(BY_CLASS, by_name, strict=False))  # none unless requested
    return {
        "accuracy": list(evaluation.accuracy),
        "model-bytes": evaluation.model_bytes,
        **{n: list(v) for n, v in zip(BY_TASK, by_task, strict=True) if v},
        **({UNBALANCED: 1} if evaluation.unbalanced else {}),
        **{name: [*chain.from_iterable(rows)] for name, rows in counts.items()},
    }


def decode_evaluation(
    row: Mapping[str, Value], tasks: int, classes: int = 0
) -> Evaluation:
    """Decode the scores of so many tasks, with counts for so many classes."""
    accuracy = _numbers("accuracy", row.get("accuracy"), tasks, float, 1)
    size = [row.get("model-bytes")]
    (model_bytes,) = _numbers("model-bytes", size, 1, int, math.inf)
    inferred, balanced, losses = (
        _numbers(name, row[name], tasks, float, most) if name in row else ()
        for name, most in BY_TASK.items()
    )
    (skewed,) = _numbers(UNBALANCED, [row.get(UNBALANCED, 0)], 1, int, 1)
    by_class: Sequence[Sequence[Sequence[int]]] = ()
    if classes:
        by_class = _by_class(row, accuracy, classes)
    return Evaluation(
        accuracy, model_bytes, by_class, inferred, balanced, bool(skewed), losses
    )


def _by_class(
    row: Mapping[str, Value], accuracy: Sequence[float], classes: int
) -> Sequence[Sequence[Sequence[int]]]:
    shape = len(accuracy), classes
    right, tested, answered = counts = [
        np.reshape(_numbers(n, row.get(n), math.prod(shape), int, MAX_SAMPLES), shape)
        for n in BY_CLASS
    ]
    if (right > np.minimum(tested, answered)).any():
        raise WireError(
            "right: expected at most as many of a class as were tested, and answered"
        )
    hits, samples = right.sum(1), tested.sum(1)
    if (answered.sum(1) != samples).any():
        raise WireError(
            f"answered: expected one answer to each of {samples.tolist()} samples, "
            f"got {answered.sum(1).tolist()}"
        )
    # An honest client divides the same integers.
    if (hits / np.maximum(samples, 1) != accuracy).any():
        raise WireError(
            f"right: expected the accuracies {list(accuracy)}, got {hits.tolist()} of "
            f"{samples.tolist()}"
        )
    by_class: list[list[list[int]]] = np.stack(counts, 1).tolist()
    return by_class


# ---- means over clients


def train_metrics(updates: Mapping[int, Update]) -> dict[str, float]:
    """Average the losses of clients' updates, and count the clients."""
    scalars = [update.metrics for update in updates.values()]
    losses = [metrics["loss"] for metrics in scalars if "loss" in metrics]
    loss = sum(losses) / len(losses) if losses else float("nan")
    return {"loss": loss, "clients": len(updates)}


def evaluate_metrics(scores: Mapping[int, Evaluation]) -> dict[str, float]:
    """Average clients' accuracies over all tasks, and by task.

    The last accuracy of each client is of the same task. A client that joined late has
    fewer.
    """
    rows = [evaluation.accuracy for evaluation in scores.values()]
    tasks = range(max(map(len, rows)), 0, -1)
    columns = [[row[-back] for row in rows if len(row) >= back] for back in tasks]
    means = [sum(column) / len(column) for column in columns]
    by_task = {f"task-{task}": mean for task, mean in enumerate(means)}
    return {"accuracy": sum(means) / len(means), **by_task}
