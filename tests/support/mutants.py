"""Broken updates, made of an honest one, and replies that are none at all.

A generator named ``broken_...`` yields labels and what an honest server must refuse; it
is broken by what the label says, and by nothing else.
"""

import math
from functools import cache, partial
from typing import ClassVar

import numpy as np
from fakes import failure

from fcl_flower.core.types import SparseArray
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import Encoded, compress, encode
from fcl_flower.rounds.transport import Content, Reply

# ---- what is sent: content -> another content, made of the honest one


def over_the_network(content, damage=lambda contents: None):
    """Take apart and put together as Flower does between two machines.

    ``damage`` may change the bytes of the objects, which it gets by their hash.
    """
    # Imported here, as few tests of the rounds need Flower.
    from grids import travelled

    from fcl_flower.flower_app.records import RecordMaker, content_of

    return content_of(travelled(RecordMaker().records(content), damage))


def with_groups(content, groups):
    return Content({**content.tensors, **groups}, content.scalars)


def with_array(content, group, name, array):
    return with_groups(content, {group: {**content.tensors[group], name: array}})


def with_table(content, name, table):
    return Content(content.tensors, {**content.scalars, name: table})


def without(content, name):
    """Leave out a group, or a table."""
    return Content(
        {group: found for group, found in content.tensors.items() if group != name},
        {table: found for table, found in content.scalars.items() if table != name},
    )


def with_scalars(content, **scalars):
    known = {**content.scalars[messages.METRICS], **scalars}
    return with_table(content, messages.METRICS, known)


@cache
def zeros_left_out(entries, kind="fcl.dense"):
    """Return a few bytes that claim so many float32 zeros."""
    data = compress(b"", np.zeros(0, np.float32), bytes((entries + 7) // 8))
    return Encoded("float32", (entries,), f"{kind}.bitmap+zstd", data)


def array_of(tensor):
    made = encode(tensor)
    return Encoded(made.dtype, made.shape, made.form, bytes(made.data))


def relabelled(array, **changed):
    fields = {n: getattr(array, n) for n in ("dtype", "shape", "form")}
    return Encoded(**{**fields, "data": bytes(array.data), **changed})


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
    if ".sparse" not in array.form:
        return
    total = math.prod(array.shape)
    size = (total + 7) // 8
    for what, marked, count in (
        ("beyond the end", [8 * size - 1], 1),
        ("without a value", [0], 0),
        ("fewer than the values", [0], 2),
    ):
        if marked[0] and total == 8 * size:  # the last bit is an entry
            continue
        bits = sum(1 << place for place in marked).to_bytes(size, "little")
        data = bytes(4 * count) + bits
        yield f"places {what}", relabelled(array, form="fcl.sparse.bitmap", data=data)


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
    for form in ("numpy.ndarray", "pickle", "", "fcl.dense+bfloat16", "fcl.nothing"):
        yield f"form {form!r}", relabelled(array, form=form)
    yield "a bomb of zeros", zeros_left_out(2**29)


def decoded(array):
    return messages.decode_payload(Content({"g": {"t": array}}))["g"]["t"]


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


def broken_arrays(content):
    for group, arrays in content.tensors.items():
        for name, array in list(arrays.items())[:4]:
            for what, broken in broken_array(array):
                label = f"{group}/{name}: {what}"
                yield label, with_array(content, group, name, broken)


def broken_groups(content):
    some = content.tensors["base"]
    (name, array), *others = some.items()
    strange = (
        *("more", "", "meta/seen", "adapters/0/0", "server:base", "base/0", "é<b>"),
        *("\ud800", "\x1b[2J", "x\ny", "x" * 10_000),
    )
    for group in strange:
        yield f"another group {group!r}", with_groups(content, {group: some})
    yield (
        "thousands of groups",
        with_groups(content, {f"g{i}": {} for i in range(3000)}),
    )
    renamed = with_groups(without(content, "base"), {"BASE": some})
    yield "a group renamed", renamed
    yield "an unknown tensor", with_array(content, "base", "heads.0.weight", array)
    yield "an empty name", with_array(content, "base", "", array)
    unreadable = relabelled(array, data=b"")
    yield "an unreadable tensor", with_array(content, "base", "\x1b[2J", unreadable)
    swapped = {name: others[0][1], others[0][0]: array, **dict(others[1:])}
    yield "two tensors swapped", with_groups(content, {"base": swapped})


def broken_scalars(content):
    rest = without(content, messages.METRICS)
    for label, table in (
        ("no number of examples", {"loss": 1.0}),
        ("text for scalars", {"num-examples": "9"}),
        ("bytes for scalars", {"num-examples": b"9"}),
    ):
        yield label, with_table(content, messages.METRICS, table)
    yield "no scalars", rest
    yield (
        "tensors for scalars",
        with_groups(rest, {messages.METRICS: content.tensors["base"]}),
    )
    for examples in (-1, 0.5, [5], 2**40, 2**63, float("nan")):
        yield (
            f"{examples} examples",
            with_scalars(content, **{"num-examples": examples}),
        )
    for loss in (float("nan"), float("inf"), 1e300, [1.0, 2.0]):
        yield f"loss {loss}", with_scalars(content, loss=loss)
    of_adapters = {
        "attention/9/0": 0.5,
        "attention/0/9": 0.5,
        "attention/0/0": -0.5,
        "attention/999999999/999999999": 0.5,
        "adapter_density": 1.5,
    }
    known = of_adapters if "adapters" in content.tensors else {}
    for name, weight in {**known, "x" * 2**21: 0.5}.items():
        yield name[:40], with_scalars(content, **{name: weight})


def broken_stages(content):
    """The answer to something else, or to nothing."""
    asked = content.scalars[messages.STAGE]
    number, task = asked["round"], asked["task"]
    for name, value in (
        *[("round", other) for other in (number - 1, number + 1, 0, -1, 2**40)],
        *[("round", other) for other in (float(number), str(number), [number])],
        *[("task", other) for other in (task - 1, task + 1, -1, 2**40, bool(task))],
        *[(name, not asked[name]) for name in ("first", "last")],
        *[(name, int(asked[name])) for name in ("first", "last")],
        ("since", 0),
    ):
        told = {**asked, name: value}
        yield f"{name} {value!r}", with_table(content, messages.STAGE, told)
    for name in asked:
        told = {n: value for n, value in asked.items() if n != name}
        yield f"no {name}", with_table(content, messages.STAGE, told)
    yield "no stage", without(content, messages.STAGE)
    scalars = {"round": number, "task": task}
    yield "scalars for a stage", with_table(content, messages.STAGE, scalars)


def without_something(content):
    """Left out, where a strategy needs the whole."""
    for group, arrays in content.tensors.items():
        if group == "base" and "adapters" in content.tensors:
            continue  # FedWeIT: a client sends what channels of the base it likes
        for name in arrays:
            rest = {other: a for other, a in arrays.items() if other != name}
            yield f"{group} without {name}", with_groups(content, {group: rest})
        yield f"{group} empty", with_groups(content, {group: {}})


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


# ---- what is answered: request -> reply


class Raises:
    """Content whose every use raises."""

    def __init__(self, error):
        self.error = error

    def __getattr__(self, name):
        raise self.error


def strange_replies():
    def opened_to(content):
        return lambda request: Reply(request, lambda: content)

    def raising(error):
        def fail():
            raise error

        return lambda request: Reply(request, fail)

    yield "error", lambda request: failure(request, "broken")
    yield "a long error", lambda request: failure(request, "x" * 10**6)
    for content in (None, {}, "text", 3, Raises(KeyError("x"))):
        yield f"content {type(content).__name__}", opened_to(content)
    yield "content without an end", opened_to(Raises(RecursionError()))
    for error in (ValueError("bad"), KeyError("k"), RecursionError(), MemoryError()):
        yield f"{type(error).__name__} when it is opened", raising(error)


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
            for group, arrays in honest.tensors.items()
            for name, array in arrays.items()
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
            if content.tensors.keys() == self.honest.tensors.keys():
                label, content = self.break_tensor(content)
                labels.append(label)
        return ", ".join(labels), content

    def inflate(self):
        place, group, name, _ = self.pick(self.tensors)
        value = 10 ** self.rng.uniform(6, 38) * self.rng.choice([-1, 1])
        array = absurd(self.honest.tensors[group][name], value)
        return f"{place}: {value:.1e}", with_array(self.honest, group, name, array)

    def pick(self, some):
        return some[self.rng.integers(len(some))]
