"""Multiply-adds against what follows from the shapes."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError
from fcl_flower.training.loop import multiply_adds


def test_a_product_counts_forward_and_twice_backward():
    first, second = torch.nn.Linear(8, 5), torch.nn.Linear(5, 3)
    x = torch.ones(7, 8)
    forward = 7 * (8 * 5 + 5 * 3)

    found, count = multiply_adds(lambda: second(first(x)))
    assert count == forward
    assert torch.equal(found, second(first(x)))
    # To the weights of both layers, and to the inputs of the second.
    _, count = multiply_adds(lambda: second(first(x)).sum().backward())
    assert count == 2 * forward + 7 * 5 * 3


def test_a_convolution_counts_each_place_of_its_kernel():
    layer = torch.nn.Conv2d(2, 3, 5, padding=2)
    _, count = multiply_adds(lambda: layer(torch.ones(4, 2, 6, 6)))
    assert count == 4 * 6 * 6 * 3 * 2 * 5 * 5


@pytest.mark.parametrize("learns", [False, True])
def test_attention_of_a_cpu_counts_its_two_products(learns):
    query = torch.ones(2, 3, 4, 8, requires_grad=learns)
    forward = 2 * (2 * 3 * 4 * 4 * 8)

    def attend():
        found = scaled_dot_product_attention(query, query, query)
        return found.sum().backward() if learns else found

    _, count = multiply_adds(attend)
    # Backward there are five, as one is computed again.
    assert count == (forward * (1 + 5 / 2) if learns else forward)


def simulated(folder, strategy="fedavg", **settings):
    size = {"dataset": "digits", "clients": 2, "tasks": 1, "rounds": 2, "seed": 1}
    return fcl.simulate(
        strategy,
        **{**size, "training": {"count_multiply_adds": True}, **settings},
        max_train_per_class=20,
        max_test_per_class=4,
        progress=False,
        output=folder,
    )


@pytest.mark.run
def test_the_summary_has_the_training_of_all_clients_and_rounds(tmp_path):
    three = {"epochs": 3, "count_multiply_adds": True}
    result = simulated(tmp_path / "run", training=three)

    scenario = json.loads((result.folder / "scenario.json").read_text())
    train, valid = (
        sum(task[split] for (task,) in scenario["clients"])
        for split in ("train", "valid")
    )
    # Places times kernels of two convolutions, then two layers.
    first, others = 64 * 16 * 9, 64 * 32 * 16 * 9 + 32 * 16 * 64
    others += 64 * scenario["classes_per_task"]
    step = 2 * first + 3 * others  # no gradient to the pixels
    # Each epoch ends with a look at the validation samples.
    expected = 2 * 3 * (train * step + valid * (first + others))
    assert result.summary["multiply_adds"] == expected


@pytest.mark.run
def test_counting_changes_no_number(tmp_path):
    counted = simulated(tmp_path / "a", "fedweit", clients=1, rounds=1)
    silent = simulated(tmp_path / "b", "fedweit", clients=1, rounds=1, training={})

    np.testing.assert_array_equal(counted.accuracy, silent.accuracy)
    assert counted.summary["multiply_adds"] > 0
    assert "multiply_adds" not in silent.summary
    assert silent.bytes_up < counted.bytes_up


def test_a_client_that_hides_its_training_cannot_tell_what_it_took(tmp_path):
    private = {"unit": "client", "noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match=r"training\.count_multiply_adds: got true"):
        simulated(tmp_path / "a", privacy=private)
