"""What is saved comes back, whatever happens to the process or to a file."""

import os
from pathlib import Path

import numpy as np
import pytest
from fakes import exact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.rounds import checkpoint, stored
from fcl_flower.rounds.checkpoint import (
    BESIDE,
    FolderStateStore,
    MemoryStateStore,
    stored_bytes,
)
from fcl_flower.rounds.codec import encode
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.place import place_of

DTYPES = st.sampled_from(
    ["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]
).map(np.dtype)
DENSE = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))
)


@st.composite
def sparse_arrays(draw):
    dense = draw(DENSE)
    present = draw(hnp.arrays(np.bool_, dense.shape))
    return SparseArray.of_mask(dense, np.asarray(present))


# Hypothesis tries the words of the code, too, such as those that are refused.
GROUPS = st.text(max_size=8).filter(lambda name: name.split("/")[0] not in BESIDE)
PAYLOADS = st.dictionaries(
    GROUPS,
    st.dictionaries(st.text(max_size=8), st.one_of(DENSE, sparse_arrays()), max_size=3),
    min_size=1,
    max_size=3,
)


def state():
    return {
        "base": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "adapters/0": {"w": SparseArray((2, 3), np.array([4]), np.array([1.5]))},
        "optimizer": {"rate": np.asarray(1e-3)},
    }


def later():
    return {**state(), "base": {"w": np.ones((2, 3), np.float32)}}


def two_files(folder):
    """Save a state of which a later file has one group, an earlier one the rest."""
    old = {f"old/{task}": {"w": np.full(64, task + 0.5)} for task in range(3)}
    FolderStateStore(folder).save({**state(), **old}, 1)
    memory = FolderStateStore(folder, durable=False)
    memory.save({**memory.load(9).state, "base": later()["base"]}, 1)
    assert names(folder) == ["manifest-1", "manifest-2"]
    return {**later(), **old}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def maker(kind, folder):
    """Return what makes stores of the same state, each as in a new process."""
    place = place_of(0)
    return {
        "folder": lambda: FolderStateStore(folder),
        "memory": lambda: MemoryStateStore(place),
    }[kind]


KINDS = pytest.mark.parametrize("kind", ["folder", "memory"])


@KINDS
@given(payload=PAYLOADS)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_was_saved_comes_back(tmp_path, kind, payload):
    make = maker(kind, tmp_path / "client-0")
    make().save(payload, 1)
    assert exact(make().load(9).state) == exact(payload)


@KINDS
def test_the_last_state_replaces_the_one_before(tmp_path, kind):
    make = maker(kind, tmp_path)
    store = make()
    store.save(state(), 1)
    store.save({"other": {"x": np.ones(2)}}, 1)
    assert exact(make().load(9).state) == exact({"other": {"x": np.ones(2)}})


def test_a_memory_may_hold_more_in_dense_form_than_a_peer_may_send():
    huge = {
        f"foreign/{task}": {
            "w": SparseArray((2**28,), np.array([3]), np.array([1.0], np.float32))
        }
        for task in range(3)
    }
    kept = place_of(0)
    MemoryStateStore(kept).save(huge, 1)
    assert exact(MemoryStateStore(kept).load(9).state) == exact(huge)


@pytest.mark.parametrize("looked_into", [True, False])
def test_a_crash_before_a_file_has_its_name_leaves_the_old_state_whole(
    tmp_path, monkeypatch, looked_into
):
    FolderStateStore(tmp_path, durable=False).save(state(), 1)
    memory = FolderStateStore(tmp_path, durable=False)
    kept = memory.load(9).state if looked_into else state()

    def crash(self, target):
        raise OSError("power cut")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        memory.save({**kept, "base": later()["base"]}, 1)
    monkeypatch.undo()
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(state())
    FolderStateStore(tmp_path).save(later(), 1)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())


@pytest.mark.parametrize("damage", ["flipped", "removed", "emptied"])
def test_a_damaged_file_that_a_version_has_groups_in_is_refused_by_name(
    tmp_path, damage
):
    saved = two_files(tmp_path)
    path = tmp_path / "manifest-1"
    whole = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        start, end = whole.index(b"\n") + 1, whole.index(b'{"format"')
        damaged = bytes(byte ^ 1 for byte in whole[start:end])
        path.write_bytes(whole[:start] + damaged + whole[end:])
    elif damage == "emptied":
        path.write_bytes(b"")
    with pytest.raises(WireError, match="manifest-1"):
        exact(FolderStateStore(tmp_path).load(9).state)
    path.write_bytes(whole[:-2])  # a manifest that this version does not need
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(saved)


def test_no_byte_of_a_file_can_change_unseen(tmp_path):
    FolderStateStore(tmp_path).save(state(), 1)
    path = tmp_path / "manifest-1"
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(WireError, match="manifest"):
            FolderStateStore(tmp_path).load(9)


def test_a_group_that_did_not_change_is_not_written_again(tmp_path):
    saved = two_files(tmp_path)
    first = (tmp_path / "manifest-1").stat()
    memory = FolderStateStore(tmp_path, durable=False)
    memory.save({**memory.load(9).state, "base": state()["base"]}, 2)
    memory.save({**memory.load(9).state, "base": later()["base"]}, 3)
    assert names(tmp_path) == ["manifest-1", "manifest-3", "manifest-4"]
    assert (tmp_path / "manifest-1").stat() == first
    assert (tmp_path / "manifest-4").stat().st_size < first.st_size
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(saved)
    assert FolderStateStore(tmp_path).load(2) is None, "the first is no version now"


def test_what_little_is_left_of_a_file_is_copied(tmp_path):
    large, small = {"w": np.ones(100)}, {"w": np.arange(3.0)}
    memory = FolderStateStore(tmp_path, durable=False)
    memory.save({"large": large, "small": small}, 1)
    for number in (2, 3):
        memory = FolderStateStore(tmp_path, durable=False)
        loaded = memory.load(number).state
        memory.save({**loaded, "large": {"w": np.full(100, float(number))}}, number)
    assert names(tmp_path) == ["manifest-2", "manifest-3"]
    # Its file has no name any more, but who has loaded it can still read it.
    assert exact({"small": loaded["small"]}) == exact({"small": small})
    found = FolderStateStore(tmp_path).load(9).state
    assert exact(found) == exact({"large": {"w": np.full(100, 3.0)}, "small": small})


def test_a_group_of_two_names_lies_there_once(tmp_path):
    group = {"w": np.arange(1000.0)}
    FolderStateStore(tmp_path).save({"base": group, "anchor": group}, 1)
    assert (tmp_path / "manifest-1").stat().st_size < 1.1 * 8000
    found = FolderStateStore(tmp_path).load(9).state
    assert exact(found) == exact({"base": group, "anchor": group})


def test_the_versions_before_can_be_dropped(tmp_path):
    saved = two_files(tmp_path)
    memory = FolderStateStore(tmp_path)
    left = {g: a for g, a in memory.load(9).state.items() if g != "old/1"}
    memory.save(left, 1)
    memory.drop_earlier()
    assert names(tmp_path) == ["manifest-4"]
    del saved["old/1"]
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(saved)
    kept = (tmp_path / "manifest-4").read_bytes()
    assert encode(np.full(64, 1.5)).data not in kept
    assert encode(np.full(64, 2.5)).data in kept


def test_a_group_without_a_reader_is_not_decoded(tmp_path, monkeypatch):
    saved = two_files(tmp_path)
    read = []
    plain = stored.decode
    monkeypatch.setattr(
        stored, "decode", lambda *given: read.append(given) or plain(*given)
    )
    memory = FolderStateStore(tmp_path, durable=False)
    loaded = memory.load(9).state
    memory.save({**loaded, "base": later()["base"]}, 1)
    assert not read
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(saved)


def test_a_file_left_by_a_crash_is_never_taken_for_a_new_one(tmp_path):
    FolderStateStore(tmp_path).save(state(), 1)
    (tmp_path / "manifest-2.new").write_bytes(b"from a save that never had its name")
    memory = FolderStateStore(tmp_path)
    loaded = memory.load(9).state
    assert exact(loaded) == exact(state())
    memory.save({**loaded, "base": later()["base"]}, 1)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())
    assert not (tmp_path / "manifest-2.new").exists()


def test_a_durable_state_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    events = []
    replace, fsync = Path.replace, os.fsync

    def noted_replace(self, target):
        events.append(f"name {Path(target).name}")
        return replace(self, target)

    def noted_fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        events.append("sync folder" if path.is_dir() else f"sync {path.name}")
        return fsync(handle)

    monkeypatch.setattr(Path, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    two = {"base": {"w": np.ones(2)}, "heads": {"w": np.ones(3)}}
    FolderStateStore(tmp_path, durable=True).save(two, 1)
    assert events == ["sync manifest-1.new", "name manifest-1", "sync folder"]
    events.clear()
    FolderStateStore(tmp_path, durable=False).save({"base": {"w": np.ones(2)}}, 1)
    assert events == ["name manifest-2"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_group_without_tensors_is_kept(tmp_path, durable):
    first = {"base": {"w": np.ones(2)}, "heads": {}, "optimizer": {}}
    FolderStateStore(tmp_path, durable=durable).save(first, 1)

    memory = FolderStateStore(tmp_path, durable=durable)
    loaded = memory.load(9).state
    assert exact(loaded) == exact(first)
    memory.save({**loaded, "heads": {"h": np.zeros(1)}}, 2)
    found = FolderStateStore(tmp_path, durable=durable).load(9).state
    assert exact(found) == exact({**first, "heads": {"h": np.zeros(1)}})
    memory.save({**found, "base": {}}, 3)
    found = FolderStateStore(tmp_path, durable=durable).load(9).state
    assert exact(found) == exact({**first, "heads": {"h": np.zeros(1)}, "base": {}})


# ---- on the disk


def test_groups_on_the_disk_are_read_and_sent_as_they_were(tmp_path):
    noise = np.random.default_rng(3).normal(size=(30, 40))
    rounded = np.rint(3 * noise).astype(np.float32) / 3
    adapters = {f"adapters/{n}/0": {"w": rounded + n, "v": rounded} for n in range(3)}
    memory = FolderStateStore(tmp_path)
    whole = {**state(), **adapters}
    memory.save(whole, 1)

    found = memory.on_disk(whole, ("adapters",))

    assert found["base"] is whole["base"]
    assert exact(found) == exact(whole)
    group = found["adapters/1/0"]
    assert group["w"] is not group["w"], "held by nobody"
    encoders = [MessageEncoder() for _ in range(2)]
    sent, plain = (
        encoder.payload({"a": saved["adapters/1/0"]}).tensors["a"]
        for encoder, saved in zip(encoders, (found, whole), strict=True)
    )
    assert {n: (a.form, bytes(a.data)) for n, a in sent.items()} == {
        n: (a.form, bytes(a.data)) for n, a in plain.items()
    }
    again = encoders[0].payload({"a": group}).tensors["a"]
    assert again["w"] is sent["w"], "encoded once for all"


def test_groups_on_the_disk_are_not_written_again_and_move_with_their_file(tmp_path):
    few, many = {"w": np.ones(10)}, {"w": np.arange(1000.0)}
    memory = FolderStateStore(tmp_path)
    now = {"adapters/0": few, "base": many}
    for number in range(1, 4):
        memory.save(now, number)
        now = memory.on_disk(now, ("adapters",))
        now["base"] = {"w": np.full(1000, float(number))}
    assert names(tmp_path) == ["manifest-2", "manifest-3"], "one of 1 had few in use"
    before = now["adapters/0"]
    assert memory.on_disk(now, ("adapters",))["adapters/0"] is before
    assert exact({"adapters/0": before}) == exact({"adapters/0": few})
    again = FolderStateStore(tmp_path)
    loaded = again.on_disk(again.load().state, ("adapters",))
    assert exact({"adapters/0": loaded["adapters/0"]}) == exact({"adapters/0": few})


def test_a_group_that_was_saved_or_loaded_is_counted_without_encoding(
    tmp_path, monkeypatch
):
    saved, store, again = (
        state(),
        FolderStateStore(tmp_path),
        FolderStateStore(tmp_path),
    )
    expected = {group: stored_bytes(group, arrays) for group, arrays in saved.items()}
    store.save(saved, 1)
    loaded = again.load().state
    assert {g: store.size(g, dict(a)) for g, a in saved.items()} == expected
    monkeypatch.setattr(checkpoint, "encode", None)
    assert {g: store.size(g, a) for g, a in saved.items()} == expected
    assert {g: again.size(g, a) for g, a in loaded.items()} == expected


# ---- two versions


def told(number):
    return {"base": {"w": np.full(3, number, np.float32)}, "old": state()["optimizer"]}


def test_a_round_that_is_repeated_starts_from_the_state_before_it(tmp_path):
    for number in (1, 2, 3):
        memory = FolderStateStore(tmp_path)
        memory.load(number)
        memory.save(told(number), number)
    for _ in range(2):  # as often as one likes
        again = FolderStateStore(tmp_path)
        found = again.load(before=3)
        assert (found.round, exact(found.state)) == (2, exact(told(2)))
        again.save(told(30), 3)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(told(30))
    assert FolderStateStore(tmp_path).load(before=2) is None, "only two are kept"


@KINDS
def test_a_group_is_found_as_it_was_saved_last(tmp_path, kind):
    make = maker(kind, tmp_path)
    assert make().last("base") == {}
    make().save({**state(), "empty": {}}, 1)
    make().save({**later(), "empty": {}}, 2)

    np.testing.assert_array_equal(make().last("base")["w"], later()["base"]["w"])
    assert make().last("empty") == make().last("nothing") == {}


def test_a_damaged_group_gives_way_to_the_one_before_it(tmp_path, caplog):
    store = FolderStateStore(tmp_path)
    store.save(state(), 1)
    store.save(later(), 2)
    newest = tmp_path / "manifest-2"
    whole = newest.read_bytes()
    newest.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])

    found = FolderStateStore(tmp_path).last("base")

    np.testing.assert_array_equal(found["w"], state()["base"]["w"])
    assert "is damaged; trying the version before" in caplog.text


def test_a_damaged_version_gives_way_to_the_one_before(tmp_path, caplog):
    memory = FolderStateStore(tmp_path)
    memory.save(told(1), 1)
    memory.save(told(2), 2)
    (tmp_path / "manifest-2").write_bytes(b"rubbish")
    found = FolderStateStore(tmp_path).load(9)
    assert (found.round, exact(found.state)) == (1, exact(told(1)))
    again = FolderStateStore(tmp_path)
    again.load(9)
    again.save(told(3), 3)
    found = FolderStateStore(tmp_path).load(9)
    assert (found.round, exact(found.state)) == (3, exact(told(3)))
