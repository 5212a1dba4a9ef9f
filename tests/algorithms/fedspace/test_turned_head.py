"""The head of FedSpace: a logit for each turn of each class."""

import numpy as np
import pytest
import torch

from clients.fedspace.turned_head import TurnedHead, turned
from fcl_flower.models.multi_head import CLOSED


def test_images_are_followed_by_their_quarter_turns():
    image = torch.arange(9.0).reshape(1, 1, 3, 3)
    found = turned(torch.cat([image, image + 100]), 4)
    assert found.shape == (8, 1, 3, 3)
    for number in (0, 1):
        for quarters in range(4):
            upright = image[0, 0].numpy() + 100 * number
            expected = np.rot90(upright, quarters)
            np.testing.assert_array_equal(found[4 * number + quarters, 0], expected)


def test_labels_and_places_are_those_of_the_turned_images():
    head = TurnedHead(2, 3, 4, 1.0)
    labels = head.turned_labels(torch.tensor([2, 0]))
    assert labels.tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    places = head.places(torch.tensor([False, True, False]))
    assert places.tolist() == [False] * 4 + [True] * 4 + [False] * 4


@pytest.mark.parametrize("turns", [1, 4])
def test_answers_are_those_of_upright_images(turns):
    torch.manual_seed(0)
    head, x = TurnedHead(2, 3, turns, 0.5), torch.randn(5, 2)
    weight, bias = (p.detach().numpy() for p in (head.weight, head.bias))
    assert weight.shape == (3 * turns, 2)
    every = 2 * (x.numpy() @ weight.T + bias)
    np.testing.assert_allclose(head.of_turns(x).detach(), every, rtol=1e-5)
    np.testing.assert_allclose(head(x).detach(), every[:, ::turns], rtol=1e-5)


def test_a_closed_class_is_closed_in_all_turns():
    head, x = TurnedHead(2, 3, 4, 0.5), torch.randn(5, 2)
    head.closed = torch.tensor([False, True, False])
    assert (head(x) == CLOSED).all(0).tolist() == [False, True, False]
    closed = (head.of_turns(x) == CLOSED).all(0).tolist()
    assert closed == [False] * 4 + [True] * 4 + [False] * 4
