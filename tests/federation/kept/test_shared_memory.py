"""A message within a process holds the memory that nobody changes, and no other."""

import numpy as np
import pytest
import torch

from fcl_flower.core.types import SparseArray
from fcl_flower.federation.messages import (
    MessageEncoder,
    can_alias,
    decode_payload,
    zero_copy,
)


@pytest.fixture
def here():
    with zero_copy():
        yield


def own():
    return np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def sent(tensor, wire=None):
    encoder = MessageEncoder() if wire is None else MessageEncoder(wire)
    return decode_payload(encoder.payload({"base": {"w": tensor}}))["base"]["w"]


WHOLE = {
    "its own": own,
    "its own in another shape": lambda: own().reshape(4, 1),
    "bytes that came": lambda: np.frombuffer(own().tobytes(), np.float32),
    "memory that came": lambda: np.frombuffer(
        own().data.cast("B").toreadonly(), np.float32
    ),
}
OTHERS = {
    "a network's": lambda: torch.nn.Linear(2, 2).weight.detach().numpy(),
    "a row of a network's": lambda: torch.nn.Linear(2, 2).weight.detach().numpy()[:1],
    "a part of an array": lambda: own()[:1],
    "a part of what came": lambda: np.frombuffer(own().tobytes(), np.float32, 2),
    "a buffer that may be written": lambda: np.frombuffer(
        memoryview(bytearray(own().tobytes())), np.float32
    ),
    "some entries": lambda: SparseArray.of_mask(own(), own() > 1),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_what_is_whole_and_changed_by_nobody_is_shared(here, kind):
    tensor = WHOLE[kind]()

    assert can_alias(tensor)
    assert np.shares_memory(sent(tensor), tensor)
    assert not sent(tensor).flags.writeable
    np.testing.assert_array_equal(sent(tensor), tensor)


@pytest.mark.parametrize("kind", WHOLE)
def test_outside_of_a_run_in_one_process_all_is_copied(kind):
    tensor = WHOLE[kind]()
    with zero_copy():
        pass

    assert not can_alias(tensor)
    assert not np.shares_memory(sent(tensor), tensor)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_others_may_change_is_copied(here, kind):
    assert not can_alias(OTHERS[kind]())


def test_what_was_sent_of_a_network_does_not_learn_on(here):
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    weights = layer.weight.detach().numpy()

    found = sent(weights)
    layer.weight.data.fill_(9)

    assert weights.tolist() == [[9, 9], [9, 9]]
    assert found.tolist() == before.tolist()
