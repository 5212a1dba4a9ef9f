"""Turn what both sides say into the content of messages, and back."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import (
    AnyArray,
    Array,
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

INFERRED, BALANCED, UNBALANCED = "inferred", "balanced-accuracy", "unbalanced"
LOSSES = "losses"

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
        self._seen: dict[tuple[int, WireDtype], tuple[Tensor, Encoded]] = {}
        self._stored: dict[int, tuple[StoredArrays, Tensors]] = {}

    def arrays(self, arrays: Tensors, group: str = "") -> dict[str, Encoded]:
        """Encode one group of tensors."""
        precision = self._wire.precision(group)
        if isinstance(arrays, StoredArrays):
            arrays = self._read(arrays, precision)
        return {
            name: self._encoded(tensor, precision) for name, tensor in arrays.items()
        }

    def payload(self, payload: Mapping[str, Tensors]) -> Content:
        """Encode a payload, group by group."""
        return Content({g: self.arrays(tensors, g) for g, tensors in payload.items()})

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
        content.scalars |= {
            STAGE: _stage_values(stage),
            METRICS: {**metrics, NUM_EXAMPLES: update.num_examples},
        }
        if evaluation is not None:
            content.scalars[SCORES] = encode_evaluation(evaluation)
        return content

    def _read(self, arrays: StoredArrays, precision: WireDtype) -> Tensors:
        # Once for all clients. What travels exactly has the form that the disk has.
        if id(arrays) not in self._stored:
            exact = precision == "float32"
            tensors: Tensors = arrays.encoded() if exact else dict(arrays)
            self._stored[id(arrays)] = arrays, tensors
        return self._stored[id(arrays)][1]

    def _encoded(self, tensor: Tensor, precision: WireDtype) -> Encoded:
        if isinstance(tensor, Encoded):
            return tensor
        key = id(tensor), precision
        if key not in self._seen:
            if precision in LEVELS and not is_matrix(tensor):
                precision = "float32"
            self._seen[key] = tensor, encode(tensor, precision)
        return self._seen[key][1]


def state_lost(server_round: int) -> Content:
    """Make the reply of a client that lacks its state of a round."""
    return Content(scalars={STATE_LOST: {"round": server_round}})


def reports_state_lost(content: Content) -> bool:
    """Tell whether a client reports that its private state is lost."""
    return STATE_LOST in content.scalars


def run_unknown() -> Content:
    """Make the reply of a client that has lost its state, and the run with it."""
    content = state_lost(0)
    content.scalars[RUN_UNKNOWN] = {}
    return content


def reports_run_unknown(content: Content) -> bool:
    """Tell whether a client no longer knows the run, which it must hear again."""
    return RUN_UNKNOWN in content.scalars


def _stage_values(stage: TaskStage, **more: int | bool) -> dict[str, Value]:
    return {**dict(zip(_STAGE, astuple(stage), strict=True)), **more}


# ---- receiving


def decode_request(content: Content) -> Assignment:
    """Decode the assignment in a request."""
    fields = _fields(content, {**_STAGE, "since": int, "evaluate": bool})
    since, evaluate = fields.pop("since"), fields.pop("evaluate")
    return Assignment(_stage(fields), since, evaluate)


def decode_update(content: Content, asked: TaskStage) -> Update:
    """Decode the update of a reply; its tensors are not decoded yet."""
    stage = _stage(_fields(content, _STAGE))
    if stage != asked:
        raise WireError(f"{STAGE}: expected an answer to {asked}, got one to {stage}")
    table = dict(content.scalars.get(METRICS, {}))
    if len(table) > MAX_METRICS:
        raise WireError(
            f"{METRICS}: expected at most {MAX_METRICS} scalars, got {len(table)}"
        )
    metrics: dict[str, float] = {}
    for name, value in table.items():
        if not METRIC_NAME.fullmatch(name):
            raise WireError(
                f"{METRICS}: expected names of up to 64 letters, digits and ._-/, "
                f"got {name[:64]!r}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            kind = type(value).__name__
            raise WireError(f"{METRICS}/{name}: expected a scalar, got a {kind}")
        if not abs(value) <= MAX_SCALAR:
            raise WireError(
                f"{METRICS}/{name}: expected a finite float32, got {value!r}"
            )
        metrics[name] = float(value)
    examples = table.get(NUM_EXAMPLES)
    if not (type(examples) is int and 0 <= examples <= MAX_EXAMPLES):
        raise WireError(
            f"{METRICS}/{NUM_EXAMPLES}: expected an integer in [0, {MAX_EXAMPLES}], "
            f"got {examples!r}"
        )
    del metrics[NUM_EXAMPLES]
    return Update(received_payload(content), examples, metrics)


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


def told_tasks(samples: Sequence[int]) -> Content:
    """Make the reply with the number of samples of each finished task of a client."""
    return Content(scalars={TASKS: {"samples": list(samples)}})


def finished_tasks(content: Content) -> tuple[int, ...]:
    """Read the number of samples of each finished task of a client.

    Raises:
        WireError: these are no such numbers.
    """
    samples = content.scalars[TASKS]["samples"]
    values = (
        samples if isinstance(samples, list) and len(samples) <= MAX_TASKS else [""]
    )
    counts = [n for n in values if type(n) is int and 0 <= n <= MAX_SAMPLES]
    if len(counts) < len(values):
        raise WireError(f"tasks/samples: expected counts, got {samples!r:.60}")
    return tuple(counts)


def told_classes(names: Sequence[str]) -> Content:
    """Make the reply that names the classes of a client's task, in its order."""
    return Content(scalars={CLASSES: {"names": list(names)}})


def class_names(content: Content) -> tuple[str, ...]:
    """Read the names of the classes of a client's task.

    Raises:
        WireError: these are no names, or a name cannot be listed.
    """
    listed = content.scalars[CLASSES]["names"]
    values = listed if isinstance(listed, list) and len(listed) <= MAX_NAMES else [0]
    names = [
        name
        for name in values
        if isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name == name.strip()
        and name.isprintable()
        and "," not in name
    ]
    if len(names) < len(values):
        raise WireError(
            f"classes/names: expected names without commas, got {listed!r:.60}"
        )
    return tuple(dict.fromkeys(names))


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
    payload: dict[str, Arrays] = {}
    for group, tensors in content.tensors.items():
        payload[group] = arrays = _received_arrays(tensors, group, max_bytes)
        max_bytes -= sum(map(_dense_bytes, arrays.found.values()))
    return payload


def decoded(payload: Payload) -> Payload:
    """Decode every tensor of a payload."""
    return {group: dict(arrays) for group, arrays in payload.items()}


def _received_arrays(
    tensors: Mapping[str, Encoded], group: str, max_bytes: int
) -> ReceivedArrays:
    def read(name: str) -> AnyArray:
        try:
            return decode(tensors[name], max_bytes)
        except WireError as error:
            raise WireError(f"{group}/{name}: {error}") from error

    specs: dict[str, TensorSpec] = {}
    left = max_bytes
    for name, encoded in tensors.items():
        try:
            specs[name] = spec(encoded, left)
        except WireError as error:
            raise WireError(f"{group}/{name}: {error}") from error
        left -= _dense_bytes(specs[name])
    return ReceivedArrays(specs, read)


def _dense_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _stage(fields: Mapping[str, Any]) -> TaskStage:
    return TaskStage(*(fields[name] for name in _STAGE))


def _fields(content: Content, expected: Mapping[str, type]) -> dict[str, Any]:
    fields = dict(content.scalars.get(STAGE, {}))
    if {name: type(value) for name, value in fields.items()} != dict(expected):
        raise WireError(f"{STAGE}: expected {sorted(expected)}, got {fields}")
    return fields


# ---- scores


def encode_evaluation(evaluation: Evaluation) -> dict[str, Value]:
    """Encode a client's scores as a table."""
    by_name = zip(*evaluation.by_class, strict=True)
    counts = dict(zip(BY_CLASS, by_name, strict=False))  # none unless requested
    return {
        "accuracy": list(evaluation.accuracy),
        "model-bytes": evaluation.model_bytes,
        **({INFERRED: list(evaluation.inferred)} if evaluation.inferred else {}),
        **({BALANCED: list(evaluation.balanced)} if evaluation.balanced else {}),
        **({UNBALANCED: 1} if evaluation.unbalanced else {}),
        **({LOSSES: list(evaluation.losses)} if evaluation.losses else {}),
        **{name: [*chain.from_iterable(rows)] for name, rows in counts.items()},
    }


def decode_evaluation(
    row: Mapping[str, Value], tasks: int, classes: int = 0
) -> Evaluation:
    """Decode the scores of so many tasks, with counts for so many classes."""
    accuracy, size = _fractions(row, "accuracy", tasks), row.get("model-bytes")
    inferred, balanced = (
        _fractions(row, name, tasks) if name in row else ()
        for name in (INFERRED, BALANCED)
    )
    unbalanced = row.get(UNBALANCED, 0)
    if unbalanced not in (0, 1):
        raise WireError(f"{UNBALANCED}: expected 0 or 1, got {_shown(unbalanced)}")
    if not isinstance(size, int) or size < 0:
        raise WireError(f"model-bytes: expected a number of bytes, got {size!r}")
    by_class: Sequence[Sequence[Sequence[int]]] = ()
    if classes:
        counts = [_counts(row, name, (tasks, classes)) for name in BY_CLASS]
        _check(accuracy, *counts)
        by_class = np.stack(counts, 1).tolist()
    losses = _losses(row, tasks) if LOSSES in row else ()
    return Evaluation(
        accuracy, size, by_class, inferred, balanced, bool(unbalanced), losses
    )


def _losses(row: Mapping[str, Value], tasks: int) -> list[float]:
    values = row[LOSSES]
    if not isinstance(values, list) or len(values) != tasks:
        raise WireError(f"{LOSSES}: expected {tasks} numbers, got {_shown(values)}")
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < tasks or not all(0 <= number < math.inf for number in numbers):
        raise WireError(f"{LOSSES}: expected numbers from 0 on, got {values!r:.200}")
    return numbers


def _fractions(row: Mapping[str, Value], name: str, tasks: int) -> list[float]:
    values = row.get(name)
    if not isinstance(values, list) or len(values) != tasks:
        raise WireError(f"{name}: expected {tasks} fractions, got {_shown(values)}")
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) < tasks or not all(0 <= number <= 1 for number in numbers):
        raise WireError(f"{name}: expected values in [0, 1], got {values!r:.200}")
    return [float(number) for number in numbers]


def _counts(row: Mapping[str, Value], name: str, shape: tuple[int, int]) -> Array:
    counts, expected = row.get(name), shape[0] * shape[1]
    if not isinstance(counts, list) or len(counts) != expected:
        raise WireError(
            f"{name}: expected {expected} counts by class, got {_shown(counts)}"
        )
    if not all(isinstance(n, int) and 0 <= n <= MAX_SAMPLES for n in counts):
        raise WireError(f"{name}: expected integers in [0, {MAX_SAMPLES}], got others")
    return np.array(counts, np.int64).reshape(shape)


def _shown(value: object) -> str:
    return f"{len(value)} of them" if isinstance(value, list) else repr(value)


def _check(
    accuracy: Sequence[float], right: Array, tested: Array, answered: Array
) -> None:
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
