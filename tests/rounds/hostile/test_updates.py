"""Broken updates, a few hundred or ten thousand, against what receives them."""

import json
import math
import resource
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import zstandard
from fakes import InProcessTransport, exact, tiny
from mutants import Mutants, over_the_network, with_array, with_scalars, zeros_left_out
from one_round import after_one_round

from fcl_flower.core.types import SparseArray
from fcl_flower.rounds import messages
from fcl_flower.rounds.codec import Encoded
from fcl_flower.rounds.mailbox import Mailbox, ask, wait_for_all
from fcl_flower.rounds.transport import Content, Reply
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.run

HONEST, HOSTILE = 0, 1
NODES = [11, 12]


# ---- a federation that waits for the updates of its second round


class Answering:
    """A transport that answers whatever is asked by what ``opened()`` returns."""

    simulated = blocking = False

    def __init__(self, opened):
        self.opened = opened

    def send(self, requests, seconds):
        return ["asked"] * len(requests)

    def receive(self, name, request):
        return Reply(request, self.opened)


class Waiting:
    """Has played one round, and asked for the second: its state, and all answers."""

    def __init__(self, strategy, folder):
        self.folder = folder
        self.earlier = {}
        config = tiny(folder, strategy=strategy)
        schedule = Built(resolve(config)).schedule

        def keep(client, request, reply):
            self.earlier[client, request.kind] = reply.content
            return reply

        transport = InProcessTransport(NODES, config, tamper=keep)
        self.norm_limit = config.federation.max_update_norm
        self.server, self.strategy = after_one_round(
            config, folder, transport, self.norm_limit
        )
        self.stage = schedule.stage(2)
        self.question, self.honest = {}, {}
        for client, node in enumerate(NODES):
            stage = schedule.stage(2, client)
            asked = self.server.train_request(client, stage).request
            self.question[client] = asked
            place = transport.places[node]
            self.honest[client] = transport.honest_answer(asked, place)

    def receive(self, client, arrive):
        """Return the used updates and the reasons, when ``arrive()`` is answered."""
        question = self.question[client]
        box = Mailbox(Answering(arrive), timeout=5)
        replies = list(ask(box, [question], wait_for_all))
        received = self.server.receive(replies)
        return received.updates, received.failures

    def receive_honest(self):
        """Return both clients' own updates."""
        updates = {}
        for client, content in self.honest.items():
            used, failed = self.receive(client, lambda c=content: over_the_network(c))
            assert not failed
            updates |= used
        return updates

    def aggregated(self):
        """Return the next state, and leave the server in its own."""
        updates = self.receive_honest()
        return self.strategy.combine(self.server.state, self.stage, updates)

    def mutants(self, seed):
        honest = self.honest[HOSTILE]
        # A copy of what the other sends now is an update like any other.
        others = [
            (f"the reply of client {client} to an earlier {kind}", content)
            for (client, kind), content in self.earlier.items()
        ]
        forgotten = messages.state_lost(2)
        others += [
            ("forgotten", forgotten),
            (
                "forgotten, and an update",
                Content(honest.tensors, {**honest.scalars, **forgotten.scalars}),
            ),
        ]
        return Mutants(honest, others, seed)


@pytest.fixture(scope="module", params=["fedavg", "fedweit"])
def waiting(request, tmp_path_factory):
    return Waiting(request.param, tmp_path_factory.mktemp("hostile"))


# ---- what is possible, read by the table in codec.py and by nothing of the code


def entries(array):
    """Return a float32 tensor as index to value; None if it cannot be read."""
    total, data = math.prod(array.shape), bytes(array.data)
    form, *frame = array.form.split("+zstd")
    form, _, precision = form.partition("+")
    head = 4 if precision == "levels" else 0
    width = {"": 4, "float16": 2, "bfloat16": 2, "levels": 1}[precision]
    tail = (total + 7) // 8 if form.endswith(".bitmap") else 0
    if frame:
        try:
            data = zstandard.ZstdDecompressor().decompress(data)
        except zstandard.ZstdError:
            return None
    count, rest = divmod(len(data) - head - tail, width)
    places = list(range(total))
    if tail:
        bits = data[len(data) - tail :]
        places = [i for i in range(8 * tail) if bits[i // 8] >> i % 8 & 1]
    if rest or count != len(places) or max(places, default=0) >= total:
        return None
    stored = data[head : head + count * width]
    if frame:
        stored = b"".join(stored[i::count] for i in range(count))
    if precision == "bfloat16":
        wide = b"".join(b"\0\0" + stored[i : i + 2] for i in range(0, len(stored), 2))
        values = struct.unpack(f"<{count}f", wide)
    else:
        letter = {"": "f", "float16": "e", "levels": "b"}[precision]
        values = struct.unpack(f"<{count}{letter}", stored)
    if head:
        step = np.float32(struct.unpack_from("<f", data)[0])
        if not 0 <= step < np.inf or min(values, default=0) < -127:
            return None
        values = [float(np.float32(value) * step) for value in values]
    found = dict(zip(places, values, strict=True))
    if form.startswith("fcl.sparse"):
        return found
    return dict.fromkeys(range(total), 0.0) | found


def length(values):
    return math.sqrt(math.fsum(value * value for value in values))


def stage_of(content):
    return content.scalars[messages.STAGE]


def possible(content, waiting):
    """Return the tensors of an update that is possible, None of any other.

    They are named ``group/name``, and given as index to value.
    """
    base = waiting.server.state["base"]
    honest = waiting.honest[HOSTILE]
    sparse = "adapters" in honest.tensors
    groups = content.tensors
    fits = groups.keys() == {"base"} or (sparse and groups.keys() <= set(WEIT))
    whole = [g for g in groups if not sparse or g == "adapters"]
    fits = fits and all(groups[g].keys() == base.keys() for g in whole)
    fits = fits and all(groups[g].keys() <= base.keys() for g in groups)
    fits = fits and stage_of(content) == stage_of(honest)
    scalars = content.scalars[messages.METRICS]
    examples = scalars.get("num-examples")
    fits = fits and type(examples) is int and 0 <= examples <= 2**31
    fits = fits and all(abs(value) < 3.5e38 for value in scalars.values())
    if not fits:
        return None
    found = {}
    for group, arrays in groups.items():
        for name, array in arrays.items():
            same = tuple(array.shape) == base[name].shape and array.dtype == "float32"
            storage = array.form.partition(".")[2].startswith("sparse")
            if not same or storage != sparse:
                return None
            found[f"{group}/{name}"] = entries(array)
    if None in found.values():
        return None
    values = [value for tensor in found.values() for value in tensor.values()]
    own = length(value for t in base.values() for value in t.ravel().tolist())
    allowed = waiting.norm_limit * max(1, own)
    return found if length(values) <= allowed else None  # NaN is not


WEIT = ("base", "adapters")


def opened(update):
    """Return the tensors of an opened update in the form of `possible`."""
    return {
        f"{group}/{name}": dict(
            zip(tensor.indices.tolist(), tensor.values.tolist(), strict=True)
            if isinstance(tensor, SparseArray)
            else enumerate(tensor.ravel().tolist())
        )
        for group, arrays in update.payload.items()
        for name, tensor in arrays.items()
    }


# ---- what it takes


def forget_peak():
    """Let the process's peak of memory begin anew, where the system can do that."""
    place = Path("/proc/self/clear_refs")
    if place.exists():
        place.write_text("5")


def peak():
    """Return the most memory that the process had, in MB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def test_the_oracle_reads_the_honest_updates_as_the_server_does(waiting):
    updates = waiting.receive_honest()
    for client, content in waiting.honest.items():
        assert possible(content, waiting) == opened(updates[client])
    assert exact(waiting.aggregated()) != exact(waiting.server.state)


@pytest.mark.parametrize(
    ("count", "least_of_a_kind", "least_reasons", "most_survivors"),
    [
        (300, 10, 17, 15),
        pytest.param(5000, 250, 100, 150, marks=pytest.mark.fuzz),
    ],
)
def test_broken_updates_change_nothing(
    waiting, caplog, count, least_of_a_kind, least_reasons, most_survivors
):
    caplog.set_level("ERROR")
    server = waiting.server
    before, expected = exact(server.state), exact(waiting.aggregated())
    done = server.done, server.stages.last_round(HONEST)
    mutants = waiting.mutants(seed=1)
    drawn, survived, reasons = Counter(), 0, set()
    forget_peak()
    began = peak()
    for number in range(count):
        kind, label, arrive = mutants.draw()
        arrived = []

        def answer(arrive=arrive, arrived=arrived):
            arrived.append(arrive())
            return arrived[0]

        used, failed = waiting.receive(HOSTILE, answer)
        drawn[kind] += 1
        where = f"mutant {number}: {label}"
        assert {*used, *failed} == {HOSTILE}, where
        if used:
            assert kind == Mutants.DAMAGE, where
            assert possible(arrived[0], waiting) == opened(used[HOSTILE]), where
            survived += 1
        else:
            (reason,) = failed.values()
            assert 0 < len(reason) <= 300, where
            assert reason.isprintable(), where
            assert "Warning" not in reason, where
            reasons.add(reason)

    assert peak() - began < 200
    assert min(drawn[kind] for kind in Mutants.SHARES) > least_of_a_kind
    assert len(reasons) > least_reasons
    assert 0 < survived < most_survivors
    after = exact(server.state)
    before.get("meta/seen", {}).pop(str(HOSTILE), None)  # it said: forgotten
    assert after == before
    assert (server.done, server.stages.last_round(HONEST)) == done
    assert exact(waiting.aggregated()) == expected


def test_nothing_of_a_mutant_gets_into_the_record(waiting):
    mutants = waiting.mutants(seed=2)
    failed = {}
    for _, content in mutants.contents:
        _, why = waiting.receive(HOSTILE, lambda c=content: over_the_network(c))
        failed |= why
    server, folder = waiting.server, waiting.folder
    files = {path: path.stat().st_size for path in folder.glob("*.*")}
    updates = waiting.receive_honest()
    server.close_round(waiting.stage, updates, failed, {})
    *_, last = (folder / "rounds.jsonl").read_text().splitlines()
    kinds = json.loads(last)["bytes_up"].keys()
    assert kinds == {*waiting.honest[HOSTILE].tensors, "meta", "unused"}
    grown = {path.name: path.stat().st_size - size for path, size in files.items()}
    assert max(grown.values()) < 10_000, grown


CLAIMS = {
    "zeros that are not sent": zeros_left_out(2**28),
    "entries that are not sent": zeros_left_out(2**28, "fcl.sparse"),
    "more than there is": Encoded("float32", (2**50,), "fcl.dense.bitmap", b"\x01"),
}


@pytest.mark.parametrize("claim", CLAIMS, ids=str)
def test_a_claim_of_memory_takes_none(waiting, claim):
    honest = waiting.honest[HOSTILE]
    name = next(iter(honest.tensors["base"]))
    content = with_array(honest, "base", name, CLAIMS[claim])
    forget_peak()
    began = peak()
    _, failed = waiting.receive(HOSTILE, lambda: over_the_network(content))
    assert name in failed[HOSTILE]
    assert peak() - began < 20


NAMES = {
    **dict.fromkeys(["a", "loss_2", "seen/3/0", "seen.at-2", "x" * 64], True),
    **dict.fromkeys(["x" * 65, "", "2x", "loss\n", "a//b", "a/", "a b", "ä"], False),
    **dict.fromkeys(["<script>", "../x", "a" * 2**16], False),
}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
def test_a_scalar_has_a_name_of_a_known_shape(waiting, name):
    one = with_scalars(waiting.honest[HOSTILE], **{name: 0.5})
    updates, failed = waiting.receive(HOSTILE, lambda: over_the_network(one))
    assert bool(updates) == NAMES[name]
    assert bool(updates) or "expected names of" in failed[HOSTILE]


def test_more_scalars_than_usual_are_possible_but_not_a_flood_of_them(
    waiting, monkeypatch
):
    assert messages.MAX_METRICS == 2**14
    monkeypatch.setattr(messages, "MAX_METRICS", 100)
    honest = waiting.honest[HOSTILE]
    for count, used in ((50, True), (100, False)):
        flood = with_scalars(honest, **{f"seen/{i}": 0.5 for i in range(count)})
        updates, _ = waiting.receive(HOSTILE, lambda c=flood: over_the_network(c))
        assert bool(updates) == used
