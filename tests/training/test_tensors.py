"""What is copied into a network, whatever the memory that it comes from."""

import numpy as np
import pytest
import torch
from torch import nn

from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import SparseArray
from fcl_flower.models.build import create_model
from fcl_flower.training.tensors import load, snapshot

VALUES = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)


def read_only():
    return np.frombuffer(VALUES.tobytes(), np.float32).reshape(2, 3)


FORMS = {
    "read-only": read_only,
    "of another precision": lambda: VALUES.astype(np.float64),
    "whole numbers": lambda: VALUES.astype(np.int64),
    "by columns": lambda: np.asfortranarray(VALUES),
    "backwards": lambda: VALUES[:, ::-1].copy()[:, ::-1],
    "some entries": lambda: SparseArray.of_mask(VALUES, VALUES > 0),
}


@pytest.mark.parametrize("form", FORMS)
def test_values_are_copied_in_place_and_stay_the_senders(form):
    model = nn.Linear(3, 2)
    weight, bias = model.weight, model.bias.detach().clone()
    sent = FORMS[form]()

    load(model, {"weight": sent})
    with torch.no_grad():
        model.weight.add_(10)

    assert model.weight is weight
    assert model.weight.tolist() == (VALUES + 10).tolist()
    assert model.weight.requires_grad
    assert torch.equal(model.bias, bias)
    dense = sent.to_dense() if isinstance(sent, SparseArray) else sent
    assert dense.tolist() == VALUES.tolist()


@pytest.mark.parametrize("number", [7, 7.0])
def test_a_counter_of_a_network_is_loaded(number):
    model = nn.BatchNorm1d(2)

    load(model, {"num_batches_tracked": np.array(number)})

    assert model.num_batches_tracked.item() == 7


@pytest.mark.parametrize(
    "arrays", [{"weight": np.ones((1, 3))}, {"w": VALUES}, {"bias": np.ones(1)}]
)
def test_what_does_not_fit_is_refused_though_it_could_be_spread(arrays):
    model = nn.Linear(3, 2)
    with pytest.raises(ContractError, match="does not fit Linear"):
        load(model, arrays)


def test_a_snapshot_restores_a_model_and_does_not_follow_it():
    model = create_model("small", tasks=2, classes=2, single_head=False, seed=0)
    kept = snapshot(model, model.shared_names())
    assert kept.keys() == set(model.shared_names())
    before = {name: values.copy() for name, values in kept.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    for name in kept:
        np.testing.assert_array_equal(kept[name], before[name])
    load(model, kept)
    again = snapshot(model, model.shared_names())
    for name in kept:
        np.testing.assert_array_equal(again[name], before[name])
