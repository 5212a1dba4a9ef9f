"""Updates of a round lie in a file without a name, where they are many bytes."""

import gc
import os
import weakref

import numpy as np
import pytest
from fakes import exact, rounds_of, run_in_process, tiny
from resuming import outcome

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.core.types import SparseArray, Update, specs
from fcl_flower.rounds import replies, stored
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.replies import UpdateBuffer
from fcl_flower.rounds.transport import Content
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated


@pytest.fixture
def no_memory(monkeypatch):
    monkeypatch.setattr(replies, "IN_MEMORY", 0)


def update(payload):
    return Update(payload, num_examples=3, metrics={"loss": 1.5})


def payload():
    return {
        "base": {
            "w": np.array([[1.5, -0.0, np.float32(1e-45)], [0, 0, 3]], np.float32),
            "steps": np.array(7),
            "some": SparseArray((2, 3), np.array([1, 4]), np.array([0.0, 2.5])),
        },
        "adapters/3": {"w": np.arange(4.0)},
    }


def test_what_was_kept_on_the_disk_is_the_same_bit_for_bit(tmp_path, no_memory):
    kept = UpdateBuffer(tmp_path, ("base",)).store(update(payload()))

    assert exact(kept.payload) == exact(payload())
    assert specs(kept.payload["base"]) == specs(payload()["base"])
    assert (kept.num_examples, kept.metrics) == (3, {"loss": 1.5})


def test_a_checkpoint_copies_the_bytes_on_the_disk(tmp_path, no_memory, monkeypatch):
    made = MessageEncoder().payload(payload()).tensors["base"]
    kept = UpdateBuffer(tmp_path, ("base",)).store(update(payload()))
    with monkeypatch.context() as patch:
        patch.setattr(stored, "encode", None)
        patch.setattr(stored, "decode", None)
        FolderStateStore(tmp_path).save({"base": kept.payload["base"]}, 1)

    (path,) = tmp_path.glob("manifest-*")
    assert all(bytes(tensor.data) in path.read_bytes() for tensor in made.values())
    state = FolderStateStore(tmp_path).load().state
    assert exact(state) == exact({"base": payload()["base"]})


def test_only_the_named_kinds_leave_memory(tmp_path, no_memory):
    sent = payload()
    kept = UpdateBuffer(tmp_path, ("base",)).store(update(sent))

    assert kept.payload["adapters/3"] is sent["adapters/3"]
    assert kept.payload["base"]["w"] is not kept.payload["base"]["w"], "held by nobody"


def test_memory_is_used_up_before_the_disk_is(tmp_path, monkeypatch):
    first, second, third = ({"base": {"w": np.ones(n, np.uint8)}} for n in (60, 50, 40))
    monkeypatch.setattr(replies, "IN_MEMORY", 100)
    keep = UpdateBuffer(tmp_path, ("base",)).store
    kept = [keep(update(s)).payload["base"] for s in (first, second, third)]

    assert kept[0] is first["base"]
    assert kept[1] is not second["base"]
    assert kept[2] is third["base"]


def test_the_positions_of_a_sparse_tensor_count_too(tmp_path, monkeypatch):
    sparse = SparseArray((9,), np.array([4]), np.array([1.0], np.float32))
    for room, stays in ((11, False), (12, True)):
        monkeypatch.setattr(replies, "IN_MEMORY", room)
        sent = {"base": {"w": sparse}}
        kept = UpdateBuffer(tmp_path, ("base",)).store(update(sent))
        assert (kept.payload["base"] is sent["base"]) == stays


def test_the_file_has_no_name_and_goes_with_the_last_update(tmp_path, no_memory):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    gc.collect()
    before = open_files()
    holder = UpdateBuffer(tmp_path, ("base",))
    kept = [holder.store(update(payload())) for _ in range(3)]
    del holder
    assert list(tmp_path.iterdir()) == []
    assert open_files() == before + 1
    assert exact(kept[2].payload) == exact(payload())
    del kept
    gc.collect()
    assert open_files() == before


@pytest.mark.run
def test_a_full_disk_is_no_clients_fault(tmp_path, no_memory, monkeypatch):
    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def seek(self, *place):
            return 0

        tell = seek

        def close(self):
            pass

    monkeypatch.setattr(replies.tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(OSError, match="No space left"):
        run_in_process(tiny(tmp_path, strategy="fedavg"))


def cohort(clients, keep):
    rng = np.random.default_rng(3)
    for _ in range(clients):
        w = rng.normal(size=250_000).astype(np.float32)
        present = np.flatnonzero(rng.random(250_000) < 0.3)
        some = SparseArray(w.shape, present, w[present])
        yield keep(update({"base": {"w": w, "some": some}}))


def test_the_mean_of_what_lies_on_the_disk_is_that_of_memory(tmp_path, no_memory):
    start = {"w": np.zeros(250_000, np.float32), "some": np.ones(250_000, np.float32)}
    counts = [5, 0, 17, 3, 11]
    means = [
        Aggregation().combine([u.payload["base"] for u in updates], weights, start)
        for keep in (lambda u: u, UpdateBuffer(tmp_path, ("base",)).store)
        for updates in [list(cohort(5, keep))]
        for weights in (counts, np.array(counts, float), None)
    ]

    assert len(means) == 6
    for memory, disk in zip(means[:3], means[3:], strict=True):
        assert exact({"base": memory}) == exact({"base": disk})


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_run_on_the_disk_has_the_numbers_of_one_in_memory(
    tmp_path, monkeypatch, strategy
):
    def run(name, **behaviour):
        config = tiny(tmp_path / name, strategy=strategy, clients=3)
        run_in_process(config, **behaviour)
        return outcome(tmp_path / name)

    usual = run("memory")
    read = []
    plain = stored.decode
    monkeypatch.setattr(replies, "IN_MEMORY", 0)
    monkeypatch.setattr(stored, "decode", lambda *a: read.append(1) or plain(*a))
    assert run("disk", delay=lambda client: (1, 2, 0)[client]) == usual
    assert read


@pytest.mark.run
def test_rules_that_compare_updates_have_them_in_memory(
    tmp_path, no_memory, monkeypatch
):
    monkeypatch.setattr(replies, "StoredArrays", None)  # whoever reads the disk fails
    run_in_process(
        tiny(tmp_path, strategy="fedavg", clients=3, **{"aggregation": "median"})
    )
    assert len(rounds_of(tmp_path)) == 2


@pytest.mark.run
def test_a_round_holds_one_reply_at_a_time(tmp_path, no_memory):
    gc.collect()
    gc.freeze()  # of all tests before, which would be looked through each time
    alive, most = [], []

    class Watched(Content):
        """Content that may be referred to weakly."""

    class Watching(InProcessTransport):
        def answer(self, request, place):
            honest = super().answer(request, place)
            content = Watched(honest.tensors, honest.scalars)
            alive.append(weakref.ref(content))
            gc.collect()
            most.append(sum(content() is not None for content in alive))
            return content

    config = tiny(tmp_path, strategy="fedavg", clients=6)
    run_simulated(Watching(range(100, 106), config), config)
    gc.unfreeze()
    assert len(most) == 6 + 2 * (6 + 6), "connecting, and two rounds with their tests"
    assert max(most) <= 2
