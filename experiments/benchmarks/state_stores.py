"""A folder a client beside one SQLite database a run, for the states of clients.

Both write what they read as `FolderStateStore` does: a group that changed, encoded and
with a checksum, and a manifest; two versions are kept. The database has one row a group
and one a version, a transaction a visit, no forced writes (nor have the folders of a
simulation), and the faster of its two journals, which is no write-ahead log.
"""

import json
import os
import sqlite3
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fcl_flower.core.types import Arrays, Payload
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.codec import Encoded, decode, encode

ROUNDS = 3
CHANGING = ("optimizer", "heads")


def main() -> None:
    """Print processor time a visit for a small network and a large one."""
    print("| weights | old tasks | clients | store | CPU ms a visit, by round | MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for weights, tasks, clients in ((25_000, 2, 500), (1_000_000, 3, 30)):
        states = [state(weights, seed) for seed in range(ROUNDS)]
        old = {f"adapters/{task}": network(weights, 10 + task) for task in range(tasks)}
        for store in (folders, database):
            with tempfile.TemporaryDirectory() as name:
                spent = [f"{ms:.2f}" for ms in store(Path(name), clients, states, old)]
                size = sum(p.stat().st_size for p in Path(name).rglob("*")) / 1e6
            cells = (weights, tasks, clients, store.__name__, ", ".join(spent))
            print(f"| {' | '.join(map(str, cells))} | {size:.0f} |", flush=True)


def network(weights: int, seed: int) -> Arrays:
    """Return two layers with biases."""
    rng = np.random.default_rng(seed)
    sizes = {"1": weights // 2, "b1": 128, "2": weights - weights // 2, "b2": 128}
    return {name: rng.normal(size=n).astype(np.float32) for name, n in sizes.items()}


def state(weights: int, seed: int) -> Payload:
    """Return the groups that change in every round."""
    return dict(
        zip(CHANGING, (network(weights, seed), network(2000, seed)), strict=True)
    )


def folders(
    root: Path, clients: int, states: list[Payload], old: Payload
) -> list[float]:
    """Visit all clients in rounds; return milliseconds a visit."""
    spent = []
    for number, new in enumerate(states, start=1):
        began = processor()
        for client in range(clients):
            store = FolderStateStore(root / f"client-{client}", durable=False)
            saved = store.load(number)
            kept = dict(old if saved is None else saved.state)
            for group in CHANGING if saved else ():
                dict(kept.pop(group))
            store.save({**kept, **new}, number)
        spent.append(1000 * (processor() - began) / clients)
    return spent


def database(
    root: Path, clients: int, states: list[Payload], old: Payload
) -> list[float]:
    """Do the same in one file."""
    link = sqlite3.connect(root / "states.db", isolation_level=None)
    link.execute("pragma page_size=32768")
    link.execute("pragma journal_mode=persist")
    link.execute("pragma synchronous=off")
    link.execute(
        "create table version(client integer, round integer, manifest text, "
        "primary key(client, round)) without rowid"
    )
    link.execute("create table content(id integer primary key, data blob)")
    spent = []
    for number, new in enumerate(states, start=1):
        began = processor()
        for client in range(clients):
            visit(link, client, number, new, old)
        spent.append(1000 * (processor() - began) / clients)
    link.close()
    return spent


def visit(
    link: sqlite3.Connection, client: int, number: int, new: Payload, old: Payload
) -> None:
    """Read a client's state, and write its next one in a transaction."""
    text = "select round, manifest from version where client=? order by round desc"
    versions = [(at, json.loads(m)) for at, m in link.execute(text, (client,))]
    last: dict[str, Any] = versions[0][1] if versions else {}
    for group in CHANGING if last else ():
        (data,) = link.execute(
            "select data from content where id=?", (last[group]["row"],)
        ).fetchone()
        assert zlib.crc32(data) == last[group]["checksum"]
        start = 0
        for _, dtype, shape, form, size in last[group]["tensors"]:
            piece = data[start : start + size]
            decode(Encoded(dtype, tuple(shape), form, piece))
            start += size
    link.execute("begin immediate")
    entries = {group: last[group] for group in old if last}
    for group, arrays in ({**new} if last else {**old, **new}).items():
        entries[group] = written(link, arrays)
    link.execute(
        "insert into version values(?, ?, ?)", (client, number, json.dumps(entries))
    )
    live = {entry["row"] for found in (entries, last) for entry in found.values()}
    for at, found in versions[1:]:
        dead = {entry["row"] for entry in found.values()} - live
        link.executemany("delete from content where id=?", [(row,) for row in dead])
        link.execute("delete from version where client=? and round=?", (client, at))
    link.execute("commit")


def written(link: sqlite3.Connection, arrays: Arrays) -> dict[str, Any]:
    """Write one group; return its entry in the manifest."""
    encoded = {name: encode(tensor) for name, tensor in arrays.items()}
    data = b"".join(e.data for e in encoded.values())
    row = link.execute("insert into content(data) values(?)", (data,)).lastrowid
    tensors = [
        (name, e.dtype, list(e.shape), e.form, len(e.data))
        for name, e in encoded.items()
    ]
    return {"row": row, "checksum": zlib.crc32(data), "tensors": tensors}


def processor() -> float:
    """Return the processor time of this process in seconds, the system's too."""
    times = os.times()
    return times.user + times.system


if __name__ == "__main__":
    main()
