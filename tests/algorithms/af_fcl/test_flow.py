"""The flow: its density by autograd's Jacobian, all of it in NumPy, what it learns."""

import numpy as np
import pytest
import torch
from flow_cases import (
    CLASSES,
    FEATURES,
    HIDDEN,
    LAYERS,
    NumpyFlow,
    flow_params,
    flow_tensors,
    kept_by,
    made,
)

from clients.af_fcl.flow import Flow
from fcl_flower.training.optimizers import OptimizerChoice, create_optimizer
from fcl_flower.training.tensors import load
from strategies.af_fcl.server import initial_flow


def samples(count=7, features=FEATURES, seed=3):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, features), scale=2).astype(np.float32)
    return x, draw.integers(0, CLASSES, count)


@pytest.mark.parametrize("features", [FEATURES, 5, 2])
def test_the_density_is_that_of_the_noise_times_the_jacobians_determinant(features):
    flow = made(flow_tensors(features=features), features)
    x, labels = (torch.tensor(values) for values in samples(4, features))
    latents, density = flow(x, labels)
    for row in range(len(x)):

        def mapped(one, row=row):
            return flow(one[None], labels[row : row + 1])[0][0]

        jacobian = torch.autograd.functional.jacobian(mapped, x[row])
        noise = torch.distributions.Normal(0.0, 1.0).log_prob(latents[row]).sum()
        expected = noise + torch.linalg.slogdet(jacobian).logabsdet
        assert density[row].item() == pytest.approx(expected.item(), abs=1e-4)
        assert torch.linalg.slogdet(jacobian).logabsdet.abs() > 0.1


@pytest.mark.parametrize("features", [FEATURES, 5])
def test_latents_densities_and_features_are_those_of_the_equations(features):
    tensors = flow_tensors(features=features)
    flow, hand = made(tensors, features, seed=9), NumpyFlow(tensors, features, seed=9)
    x, labels = samples(features=features)
    latents, density = flow(torch.tensor(x), torch.tensor(labels))
    expected, expected_density = hand.forward(x, labels)
    np.testing.assert_allclose(latents.detach(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(density.detach(), expected_density, rtol=1e-4)
    drawn = flow.inverse(torch.tensor(x), torch.tensor(labels))
    np.testing.assert_allclose(drawn, hand.inverse(x, labels), rtol=1e-3, atol=1e-4)
    assert not drawn.requires_grad


def test_what_is_mapped_to_noise_comes_back():
    flow = made(flow_tensors())
    x, labels = (torch.tensor(values) for values in samples())
    latents, _ = flow(x, labels)
    np.testing.assert_allclose(flow.inverse(latents, labels), x, rtol=1e-3, atol=1e-4)
    other, _ = flow(x, (labels + 1) % CLASSES)
    assert (other - latents).abs().max() > 0.1


def test_each_feature_is_changed_and_all_clients_shuffle_alike():
    flow = Flow(8, CLASSES, LAYERS, HIDDEN, seed=1)
    assert flow.orders[:2].tolist() == [list(range(8))[::-1]] * 2
    for order in flow.orders:
        assert sorted(order.tolist()) == list(range(8))
    third, fourth = flow.orders[2:].tolist()
    assert third != fourth
    assert torch.equal(Flow(8, CLASSES, LAYERS, HIDDEN, seed=1).orders, flow.orders)
    other = Flow(8, CLASSES, LAYERS, HIDDEN, seed=2).orders
    assert not torch.equal(other[2:], flow.orders[2:])
    assert "orders" not in flow.state_dict()


@pytest.mark.parametrize("features", [FEATURES, 5])
def test_the_server_begins_with_what_a_flow_has(features):
    params = flow_params(flow_layers=5)
    start = initial_flow(features, CLASSES, params, seed=4)
    flow = Flow(features, CLASSES, 5, HIDDEN, seed=4)
    shapes = {name: tuple(p.shape) for name, p in flow.named_parameters()}
    assert {name: values.shape for name, values in start.items()} == shapes
    assert all(values.dtype == np.float32 for values in start.values())
    load(flow, start)
    for name, values in start.items():
        inputs = start[name.replace(".bias", ".weight")].shape[1]
        bound = 0.001 if ".second." in name else inputs**-0.5
        assert abs(values).max() <= bound
        if values.size > 20:
            assert values.min() < -0.6 * bound
            assert values.max() > 0.6 * bound
    again = initial_flow(features, CLASSES, params, seed=4)
    other = initial_flow(features, CLASSES, params, seed=5)
    assert all(np.array_equal(again[name], start[name]) for name in start)
    assert not any(np.array_equal(other[name], start[name]) for name in start)


def test_it_learns_to_draw_what_each_class_looks_like():
    flow = made(initial_flow(4, 2, flow_params(), 0), features=4, classes=2)
    before = kept_by(flow)
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    centers = torch.tensor([[2.0, -1.0, 0.0, 3.0], [-2.0, 1.0, 1.0, 0.0]])
    x = centers[labels] + torch.randn(200, 4, generator=draw)
    leaves = dict(flow.named_parameters())
    optimizer = create_optimizer(OptimizerChoice(), leaves, 0.03)
    for _ in range(70):
        optimizer.zero_grad()
        loss = -flow(x, labels)[1].mean()
        loss.backward()
        optimizer.step()
    drawn = flow.inverse(torch.randn(200, 4, generator=draw), labels)
    found = torch.stack([drawn[labels == label].mean(0) for label in (0, 1)])
    assert (found - centers).abs().mean() < 0.4
    after = kept_by(flow)
    assert not any(np.array_equal(after[name], before[name]) for name in before)
