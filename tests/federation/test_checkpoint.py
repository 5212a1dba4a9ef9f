"""What is saved comes back, whatever happens to the process or to a file."""

import os
from pathlib import Path

import numpy as np
import pytest
from fakes import exact
from flwr.app import Context, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.federation.checkpoint import (
    ContextStateStore,
    FolderStateStore,
)

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


PAYLOADS = st.dictionaries(
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=8), st.one_of(DENSE, sparse_arrays()), max_size=3),
    min_size=1,
    max_size=3,
)


def context():
    return Context(
        run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={}
    )


def state():
    return {
        "base": {"w": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "adapters/0": {"w": SparseArray((2, 3), np.array([4]), np.array([1.5]))},
        "optimizer": {"rate": np.asarray(1e-3)},
    }


def later():
    return {**state(), "base": {"w": np.ones((2, 3), np.float32)}}


@given(payload=PAYLOADS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_folder_gives_back_what_was_saved_to_a_new_process(tmp_path, payload):
    FolderStateStore(tmp_path / "client-0", durable=False).save(payload, 1)
    assert exact(FolderStateStore(tmp_path / "client-0").load(9).state) == exact(
        payload
    )


@given(payload=PAYLOADS)
@settings(max_examples=60, deadline=None)
def test_a_context_gives_back_what_was_saved(payload):
    kept = context()
    ContextStateStore(kept).save(payload, 1)
    assert exact(ContextStateStore(kept).load(9).state) == exact(payload)


@pytest.mark.parametrize("kind", ["folder", "context"])
def test_the_last_state_replaces_the_one_before(tmp_path, kind):
    kept = context()
    memory = FolderStateStore(tmp_path) if kind == "folder" else ContextStateStore(kept)
    memory.save(state(), 1)
    memory.save({"other": {"x": np.ones(2)}}, 1)
    again = FolderStateStore(tmp_path) if kind == "folder" else ContextStateStore(kept)
    assert exact(again.load(9).state) == exact({"other": {"x": np.ones(2)}})


def test_a_context_may_hold_more_in_dense_form_than_a_peer_may_send():
    huge = {
        f"foreign/{task}": {
            "w": SparseArray((2**28,), np.array([3]), np.array([1.0], np.float32))
        }
        for task in range(3)
    }
    kept = context()
    ContextStateStore(kept).save(huge, 1)
    assert exact(ContextStateStore(kept).load(9).state) == exact(huge)


@pytest.mark.parametrize("looked_into", [True, False])
@pytest.mark.parametrize("step", [1, 2])
def test_a_crash_between_two_files_leaves_the_old_state_whole(
    tmp_path, monkeypatch, step, looked_into
):
    FolderStateStore(tmp_path, durable=False).save(state(), 1)
    memory = FolderStateStore(tmp_path, durable=False)
    kept = memory.load(9).state if looked_into else state()
    replace, calls = Path.replace, []

    def crash(self, target):
        calls.append(target)
        if len(calls) == step:
            raise OSError("power cut")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        memory.save({**kept, "base": later()["base"]}, 1)
    monkeypatch.undo()
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(state())
    FolderStateStore(tmp_path).save(later(), 1)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())


def test_a_crash_while_writing_leaves_the_old_state_whole(tmp_path):
    FolderStateStore(tmp_path).save(state(), 1)
    (tmp_path / "0123.bin.new").write_bytes(b"half a fi")
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(state())
    FolderStateStore(tmp_path).save(later(), 1)
    assert not (tmp_path / "0123.bin.new").exists()


@pytest.mark.parametrize("damage", ["flipped", "truncated", "removed", "emptied"])
def test_a_damaged_file_is_refused_by_name(tmp_path, damage):
    FolderStateStore(tmp_path).save(state(), 1)
    for path in sorted(tmp_path.iterdir()):
        if damage == "removed" and path.name == "manifest-1":
            continue
        whole = path.read_bytes()
        if damage == "removed":
            path.unlink()
        elif damage == "flipped":
            middle = len(whole) // 2
            flipped = bytes([whole[middle] ^ 1])
            path.write_bytes(whole[:middle] + flipped + whole[middle + 1 :])
        else:
            path.write_bytes(whole[:-2] if damage == "truncated" else b"")
        with pytest.raises(WireError, match=path.name):
            exact(FolderStateStore(tmp_path).load(9).state)
        path.write_bytes(whole)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(state())


def test_no_byte_of_the_manifest_can_change_unseen(tmp_path):
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
    FolderStateStore(tmp_path, durable=False).save(state(), 1)
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in bins(tmp_path)}
    memory = FolderStateStore(tmp_path, durable=False)
    loaded = memory.load(9).state
    memory.save({**loaded, "base": {"w": np.zeros((2, 3), np.float32)}}, 1)
    memory.save({**loaded, "base": {"w": np.ones((2, 3), np.float32)}}, 1)
    after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in bins(tmp_path)}
    assert len(before.keys() & after.keys()) == 2
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())


def test_stale_files_vanish(tmp_path):
    memory = FolderStateStore(tmp_path, durable=False)
    memory.save(state(), 1)
    assert len(bins(tmp_path)) == 3
    memory.save({"base": state()["base"]}, 1)
    assert len(bins(tmp_path)) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_group_without_a_reader_is_not_read(tmp_path, monkeypatch):
    FolderStateStore(tmp_path).save(state(), 1)
    read = []
    plain = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read.append(path.suffix) or plain(path)
    )
    memory = FolderStateStore(tmp_path, durable=False)
    loaded = memory.load(9).state
    memory.save({**loaded, "base": later()["base"]}, 1)
    assert set(read) == {""}, "manifests alone"
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())


def test_a_file_left_by_a_crash_is_never_taken_for_a_new_one(tmp_path):
    FolderStateStore(tmp_path).save(state(), 1)
    (tmp_path / "2-0.bin").write_bytes(b"from a save that never reached its manifest")
    memory = FolderStateStore(tmp_path)
    memory.save({**memory.load(9).state, "base": later()["base"]}, 1)
    assert exact(FolderStateStore(tmp_path).load(9).state) == exact(later())


def test_a_durable_state_reaches_the_disk_before_the_manifest_names_it(
    tmp_path, monkeypatch
):
    events = []
    replace, fsync = Path.replace, os.fsync

    def noted_replace(self, target):
        events.append(f"name {Path(target).suffix or Path(target).name}")
        return replace(self, target)

    def noted_fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        events.append("sync folder" if path.is_dir() else f"sync {path.suffixes[0]}")
        return fsync(handle)

    monkeypatch.setattr(Path, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    two = {"base": {"w": np.ones(2)}, "heads": {"w": np.ones(3)}}
    FolderStateStore(tmp_path, durable=True).save(two, 1)
    assert events == [
        *("sync .bin", "name .bin") * 2,
        "sync folder",
        *("sync .new", "name manifest-1", "sync folder"),
    ]
    events.clear()
    FolderStateStore(tmp_path, durable=False).save({"base": {"w": np.ones(2)}}, 1)
    assert events == ["name .bin", "name manifest-2"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_group_without_tensors_is_kept_and_has_no_file(tmp_path, durable):
    first = {"base": {"w": np.ones(2)}, "heads": {}, "optimizer": {}}
    FolderStateStore(tmp_path, durable=durable).save(first, 1)

    assert len(bins(tmp_path)) == 1
    memory = FolderStateStore(tmp_path, durable=durable)
    loaded = memory.load(9).state
    assert exact(loaded) == exact(first)
    memory.save({**loaded, "heads": {"h": np.zeros(1)}}, 2)
    found = FolderStateStore(tmp_path, durable=durable).load(9).state
    assert exact(found) == exact({**first, "heads": {"h": np.zeros(1)}})
    memory.save({**found, "base": {}}, 3)
    found = FolderStateStore(tmp_path, durable=durable).load(9).state
    assert exact(found) == exact({**first, "heads": {"h": np.zeros(1)}, "base": {}})


def bins(folder):
    return sorted(folder.glob("*.bin"))


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


@pytest.mark.parametrize("kind", ["folder", "context"])
def test_a_group_is_found_as_it_was_saved_last(tmp_path, kind):
    where = context()
    make = {
        "folder": lambda: FolderStateStore(tmp_path),
        "context": lambda: ContextStateStore(where),
    }[kind]
    assert make().last("base") == {}
    make().save({**state(), "empty": {}}, 1)
    make().save({**later(), "empty": {}}, 2)

    np.testing.assert_array_equal(make().last("base")["w"], later()["base"]["w"])
    assert make().last("empty") == make().last("nothing") == {}


def test_a_damaged_group_gives_way_to_the_one_before_it(tmp_path, caplog):
    store = FolderStateStore(tmp_path)
    store.save(state(), 1)
    store.save(later(), 2)
    newest = tmp_path / "2-0.bin"
    newest.write_bytes(b"x" + newest.read_bytes()[1:])

    found = FolderStateStore(tmp_path).last("base")

    np.testing.assert_array_equal(found["w"], state()["base"]["w"])
    assert "is damaged; trying the version before" in caplog.text


@pytest.mark.parametrize("damaged", ["manifest-2", "2-0.bin"])
def test_a_damaged_version_gives_way_to_the_one_before(tmp_path, caplog, damaged):
    memory = FolderStateStore(tmp_path)
    memory.save(told(1), 1)
    memory.save(told(2), 2)
    (tmp_path / damaged).write_bytes(b"rubbish")
    found = FolderStateStore(tmp_path).load(9)
    assert (found.round, exact(found.state)) == (1, exact(told(1)))
    again = FolderStateStore(tmp_path)
    again.load(9)
    again.save(told(3), 3)
    found = FolderStateStore(tmp_path).load(9)
    assert (found.round, exact(found.state)) == (3, exact(told(3)))
