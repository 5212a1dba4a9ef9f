"""Broken updates, made of an honest one, and replies that are none at all.

A generator named ``broken_...`` yields labels and what an honest server must refuse; it
is broken by what the label says, and by nothing else.
"""

import math
from functools import partial
from typing import ClassVar

import numpy as np
from fakes import failure
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fcl_flower.core.types import SparseArray
from fcl_flower.federation import messages
from fcl_flower.federation.codec import encode

# ---- what is sent: content -> another content, made of the honest one


def over_the_network(records, damage=lambda contents: None):
    """Take apart and put together as Flower does between two machines.

    ``damage`` may change the bytes of the objects, which it gets by their hash.
    """
    objects = get_all_nested_objects(records)
    contents = {name: found.deflate() for name, found in objects.items()}
    damage(contents)
    return inflate_object_from_contents(records.object_id, contents)


def with_array(records, group, name, array):
    changed = {**dict(records[group].items()), name: array}
    return RecordDict({**records, group: record_of(changed)})


def record_of(arrays):
    """Return a record of arrays as they are, which its constructor would copy.

    In one process their bytes may be a tensor's own memory: Flower does not copy such.
    """
    record = ArrayRecord()
    record.update(arrays)
    return record


def with_scalars(records, **scalars):
    known = {**records[messages.METRICS], **scalars}
    return RecordDict({**records, messages.METRICS: MetricRecord(known)})


def array_of(tensor):
    made = encode(tensor)
    return Array(made.dtype, made.shape, made.form, bytes(made.data))


def relabelled(array, **changed):
    fields = {n: getattr(array, n) for n in ("dtype", "shape", "stype")}
    return Array(**{**fields, "data": bytes(array.data), **changed})


def broken_bytes(array):
    data = bytes(array.data)
    yield "shortened", relabelled(array, data=data[:-1])
    yield "halved", relabelled(array, data=data[: len(data) // 2])
    yield "empty", relabelled(array, data=b"")
    yield "lengthened", relabelled(array, data=data + b"\0")
    yield "twice", relabelled(array, data=data * 2)
    yield "a value short", relabelled(array, data=data[4:])
    yield "a value long", relabelled(array, data=bytes(4) + data)


def broken_positions(array):
    if ".sparse" not in array.stype:
        return
    for what, gaps in (
        ("beyond the end", [math.prod(array.shape)]),
        ("beyond int64", [2**63]),
        ("twice the same", [5, 2**64 - 1]),
        ("backwards", [5, 2**64 - 3]),
    ):
        places = b"".join(gap.to_bytes(8, "little") for gap in gaps)
        data = bytes(4 * len(gaps)) + places + b"\x08"
        yield f"places {what}", relabelled(array, stype="fcl.sparse.index", data=data)


def broken_shapes(array):
    shape = array.shape
    yield "longer", relabelled(array, shape=(shape[0] + 1, *shape[1:]))
    yield "deeper", relabelled(array, shape=(*shape, 1))
    yield "negative", relabelled(array, shape=(-shape[0], *shape[1:]))
    yield "terabytes", relabelled(array, shape=(2**40,))
    yield "beyond int64", relabelled(array, shape=(2**62, 2**62))
    yield "many axes", relabelled(array, shape=(1,) * 70)
    yield "no axes", relabelled(array, shape=())
    yield "empty axis", relabelled(array, shape=(0, *shape[1:]))
    if len(shape) > 1:
        yield "flat", relabelled(array, shape=(math.prod(shape),))
        yield "turned", relabelled(array, shape=shape[::-1])


def broken_labels(array):
    for dtype in (
        "float64",
        "float16",
        "int32",
        "bool",
        "object",
        "complex64",
        "",
        "V9",
    ):
        yield f"dtype {dtype!r}", relabelled(array, dtype=dtype)
    for stype in ("numpy.ndarray", "pickle", "", "fcl.dense+bfloat16", "fcl.nothing"):
        yield f"stype {stype!r}", relabelled(array, stype=stype)
    yield (
        "a bomb of zeros",
        Array("float32", (2**29,), array.stype.split(".")[0] + ".dense.index", b"\x01"),
    )


def decoded(array):
    records = RecordDict({"g": record_of({"t": array})})
    return messages.decode_payload(records)["g"]["t"]


def broken_values(array):
    tensor = decoded(array)
    sparse = isinstance(tensor, SparseArray)
    values = np.array(tensor.values if sparse else tensor)
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = values.copy()
        spoilt.reshape(-1)[-1] = bad
        if sparse:
            spoilt = SparseArray(tensor.shape, tensor.indices, spoilt)
        yield f"holds {bad}", array_of(spoilt)
    other = tensor.to_dense() if sparse else SparseArray.of_nonzero(values)
    yield "the other storage", array_of(other)
    yield (
        "double",
        array_of(
            SparseArray(tensor.shape, tensor.indices, values.astype(np.float64))
            if sparse
            else values.astype(np.float64)
        ),
    )


def broken_array(array):
    yield from broken_bytes(array)
    yield from broken_positions(array)
    yield from broken_shapes(array)
    yield from broken_labels(array)
    yield from broken_values(array)


def broken_arrays(records):
    for group in records.array_records:
        for name, array in list(records[group].items())[:4]:
            for what, broken in broken_array(array):
                label = f"{group}/{name}: {what}"
                yield label, with_array(records, group, name, broken)


def broken_groups(records):
    some = records["base"]
    (name, array), *others = some.items()
    strange = (
        *("more", "", "meta/seen", "adapters/0/0", "server:base", "base/0", "é<b>"),
        *("\ud800", "\x1b[2J", "x\ny", "x" * 10_000),
    )
    for group in strange:
        yield f"another group {group!r}", RecordDict({**records, group: some})
    yield (
        "thousands of groups",
        RecordDict({**records, **{f"g{i}": ArrayRecord() for i in range(3000)}}),
    )
    rest = {group: record for group, record in records.items() if group != "base"}
    yield "a group renamed", RecordDict({**rest, "BASE": some})
    yield "an unknown tensor", with_array(records, "base", "heads.0.weight", array)
    yield "an empty name", with_array(records, "base", "", array)
    unreadable = relabelled(array, data=b"")
    yield "an unreadable tensor", with_array(records, "base", "\x1b[2J", unreadable)
    swapped = {name: others[0][1], others[0][0]: array, **dict(others[1:])}
    yield "two tensors swapped", RecordDict({**records, "base": record_of(swapped)})


def broken_scalars(records):
    yield (
        "no scalars",
        RecordDict({g: r for g, r in records.items() if g != messages.METRICS}),
    )
    yield (
        "no number of examples",
        RecordDict({**records, messages.METRICS: MetricRecord({"loss": 1.0})}),
    )
    yield (
        "text for scalars",
        RecordDict({**records, messages.METRICS: ConfigRecord({"num-examples": "9"})}),
    )
    yield (
        "tensors for scalars",
        RecordDict({**records, messages.METRICS: records["base"]}),
    )
    for examples in (-1, 0.5, [5], 2**40, 2**63, float("nan")):
        yield (
            f"{examples} examples",
            with_scalars(records, **{"num-examples": examples}),
        )
    for loss in (float("nan"), float("inf"), 1e300, [1.0, 2.0]):
        yield f"loss {loss}", with_scalars(records, loss=loss)
    of_adapters = {
        "attention/9/0": 0.5,
        "attention/0/9": 0.5,
        "attention/0/0": -0.5,
        "attention/999999999/999999999": 0.5,
        "adapter_density": 1.5,
    }
    known = of_adapters if "adapters" in records else {}
    for name, weight in {**known, "x" * 2**21: 0.5}.items():
        yield name[:40], with_scalars(records, **{name: weight})


def broken_stages(records):
    """The answer to something else, or to nothing."""
    asked = dict(records[messages.STAGE])
    number, task = asked["round"], asked["task"]
    for name, value in (
        *[("round", other) for other in (number - 1, number + 1, 0, -1, 2**40)],
        *[("round", other) for other in (float(number), str(number), [number])],
        *[("task", other) for other in (task - 1, task + 1, -1, 2**40, bool(task))],
        *[(name, not asked[name]) for name in ("first", "last")],
        *[(name, int(asked[name])) for name in ("first", "last")],
        ("since", 0),
    ):
        told = ConfigRecord({**asked, name: value})
        yield f"{name} {value!r}", RecordDict({**records, messages.STAGE: told})
    for name in asked:
        told = ConfigRecord({n: value for n, value in asked.items() if n != name})
        yield f"no {name}", RecordDict({**records, messages.STAGE: told})
    rest = {name: record for name, record in records.items() if name != messages.STAGE}
    yield "no stage", RecordDict(rest)
    scalars = MetricRecord({"round": number, "task": task})
    yield "scalars for a stage", RecordDict({**rest, messages.STAGE: scalars})


def without_something(records):
    """Left out, where a strategy needs the whole."""
    for group in records.array_records:
        if group == "base" and "adapters" in records:
            continue  # FedWeIT: a client sends what channels of the base it likes
        record = records[group]
        for name in record:
            rest = {other: a for other, a in record.items() if other != name}
            yield (
                f"{group} without {name}",
                RecordDict({**records, group: record_of(rest)}),
            )
        yield f"{group} empty", RecordDict({**records, group: ArrayRecord()})


# ---- what a strategy is asked to aggregate: payload -> another


def broken_tensors(tensor):
    """Yield what a tensor must not be in the place of another, and what it is then."""
    sparse = isinstance(tensor, SparseArray)
    values = np.asarray(tensor.values if sparse else tensor)
    like = partial(SparseArray, tensor.shape, tensor.indices) if sparse else np.asarray
    yield "another dtype", like(values.astype("f8" if values.itemsize < 8 else "f4"))
    yield "the other storage", tensor.to_dense() if sparse else sparse_of(values)
    if values.dtype.kind == "f" and values.size:
        spoilt = values.copy()
        spoilt.reshape(-1)[-1] = np.nan
        yield "NaN", like(spoilt)
    if sparse:
        longer = (tensor.shape[0] + 1, *tensor.shape[1:])
        yield "longer", SparseArray(longer, tensor.indices, values)
    elif values.shape and len(values):
        yield "longer", np.concatenate([values, values[:1]])
        yield "deeper", values[..., None]


def sparse_of(values):
    places = np.arange(values.size, dtype=np.int64)
    return SparseArray(values.shape, places, values.reshape(-1))


def broken_payloads(payload):
    """Yield labels and what no strategy may aggregate, made of an honest payload."""
    for group, arrays in payload.items():
        rest = {other: a for other, a in payload.items() if other != group}
        yield f"{group}: of another name", {**rest, "more": arrays}
        yield f"{group}: twice", {**payload, "more": arrays}
        for name, tensor in list(arrays.items())[:3]:
            others = {other: t for other, t in arrays.items() if other != name}
            place = f"{group}/{name}"
            yield f"{place}: of another name", {**rest, group: {**others, "x": tensor}}
            yield f"{place}: twice", {**rest, group: {**arrays, "x": tensor}}
            for what, broken in broken_tensors(tensor):
                yield f"{place}: {what}", {**rest, group: {**others, name: broken}}


# ---- what is answered: message -> reply


class Raises:
    """Content whose every use raises."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        raise self.error


def strange_messages(honest):
    def without_content(message):
        reply = Message(honest, reply_to=message)
        reply.__dict__["_content"] = None
        return reply

    def with_content(content):
        def answer(message):
            reply = Message(honest, reply_to=message)
            reply.__dict__["_content"] = content
            return reply

        return answer

    def raising(error):
        def answer(message):
            raise error

        return answer

    yield "error", lambda message: failure(message, "broken")
    yield "error without a reason", lambda message: failure(message, None)
    yield "a long error", lambda message: failure(message, "x" * 10**6)
    yield "neither content nor error", without_content
    for content in ({}, "text", 3, Raises(KeyError("x")), Raises(RecursionError())):
        yield f"content {type(content).__name__}", with_content(content)
    for error in (ValueError("bad"), KeyError("k"), RecursionError(), MemoryError()):
        yield f"{type(error).__name__} on arrival", raising(error)


# ---- drawn at random


def absurd(array, value):
    """Return the tensor with ``value`` everywhere."""
    tensor = decoded(array)
    if isinstance(tensor, SparseArray):
        values = np.full_like(tensor.values, value)
        return array_of(SparseArray(tensor.shape, tensor.indices, values))
    return array_of(np.full_like(tensor, value))


def damage(rng):
    """Return a way to damage the objects of a message, most often near a head."""

    def overwrite(contents):
        name = str(rng.choice(list(contents)))
        data = bytearray(contents[name])
        end = min(len(data), 250) if rng.random() < 0.9 else len(data)
        for place in rng.integers(end, size=rng.integers(1, 5)):
            data[place] = rng.integers(256)
        contents[name] = bytes(data)

    def cut(contents):
        name = str(rng.choice(list(contents)))
        data = contents[name]
        contents[name] = data[: rng.integers(len(data))] + data[-rng.integers(1, 9) :]

    def swap(contents):
        one, other = map(str, rng.choice(list(contents), size=2, replace=False))
        contents[one], contents[other] = contents[other], contents[one]

    def lose(contents):
        del contents[str(rng.choice(list(contents)))]

    return rng.choice([overwrite, cut, swap, lose], p=[0.7, 0.1, 0.1, 0.1])


class Mutants:
    """Draws broken updates; nothing but ``DAMAGE`` may leave one that is possible."""

    DAMAGE = "damaged bytes"
    SHARES: ClassVar = {
        "a broken tensor": 0.35,
        "broken content": 0.2,
        "an absurd norm": 0.1,
        "several faults": 0.2,
        DAMAGE: 0.15,
    }

    def __init__(self, honest, others, seed):
        """Break ``honest``; ``others`` are whole contents that do not answer it."""
        self.honest = honest
        self.rng = np.random.default_rng(seed)
        self.tensors = [
            (f"{group}/{name}", group, name, list(broken_array(array)))
            for group, record in honest.array_records.items()
            for name, array in record.items()
        ]
        self.contents = [
            *broken_groups(honest),
            *broken_scalars(honest),
            *broken_stages(honest),
            *without_something(honest),
            *others,
        ]

    def draw(self):
        """Return of which kind a mutant is, its label, and what arrives of it."""
        kind = str(self.rng.choice(list(self.SHARES), p=list(self.SHARES.values())))
        if kind == "a broken tensor":
            label, content = self.break_tensor(self.honest)
        elif kind == "broken content":
            label, content = self.pick(self.contents)
        elif kind == "an absurd norm":
            label, content = self.inflate()
        elif kind == "several faults":
            label, content = self.break_much()
        else:
            label, content = kind, self.honest
        harm = damage(self.rng) if kind == self.DAMAGE else lambda contents: None
        return kind, label, lambda: over_the_network(content, harm)

    def break_tensor(self, content):
        place, group, name, broken = self.pick(self.tensors)
        what, array = self.pick(broken)
        return f"{place}: {what}", with_array(content, group, name, array)

    def break_much(self):
        labels, content = [], self.honest
        if self.rng.random() < 0.5:
            label, content = self.pick(self.contents)
            labels.append(label)
        for _ in range(self.rng.integers(2, 5)):
            if content.array_records.keys() == self.honest.array_records.keys():
                label, content = self.break_tensor(content)
                labels.append(label)
        return ", ".join(labels), content

    def inflate(self):
        place, group, name, _ = self.pick(self.tensors)
        value = 10 ** self.rng.uniform(6, 38) * self.rng.choice([-1, 1])
        array = absurd(self.honest[group][name], value)
        return f"{place}: {value:.1e}", with_array(self.honest, group, name, array)

    def pick(self, some):
        return some[self.rng.integers(len(some))]
