"""A few bytes that claim much memory: refusing them takes none of it."""

import numpy as np
import pytest
from memory import peak_of
from watched import one_entry_a_page

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Content
from strategies.fedweit import FedWeit, FedWeitParams
from strategies.fedweit.maths import similarity


def test_what_is_not_checked_by_shape_costs_what_it_claims():
    """The oracle: without a check the memory would be taken, and would be seen."""
    claim = one_entry_a_page((2**26 // 4,), "float32")
    content = Content({"base": {"w": claim}})

    assert peak_of(lambda: messages.decode_payload(content)) > 64


@pytest.mark.parametrize("kind", ["mean-cosine", "thresholded"])
def test_a_summary_of_any_number_of_vectors_takes_no_memory(kind):
    strategy = FedWeit(FedWeitParams(knowledge="sit:1", overlap=kind), ServerContext(0))
    state = strategy.init({"body.w.weight": np.ones((3, 50, 4), np.float32)})
    name = "centres" if kind == "thresholded" else "mean"
    rows = 2**28 // (50 * 4)
    for shape in ((rows, 50), (rows * 50,)):
        claim = one_entry_a_page(shape, "float32")
        content = Content({"summary": {name: claim}})

        def refused(content=content):
            answer = messages.received_payload(content)
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
