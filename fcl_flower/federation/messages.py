"""Payload <-> Flower records: the only file that turns tensors into messages."""

import copyreg
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Evaluation,
    Payload,
    ReceivedArrays,
    Request,
    SparseArray,
    TaskStage,
    TensorSpec,
    Update,
)
from fcl_flower.federation.codec import (
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
from fcl_flower.federation.stored import StoredArrays

STAGE = "fcl.stage"
METRICS = "fcl.metrics"
SCORES = "fcl.scores"
STATE_LOST = "fcl.forgotten"
RUN_UNKNOWN = "fcl.unknown-run"
SPEC = "fcl.run"
TASKS = "tasks"
CLASSES = "classes"
NUM_EXAMPLES = "num-examples"
INITIAL = "initial_arrays"

MAX_BYTES = 2**31
MAX_EXAMPLES = 2**31
MAX_SAMPLES = 2**31
MAX_TASKS = 2**16
MAX_NAMES = 2**12
MAX_NAME = 200
MAX_METRICS = 2**14  # the journal keeps every scalar of every round
METRIC_NAME = re.compile(r"(?=.{1,64}\Z)[A-Za-z][\w.-]*(/[\w.-]+)*", re.ASCII)
"""What a client may call a scalar, such as ``loss`` or ``attention/3/0``."""
MAX_SCALAR = 3.4e38  # a float32's range: sums over clients stay finite

_STAGE = {"round": int, "task": int, "first": bool, "last": bool}
"""What a stage is made of on the wire, in the order of the fields of `TaskStage`.

The two last names are shorter than the fields': published byte counts have them so.
"""
BY_CLASS = ("right", "tested", "answered")
"""Names of the counts of `Evaluation.by_class`, each for all tasks in a row."""

INFERRED, BALANCED, UNBALANCED = "inferred", "balanced-accuracy", "unbalanced"

Tensor: TypeAlias = AnyArray | Encoded
"""A tensor, or one that is encoded already: as a difference."""
Tensors: TypeAlias = Mapping[str, Tensor]

# ---- sending


class MessageEncoder:
    """Encodes payloads; a tensor given twice becomes one and the same Array.

    Flower stores an object by its content, so that what all clients receive is
    uploaded to the SuperLink once. Keep an encoder for one round only: it holds the
    tensors that it has seen.
    """

    def __init__(self, wire: WireFormat = EXACT) -> None:
        """Encode float32 tensors as ``wire`` says; other dtypes keep theirs."""
        self._wire = wire
        self._seen: dict[tuple[int, WireDtype], tuple[Tensor, FlowerArray]] = {}
        self._stored: dict[int, tuple[StoredArrays, Tensors]] = {}

    def arrays(self, arrays: Tensors, group: str = "") -> ArrayRecord:
        """Encode one group of tensors."""
        precision = self._wire.precision(group)
        if isinstance(arrays, StoredArrays):
            arrays = self._read(arrays, precision)
        record = ArrayRecord()  # which copies what its constructor is given
        for name, tensor in arrays.items():
            record[name] = self._array(tensor, precision)
        return record

    def payload(self, payload: Mapping[str, Tensors]) -> RecordDict:
        """Encode a payload, one record a group."""
        return RecordDict(
            {group: self.arrays(tensors, group) for group, tensors in payload.items()}
        )

    def encode_request(
        self, payload: Mapping[str, Tensors], request: Request
    ) -> RecordDict:
        """Encode a payload with what is asked of the client that it goes to."""
        records = self.payload(payload)
        records[STAGE] = _stage_record(
            request.stage, since=request.since, evaluate=request.evaluate
        )
        return records

    def encode_update(
        self,
        update: Update,
        stage: TaskStage,
        evaluation: Evaluation | None = None,
        payload: Mapping[str, Tensors] | None = None,
    ) -> RecordDict:
        """Encode an update with its weight and its scalars, and scores if there are.

        ``payload`` is how its tensors travel; None for as they are.
        """
        records = self.payload(update.payload if payload is None else payload)
        records[STAGE] = _stage_record(stage)
        metrics = {name: float(value) for name, value in update.metrics.items()}
        records[METRICS] = MetricRecord({**metrics, NUM_EXAMPLES: update.num_examples})
        if evaluation is not None:
            records[SCORES] = encode_evaluation(evaluation)
        return records

    def _read(self, arrays: StoredArrays, precision: WireDtype) -> Tensors:
        # Once for all clients, and as it lies on the disk if that is how it travels.
        if id(arrays) not in self._stored:
            exact = precision == "float32" and not self._wire.compress
            found: Tensors = arrays.encoded() if exact else dict(arrays)
            self._stored[id(arrays)] = arrays, found
        return self._stored[id(arrays)][1]

    def _array(self, tensor: Tensor, precision: WireDtype) -> FlowerArray:
        key = id(tensor), precision
        if key not in self._seen:
            made = tensor
            if not isinstance(made, Encoded):
                if precision in LEVELS and not is_matrix(made):
                    precision = "float32"
                copy = not can_alias(made)
                made = encode(made, precision, compress=self._wire.compress, copy=copy)
            array = FlowerArray(
                dtype=made.dtype, shape=made.shape, stype=made.form, data=b""
            )
            # Flower slices whatever is there; its constructor alone insists on `bytes`.
            array.data = cast(bytes, made.data)
            self._seen[key] = (tensor, array)
        return self._seen[key][1]


def state_lost(server_round: int) -> RecordDict:
    """Make the reply of a client without its state of a round."""
    return RecordDict({STATE_LOST: ConfigRecord({"round": server_round})})


def _stage_record(stage: TaskStage, **more: int | bool) -> ConfigRecord:
    return ConfigRecord({**dict(zip(_STAGE, astuple(stage), strict=True)), **more})


# What a message holds may leave the process by pickle, as in Ray.
copyreg.pickle(memoryview, lambda view: (bytes, (bytes(view),)))  # type: ignore[arg-type,return-value]


def can_alias(tensor: AnyArray) -> bool:
    """Tell whether a message may hold a tensor's memory in place of a copy.

    Nothing changes an array once it is in a payload, but what it is a view of may be
    changed: the weights of a network that goes on learning. So it has to be the whole
    of what NumPy, or a message before, has allocated.
    """
    if isinstance(tensor, SparseArray):
        return False
    owner: object = tensor
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if isinstance(owner, np.ndarray):
        return owner.nbytes == tensor.nbytes
    if isinstance(owner, memoryview):
        return owner.nbytes == tensor.nbytes and owner.readonly
    return isinstance(owner, bytes) and len(owner) == tensor.nbytes


# ---- receiving


def decode_request(records: RecordDict) -> Request:
    """Decode what a message asks of a client."""
    found = _fields(records, {**_STAGE, "since": int, "evaluate": bool})
    since, evaluate = found.pop("since"), found.pop("evaluate")
    return Request(_stage(found), since, evaluate)


def decode_update(records: RecordDict, asked: TaskStage) -> Update:
    """Decode the update of a reply; its tensors are not decoded yet."""
    found_stage = _stage(_fields(records, _STAGE))
    if found_stage != asked:
        raise WireError(
            f"{STAGE}: expected an answer to {asked}, got one to {found_stage}"
        )
    found = records.metric_records.get(METRICS, MetricRecord())
    if len(found) > MAX_METRICS:
        raise WireError(
            f"{METRICS}: expected at most {MAX_METRICS} scalars, got {len(found)}"
        )
    metrics: dict[str, float] = {}
    for name, value in found.items():
        if not METRIC_NAME.fullmatch(name):
            raise WireError(
                f"{METRICS}: expected names of up to 64 letters, digits and ._-/, "
                f"got {name[:64]!r}"
            )
        if isinstance(value, list):
            raise WireError(f"{METRICS}/{name}: expected a scalar, got a list")
        if not abs(value) <= MAX_SCALAR:
            raise WireError(
                f"{METRICS}/{name}: expected a finite float32, got {value!r}"
            )
        metrics[name] = float(value)
    examples = found.get(NUM_EXAMPLES)
    if not (isinstance(examples, int) and 0 <= examples <= MAX_EXAMPLES):
        raise WireError(
            f"{METRICS}/{NUM_EXAMPLES}: expected an integer in [0, {MAX_EXAMPLES}], "
            f"got {examples!r}"
        )
    del metrics[NUM_EXAMPLES]
    return Update(received_payload(records), examples, metrics)


def run_unknown() -> RecordDict:
    """Make the reply of a client that has lost its state, and what its run is."""
    return RecordDict({**state_lost(0), RUN_UNKNOWN: ConfigRecord()})


def reports_run_unknown(records: RecordDict) -> bool:
    """Find out whether a client no longer knows the run: it has to be told again."""
    return RUN_UNKNOWN in records.config_records


def greeting(spec: str) -> RecordDict:
    """Make the question who a node is; it carries the run, if that is known."""
    return RecordDict({SPEC: ConfigRecord({"json": spec})} if spec else {})


def told_run(records: RecordDict) -> str:
    """Read the run that a greeting tells; empty if it tells none."""
    found = records.config_records
    return str(found[SPEC]["json"]) if SPEC in found else ""


def told_tasks(samples: Sequence[int]) -> RecordDict:
    """Make the reply that tells how many samples each finished task of a client has."""
    return RecordDict({TASKS: ConfigRecord({"samples": list(samples)})})


def finished_tasks(records: RecordDict) -> tuple[int, ...]:
    """Read how many samples each finished task of a client has.

    Raises:
        WireError: the peer says something else.
    """
    found = records.config_records[TASKS]["samples"]
    told = found if isinstance(found, list) and len(found) <= MAX_TASKS else [None]
    counts = [n for n in told if type(n) is int and 0 <= n <= MAX_SAMPLES]
    if len(counts) < len(told):
        raise WireError(f"tasks/samples: expected counts, got {found!r:.60}")
    return tuple(counts)


def told_classes(names: Sequence[str]) -> RecordDict:
    """Make the reply that names the classes of a client's task, in its order."""
    return RecordDict({CLASSES: ConfigRecord({"names": list(names)})})


def class_names(records: RecordDict) -> tuple[str, ...]:
    """Read the names of the classes of a client's task.

    Raises:
        WireError: the peer says something else, or a name cannot be listed.
    """
    found = records.config_records[CLASSES]["names"]
    told = found if isinstance(found, list) and len(found) <= MAX_NAMES else [None]
    names = [
        name
        for name in told
        if isinstance(name, str)
        and 0 < len(name) <= MAX_NAME
        and name == name.strip()
        and name.isprintable()
        and "," not in name
    ]
    if len(names) < len(told):
        raise WireError(
            f"classes/names: expected names without commas, got {found!r:.60}"
        )
    return tuple(dict.fromkeys(names))


def reports_state_lost(records: RecordDict) -> bool:
    """Tell whether a client reports that its private state is lost."""
    return STATE_LOST in records.config_records


def decode_payload(records: RecordDict, max_bytes: int = MAX_BYTES) -> Payload:
    """Decode the payload of a message, read-only; see `received_payload`."""
    return decoded(received_payload(records, max_bytes))


def received_payload(records: RecordDict, max_bytes: int = MAX_BYTES) -> Payload:
    """Read the payload of a message; none of its tensors is decoded yet.

    There is one budget for the whole message, in which each tensor takes the size of
    its dense form: a few bytes may claim many gigabytes of zeros, and many small claims
    add up like a large one.
    """
    payload: dict[str, Arrays] = {}
    for group, record in records.array_records.items():
        payload[group] = arrays = _received_arrays(record, group, max_bytes)
        max_bytes -= sum(map(_dense_bytes, arrays.found.values()))
    return payload


def decoded(payload: Payload) -> Payload:
    """Decode every tensor of a payload."""
    return {group: dict(arrays) for group, arrays in payload.items()}


def _received_arrays(record: ArrayRecord, group: str, max_bytes: int) -> ReceivedArrays:
    def encoded(name: str) -> Encoded:
        array = record[name]
        return Encoded(array.dtype, tuple(array.shape), array.stype, array.data)

    def read(name: str) -> AnyArray:
        try:
            return decode(encoded(name), max_bytes)
        except WireError as error:
            raise WireError(f"{group}/{name}: {error}") from error

    found: dict[str, TensorSpec] = {}
    left = max_bytes
    for name in record:
        try:
            found[name] = spec(encoded(name), left)
        except WireError as error:
            raise WireError(f"{group}/{name}: {error}") from error
        left -= _dense_bytes(found[name])
    return ReceivedArrays(found, read)


def _dense_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _stage(fields: Mapping[str, Any]) -> TaskStage:
    return TaskStage(*(fields[name] for name in _STAGE))


def _fields(records: RecordDict, expected: Mapping[str, type]) -> dict[str, Any]:
    found = dict(records.config_records.get(STAGE, ConfigRecord()))
    if {name: type(value) for name, value in found.items()} != dict(expected):
        raise WireError(f"{STAGE}: expected {sorted(expected)}, got {found}")
    return found


# ---- scores


def encode_evaluation(evaluation: Evaluation) -> MetricRecord:
    """Encode a client's scores as a record."""
    by_name = zip(*evaluation.by_class, strict=True)
    counts = dict(zip(BY_CLASS, by_name, strict=False))  # none where nobody asked
    return MetricRecord(
        {
            "accuracy": list(evaluation.accuracy),
            "model-bytes": evaluation.model_bytes,
            **({INFERRED: list(evaluation.inferred)} if evaluation.inferred else {}),
            **({BALANCED: list(evaluation.balanced)} if evaluation.balanced else {}),
            **({UNBALANCED: 1} if evaluation.unbalanced else {}),
            **{name: [*chain.from_iterable(found)] for name, found in counts.items()},
        }
    )


def decode_evaluation(row: MetricRecord, tasks: int, classes: int = 0) -> Evaluation:
    """Decode the scores of so many tasks, with counts by class where there are some."""
    accuracy, size = _fractions(row, "accuracy", tasks), row.get("model-bytes")
    inferred, balanced = (
        _fractions(row, name, tasks) if name in row else ()
        for name in (INFERRED, BALANCED)
    )
    unbalanced = row.get(UNBALANCED, 0)
    if unbalanced not in (0, 1):
        raise WireError(f"{UNBALANCED}: expected 0 or 1, got {_told(unbalanced)}")
    if not isinstance(size, int) or size < 0:
        raise WireError(f"model-bytes: expected a number of bytes, got {size!r}")
    if not classes:
        return Evaluation(accuracy, size, (), inferred, balanced, bool(unbalanced))
    counts = [_counts(row, name, (tasks, classes)) for name in BY_CLASS]
    _check(accuracy, *counts)
    by_class = np.stack(counts, 1).tolist()
    return Evaluation(accuracy, size, by_class, inferred, balanced, bool(unbalanced))


def _fractions(row: MetricRecord, name: str, tasks: int) -> list[float]:
    found = row.get(name)
    if not isinstance(found, list) or len(found) != tasks:
        raise WireError(f"{name}: expected {tasks} fractions, got {_told(found)}")
    if not all(0 <= value <= 1 for value in found):
        raise WireError(f"{name}: expected values in [0, 1], got {found}")
    return [float(value) for value in found]


def _counts(row: MetricRecord, name: str, shape: tuple[int, int]) -> Array:
    found, expected = row.get(name), shape[0] * shape[1]
    if not isinstance(found, list) or len(found) != expected:
        raise WireError(
            f"{name}: expected {expected} counts by class, got {_told(found)}"
        )
    if not all(isinstance(n, int) and 0 <= n <= MAX_SAMPLES for n in found):
        raise WireError(f"{name}: expected integers in [0, {MAX_SAMPLES}], got others")
    return np.array(found, np.int64).reshape(shape)


def _told(found: object) -> str:
    return f"{len(found)} of them" if isinstance(found, list) else repr(found)


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
    # An honest client has divided the same integers.
    if (hits / np.maximum(samples, 1) != accuracy).any():
        raise WireError(
            f"right: expected the accuracies {list(accuracy)}, got {hits.tolist()} of "
            f"{samples.tolist()}"
        )


# ---- what Flower's user gives and gets


def to_array_record(model: Arrays | None) -> ArrayRecord:
    """Convert a model to Flower's NumPy arrays; None to an empty record."""
    return ArrayRecord(
        {n: FlowerArray(np.asarray(t)) for n, t in (model or {}).items()}
    )


def from_array_record(record: ArrayRecord, model: Arrays) -> Arrays:
    """Check a user's initial tensors, and put them in the order of ``model``."""
    if record.keys() != model.keys():
        raise config_error(INITIAL, sorted(record), f"the tensors {sorted(model)}")
    found: dict[str, AnyArray] = {}
    for name, expected in model.items():
        key, storage = f"{INITIAL} {name}", record[name].stype
        if storage != "numpy.ndarray":
            raise config_error(key, storage, "numpy.ndarray")
        tensor = record[name].numpy()
        if (tensor.shape, tensor.dtype) != (expected.shape, expected.dtype):
            raise config_error(
                key,
                f"{tensor.dtype} {tensor.shape}",
                f"{expected.dtype} {expected.shape}",
            )
        if not np.isfinite(tensor).all():
            raise config_error(key, "NaN or infinity", "finite values")
        found[name] = tensor
    return found


def train_metrics(updates: Mapping[int, Update]) -> MetricRecord:
    """Average the losses of clients' updates, and count the clients."""
    scalars = [update.metrics for update in updates.values()]
    losses = [metrics["loss"] for metrics in scalars if "loss" in metrics]
    loss = sum(losses) / len(losses) if losses else float("nan")
    return MetricRecord({"loss": loss, "clients": len(updates)})


def evaluate_metrics(scores: Mapping[int, Evaluation]) -> MetricRecord:
    """Average clients' accuracies over all tasks, and by task.

    The last one of each is of the same task; who joined late has fewer.
    """
    rows = [found.accuracy for found in scores.values()]
    tasks = range(max(map(len, rows)), 0, -1)
    columns = [[row[-back] for row in rows if len(row) >= back] for back in tasks]
    means = [sum(column) / len(column) for column in columns]
    by_task = {f"task-{task}": mean for task, mean in enumerate(means)}
    return MetricRecord({"accuracy": sum(means) / len(means), **by_task})
