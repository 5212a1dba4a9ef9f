"""A few bytes that claim much memory: refusing them takes none of it."""

import math

import numpy as np
import pytest
from every_method import suited
from fakes import run_in_process, tiny
from flwr.app import Array, ArrayRecord, RecordDict
from memory import peak_of
from mutants import with_array

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.core.errors import WireError
from fcl_flower.federation import messages
from fcl_flower.federation.codec import compressed
from fcl_flower.federation.replies import ReplyReader
from strategies.fedweit import FedWeitParams
from strategies.fedweit.adapter_selection import similarity
from strategies.fedweit.server import FedWeit

PAGE = 4096
BOMB = compressed(bytes(2**28), 1)


def one_index_a_page(shape, dtype):
    """Return 2 MB or less that fill every page of a tensor with zeros left out."""
    size = np.dtype(dtype).itemsize
    count = math.prod(shape) * size // PAGE
    gaps = np.full(count, PAGE // size - 1, "<u2")
    data = np.ones(count, dtype).tobytes() + gaps.tobytes() + b"\x02"
    return Array(dtype, shape, "fcl.dense.index", data)


def claims(array):
    """Return what a tensor may be replaced by, each of 256 MB."""
    size = np.dtype(array.dtype).itemsize
    entries = 2**28 // size
    inner = tuple(array.shape[1:])
    if 0 < math.prod(inner) < entries:
        yield one_index_a_page((entries // math.prod(inner), *inner), array.dtype)
    yield one_index_a_page((entries,), array.dtype)
    form = "fcl.sparse.index" if "sparse" in array.stype else "fcl.dense"
    yield Array(array.dtype, array.shape, f"{form}+zstd", BOMB)


def settings(name, folder):
    if name == "concept-matching":
        return {"classes_per_task": 0}
    return suited(name, folder)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_no_algorithm_makes_a_tensor_that_does_not_fit(tmp_path, monkeypatch, name):
    read, peaks = ReplyReader._update, {}

    def read_after_claims(reader, client, records, state, base_norm):
        honest = records.array_records
        for group, record in honest.items() if not peaks else ():
            for tensor, array in record.items():
                for claim in claims(array):
                    hostile = with_array(records, group, tensor, claim)

                    def refused(hostile=hostile):
                        with pytest.raises(WireError):
                            read(reader, client, hostile, state, base_norm)

                    peaks[group, tensor, claim.shape, claim.stype] = peak_of(refused)
        return read(reader, client, records, state, base_norm)

    monkeypatch.setattr(ReplyReader, "_update", read_after_claims)
    config = tiny(tmp_path / "run", strategy=name, **settings(name, tmp_path))
    run_in_process(config)

    sends_nothing = {"local", "stl", "apd", "fedweit-local"}
    assert peaks or name in sends_nothing
    assert max(peaks.values(), default=0) < 8, peaks


def test_what_is_not_checked_by_shape_costs_what_it_claims():
    """The oracle: without a check the memory would be taken, and would be seen."""
    claim = one_index_a_page((2**26 // 4,), "float32")
    record = RecordDict({"base": ArrayRecord({"w": claim})})

    assert peak_of(lambda: messages.decode_payload(record)) > 64


@pytest.mark.parametrize("kind", ["mean-cosine", "thresholded"])
def test_a_summary_of_any_number_of_vectors_takes_no_memory(kind):
    strategy = FedWeit(FedWeitParams(knowledge="sit:1", overlap=kind), 0)
    state = strategy.init({"body.w.weight": np.ones((3, 50, 4), np.float32)})
    name = "centres" if kind == "thresholded" else "mean"
    rows = 2**28 // (50 * 4)
    for shape in ((rows, 50), (rows * 50,)):
        claim = one_index_a_page(shape, "float32")
        record = RecordDict({"summary": ArrayRecord({name: claim})})

        def refused(record=record):
            answer = messages.received_payload(record)
            with pytest.raises(WireError, match=f"summary/{name}"):
                strategy.check_query_reply(state, answer)

        assert peak_of(refused) < 8


def test_comparing_many_centres_takes_little_memory_and_gives_the_same():
    rng = np.random.default_rng(0)
    one, other = (rng.normal(size=(count, 5)).astype("f4") for count in (9001, 4000))
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    found = []

    peak = peak_of(lambda: found.append(similarity("thresholded", one, other, 0.7)))

    total = 0.0
    for row in one.astype(np.float64):
        cosines = row @ other.astype(np.float64).T
        total += cosines[cosines > 0.7].sum()
    assert found[0] == pytest.approx(total / (9001 * 4000), rel=1e-12)
    assert peak < 40
