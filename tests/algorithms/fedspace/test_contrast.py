"""The representation loss, beside the same pair by pair in NumPy."""

import pytest
import torch
from space_cases import contrast_by_hand

from clients.fedspace.contrast import representation_loss


def loss(hidden, labels, anchored, temperature=0.7):
    return representation_loss(
        hidden, torch.tensor(labels), torch.tensor(anchored), temperature
    )


@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("anchored", [(0,), (0, 1), (1, 3), (0, 1, 2, 3)])
def test_the_loss_is_that_of_all_pairs(anchored, temperature):
    torch.manual_seed(0)
    labels, hidden = [0, 1, 0, 2, 1, 0, 3], torch.randn(7, 4)
    found = loss(hidden, labels, anchored, temperature)
    expected = contrast_by_hand(hidden.numpy(), labels, anchored, temperature)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_who_has_nobody_of_its_class_is_no_anchor():
    hidden = torch.randn(3, 4, requires_grad=True)
    found = loss(hidden, [0, 1, 2], [0, 1])
    assert found == 0
    found.backward()
    assert not hidden.grad.any()


def test_the_length_of_features_is_nothing():
    torch.manual_seed(0)
    hidden, labels = torch.randn(4, 3), [0, 0, 1, 1]
    longer = loss(hidden * torch.tensor([[1.0], [2.0], [5.0], [9.0]]), labels, [0, 1])
    assert float(longer) == pytest.approx(float(loss(hidden, labels, [0, 1])), rel=1e-5)
