"""The SuperLink's store of objects: Flower's, with large contents in files.

What it must do is what Flower's own store in memory does; both get the same calls.
"""

import json
import subprocess
import sys

import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.object_store.object_store import NoObjectInStoreError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import text

from fcl_flower.deploy.speedups.large_objects import LARGE, FileObjectStore

RUN = 7
# Of Flower's migrations.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")


def message(*sizes):
    record = ArrayRecord()
    for number, size in enumerate(sizes):
        data = number.to_bytes(1, "big") * size
        record[f"w{number}"] = Array("uint8", (size,), "fcl.dense", data)
    return RecordDict({"base": record})


def contents(sent):
    return {name: one.deflate() for name, one in get_all_nested_objects(sent).items()}


def keep(store, sent):
    for name in store.preregister(RUN, get_object_tree(sent)):
        store.put(name, contents(sent)[name])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "objects"


@pytest.fixture
def opened(tmp_path, folder):
    def new():
        store = FileObjectStore(folder, str(tmp_path / "superlink.db"))
        store.initialize()
        return store

    return new


def files(folder):
    return sorted(path.stat().st_size for path in folder.iterdir())


def test_it_answers_as_flowers_own_store_does(opened, folder):
    one, other = message(LARGE, 10), message(LARGE, 20, 3 * LARGE)
    stores = opened(), InMemoryObjectStore()
    for store in stores:
        assert len(store.preregister(RUN, get_object_tree(one))) == 6
        assert store.get(one.object_id) == b""
    for name, content in contents(one).items():
        for store in stores:
            store.put(name, content)
            store.put(name, content)  # a call that is repeated
            assert store.get(name) == content
    assert stores[0].preregister(RUN, get_object_tree(other)) == stores[1].preregister(
        RUN, get_object_tree(other)
    )
    for store in stores:
        keep(store, other)
        store.delete(one.object_id)
    assert len(files(folder)) == 2  # the first tensor is of both
    for name in {**contents(one), **contents(other)}:
        assert stores[0].get(name) == stores[1].get(name)
    for store in stores:
        store.delete_objects_in_run(RUN)
        assert len(store) == 0
    assert files(folder) == []


def test_what_is_not_announced_or_another_is_refused(opened, folder):
    store, sent = opened(), message(LARGE)
    name = next(iter(contents(sent)))

    with pytest.raises(NoObjectInStoreError):
        store.put(name, contents(sent)[name])
    store.preregister(RUN, get_object_tree(sent))
    with pytest.raises(ValueError, match="another content"):
        store.put(name, contents(message(2 * LARGE)).popitem()[1])
    assert (store.get(name), files(folder)) == (b"", [])


def test_what_is_undone_leaves_the_file(opened, folder):
    store, sent = opened(), message(LARGE)
    keep(store, sent)

    def fails():
        with store.session():
            store.delete(sent.object_id)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    name, content = next(iter(contents(sent).items()))
    assert store.get(name) == content
    store.delete(sent.object_id)
    assert files(folder) == []


def test_a_start_drops_what_a_crash_has_left(opened, folder):
    store, sent = opened(), message(LARGE, 2 * LARGE)
    keep(store, sent)
    small, large = sorted(folder.iterdir(), key=lambda path: path.stat().st_size)
    large.write_bytes(large.read_bytes()[:-1] + b"?")
    (folder / "stray").write_bytes(b"x")

    again = opened()

    assert list(folder.iterdir()) == [small]
    sizes = {n: len(again.get(n)) for n, c in contents(sent).items() if len(c) > LARGE}
    assert sorted(sizes.values()) == [0, small.stat().st_size]
    (missing,) = again.preregister(RUN, get_object_tree(sent))
    again.put(missing, contents(sent)[missing])  # it is sent again
    assert {n: again.get(n) for n in contents(sent)} == contents(sent)


def test_a_database_of_before_is_read_and_gives_back_its_space(opened, tmp_path):
    path = tmp_path / "superlink.db"
    before, sent = SqlObjectStore(str(path)), message(*[2**22] * 8)
    before.initialize()
    keep(before, message(10, LARGE))
    keep(before, sent)
    before.delete(sent.object_id)
    with before._engine.connect() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    before._engine.dispose()
    assert path.stat().st_size > 2**24

    store = opened()

    with store._engine.connect() as connection:
        connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
    assert path.stat().st_size < 2**20
    kept = contents(message(10, LARGE))
    assert {name: store.get(name) for name in kept} == kept


@pytest.mark.process
def test_flowers_program_gets_our_states_and_waits_for_a_busy_disk(tmp_path, folder):
    database = str(tmp_path / "superlink.db")
    (tmp_path / "program").write_text(f"""
import json
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
stores = ObjectStoreFactory({database!r})
states = LinkStateFactory({database!r}, NoOpFederationManager(), stores)
store, state = stores.store(), states.state()
names = [type(made).__name__ for made in (store, state)]
print(json.dumps([*names, store.query("PRAGMA busy_timeout")]))
""")
    names = "large_objects,deliveries,pauses"
    module = ("-m", "fcl_flower.deploy.speedups.superlink", names, str(folder))
    command = [sys.executable, "-P", *module, str(tmp_path / "program")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    timeout = [{"timeout": 60_000}]
    assert found == ["FileObjectStore", "ConfirmedDeliveries", timeout]


def test_flower_alone_keeps_the_space_of_what_is_gone(tmp_path):
    path, sent = tmp_path / "superlink.db", message(*[2**22] * 8)
    store = SqlObjectStore(str(path))
    store.initialize()
    keep(store, sent)
    store.delete(sent.object_id)

    assert path.stat().st_size > 20 * 2**20
