"""PODNet's classifier of several proxies a class, and its loss, against NumPy."""

import numpy as np
import pytest
import torch

from clients.podnet import LocalSimilarity, margin_loss
from fcl_flower.models.heads import CLOSED, MultiHeadModel


def head(scale=3.0):
    torch.manual_seed(0)
    return LocalSimilarity(features=4, classes=3, proxies=2, scale=scale)


def by_hand(x, proxies, scale):
    """Return eta * sum_k softmax(a)_k a_k, one sample and one class after the other."""
    found = np.zeros((len(x), len(proxies)))
    for place, class_ in np.ndindex(found.shape):
        h = x[place] / np.sqrt((x[place] ** 2).sum())
        cosines = [h @ theta / np.sqrt((theta**2).sum()) for theta in proxies[class_]]
        weights = np.exp(cosines)
        found[place, class_] = scale * (weights @ cosines) / weights.sum()
    return found


def test_a_logit_is_the_weighted_mean_of_the_cosines_of_its_classs_proxies():
    layer, x = head(), torch.randn(5, 4)
    with torch.no_grad():
        found = layer(x)
    expected = by_hand(x.double().numpy(), layer.proxies.detach().double().numpy(), 3.0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_proxies_start_with_length_1_in_the_mean_square_and_differ():
    torch.manual_seed(0)
    layer = LocalSimilarity(features=64, classes=50, proxies=10, scale=1.0)
    assert layer.proxies.shape == (50, 10, 64)
    assert float(layer.proxies.square().sum(2).mean().detach()) == pytest.approx(
        1, abs=0.02
    )
    assert float(layer.proxies[0].std(0).min().detach()) > 0.01
    assert layer.scale.tolist() == [1.0]


def test_a_class_that_the_head_does_not_have_yet_is_closed():
    model = MultiHeadModel(
        torch.nn.Flatten(),
        features=4,
        input_shape=(4,),
        tasks=1,
        classes=3,
        single_head=True,
    )
    x, layer = torch.randn(5, 4), head()
    model.heads = torch.nn.ModuleList([layer])
    before = model(x, 0)
    model.restrict_head([0, 2])
    assert (model(x, 0)[:, 1] == CLOSED).all()
    assert torch.equal(model(x, 0)[:, [0, 2]], before[:, [0, 2]])


def test_proxies_that_rest_count_and_are_not_trained():
    layer, x = head(), torch.randn(5, 4)
    with torch.no_grad():
        usual = layer(x)
    layer.resting = torch.tensor([True, False, True])
    found = layer(x)
    torch.testing.assert_close(found.detach(), usual)
    found.square().sum().backward()
    assert [bool(rows.any()) for rows in layer.proxies.grad] == [False, True, False]
    assert layer.scale.grad.any()


LOGITS = np.array([[2.0, 0.5, -1.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
LABELS = [0, 2, 1]


def nca(logits, labels, margin):
    """Return equation 9, sample by sample."""
    found = []
    for z, y in zip(logits, labels, strict=True):
        others = sum(np.exp(value) for c, value in enumerate(z) if c != y)
        found.append(max(0.0, -np.log(np.exp(z[y] - margin) / others)))
    return found


def test_the_loss_compares_the_right_class_less_the_margin_with_the_others():
    terms = nca(LOGITS, LABELS, 0.6)
    assert terms[0] == 0 < min(terms[1:])  # 2 - 0.6 is more than log(e^0.5 + e^-1)
    found = margin_loss(torch.tensor(LOGITS), torch.tensor(LABELS), 0.6)
    assert float(found) == pytest.approx(np.mean(terms))


def test_each_sample_is_cut_off_by_itself_and_has_no_gradient_then():
    logits = torch.tensor(LOGITS, requires_grad=True)
    margin_loss(logits, torch.tensor(LABELS), 0.6).backward()
    assert not logits.grad[0].any()
    # d/dz of log sum_{c != y} e^z_c - z_y, over three samples.
    share = np.exp([0.0, 3.0]) / np.exp([0.0, 3.0]).sum()
    np.testing.assert_allclose(logits.grad[1], [share[0] / 3, share[1] / 3, -1 / 3])


def test_closed_classes_are_not_compared_with():
    open_, closed = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0, CLOSED]])
    label = torch.tensor([0])
    assert margin_loss(closed, label, 0.5) == margin_loss(open_, label, 0.5)


def test_a_class_alone_has_nothing_to_learn_and_no_undefined_gradient():
    logits = torch.tensor([[1.0]], requires_grad=True)
    loss = margin_loss(logits, torch.tensor([0]), 0.6)
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad.tolist() == [[0.0]]
