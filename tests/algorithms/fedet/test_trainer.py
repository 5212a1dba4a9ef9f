"""Routers by hand: linear scores in a plane, and small networks on obvious groups."""

import math

import pytest
import torch
from encoders import inputs, model
from fakes import exact
from torch import nn

from fcl_flower.core.errors import ContractError
from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds import messages
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import arrays_of, snapshot
from strategies.fedet.trainer import FedEtTrainer, Router, RouterNetwork, TextRcnn

DEPTH, GROUPS = 6, 3
TRAINING = Training(epochs=1, batch_size=8, learning_rate=0.05)


@pytest.fixture(autouse=True)
def seed(one_thread):
    torch.manual_seed(0)


class Plane(nn.Module):
    """Points of the plane, which are their own features."""

    def embed(self, x):
        return x


def plane():
    return MultiHeadModel(
        Plane(), features=2, input_shape=(2,), tasks=1, classes=2, single_head=True
    )


def images():
    return create_model("lenet", tasks=1, classes=2, single_head=True, seed=0)


def rcnn():
    torch.manual_seed(4)
    return TextRcnn(DEPTH, GROUPS).eval()


def after_travel(arrays):
    return messages.decode_payload(
        messages.MessageEncoder().payload({"router": arrays})
    )["router"]


# ---------------------------------------------------------------- text-RCNN


def test_padding_has_no_influence_whatever_stands_there():
    network, lengths = rcnn(), (2, 5, 1, 7)
    texts = [torch.randn(length, DEPTH) for length in lengths]
    words, mask = torch.full((4, 9, DEPTH), 50.0), torch.zeros(4, 9)
    for row, text in enumerate(texts):
        words[row, : len(text)] = text
        mask[row, : len(text)] = 1

    alone = [network(text[None], torch.ones(1, len(text)))[0] for text in texts]

    torch.testing.assert_close(network(words, mask), torch.stack(alone))


def test_each_word_is_read_with_both_sides_and_the_largest_counts():
    network, words = rcnn(), torch.randn(4, DEPTH)
    latent = []
    # The two directions one step after the other, by torch's cell of the same weights.
    sides = []
    for suffix, order in (("", range(4)), ("_reverse", range(3, -1, -1))):
        cell = nn.GRUCell(DEPTH, 64)
        for name, parameter in cell.named_parameters():
            parameter.data = getattr(network.context, f"{name}_l0{suffix}").data
        state, side = torch.zeros(1, 64), {}
        for place in order:
            state = cell(words[place][None], state)
            side[place] = state[0]
        sides.append(side)
    for place in range(4):
        whole = torch.cat([sides[0][place], sides[1][place], words[place]])
        latent.append(torch.tanh(network.middle(whole)).tolist())
    largest = [max(values) for values in zip(*latent, strict=True)]
    expected = network.out(torch.tensor(largest))

    found = network(words[None], torch.ones(1, 4))[0]

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- linear scores


def linear(weights, offsets, groups):
    arrays = {"weights": weights, "offsets": offsets, "groups": groups}
    return {name: torch.as_tensor(given).numpy() for name, given in arrays.items()}


def test_a_group_scores_what_its_best_class_does():
    arrays = linear(
        [[2.0, 0.0], [0.0, 5.0], [-1.0, 0.0]], [0.5, 0.0, 1.0], groups=[0, 2, 2]
    )
    router = Router(plane(), after_travel(arrays), GROUPS)

    found = router.scores(torch.tensor([[3.0, 0.0], [0.0, -0.5], [-4.0, 3.0]]))

    # Of points brought to length 1; no class is in group 1.
    none = -math.inf
    expected = [[2.5, none, 0.0], [0.5, none, 1.0], [-1.1, none, 3.0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_many_samples_score_what_each_scores_alone():
    arrays = linear(torch.randn(4, 2), torch.randn(4), [1, 0, 2, 0])
    router, x = Router(plane(), arrays, GROUPS), torch.randn(8, 2)

    alone = torch.cat([router.scores(row[None]) for row in x])

    torch.testing.assert_close(router.scores(x), alone)
    assert router.scores(x[:0]).shape == (0, GROUPS)


def test_learned_enhancers_send_no_sample_elsewhere(backbone):
    network, x = model(backbone("bert")), inputs("bert")
    means = nn.functional.normalize(network.embed(x))
    arrays = linear(means, torch.zeros(2), [0, 1])
    router = Router(network, arrays, 2)
    before = router.scores(x)
    for parameter in network.body.enhancers.parameters():
        parameter.data.normal_()

    assert torch.equal(router.scores(x), before)
    assert before.argmax(1).tolist() == [0, 1]


def test_samples_are_embedded_once_for_all_routers(backbone, monkeypatch):
    # Inputs of no other test, whose features the process still holds.
    network, x = model(backbone("bert")), inputs("bert").repeat(3, 1)
    embed, embedded = network.body.embed, []

    def counted(x):
        embedded.append(len(x))
        return embed(x)

    monkeypatch.setattr(network.body, "embed", counted)
    for weights in torch.randn(3, 2, network.features):
        arrays = linear(weights, torch.zeros(2), [0, 1])
        found = Router(network, arrays, 2).scores(x)
        expected = nn.functional.normalize(embed(x)) @ weights.T
        torch.testing.assert_close(found, expected)

    # A cache looks at one sample, to tell bodies apart.
    assert sorted(embedded) == [1, 1, 1, len(x)]


def test_without_a_router_all_groups_are_equal():
    found = Router(plane(), {}, GROUPS).scores(torch.randn(4, 2))

    assert (found == found[0, 0]).all()
    assert (found.shape, found.dtype) == ((4, GROUPS), torch.float32)


# ---------------------------------------------------------------- networks


def train(network, x, y, steps):
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()


def texts(count, seed):
    """Return texts of low numbers and texts of high ones, the shorter ones padded."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(5, 15, (count, 6), generator=generator)
    y = torch.arange(count) % 2
    x = x + 20 * y[:, None]
    x[::3, 4:] = 0
    return x, y


def pictures(count, seed):
    """Return noise that is bright at the top, or at the bottom."""
    x = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    y = torch.arange(count) % 2
    x[y == 0, :, :16] += 2
    x[y == 1, :, 16:] += 2
    return x, y


@pytest.mark.parametrize("kind", ["texts", "images"])
def test_a_trained_network_tells_groups_apart_where_it_has_arrived(
    backbone, monkeypatch, kind
):
    monkeypatch.setattr("strategies.fedet.trainer._CHUNK", 3)
    network_of = model(backbone("bert")) if kind == "texts" else images()
    samples = texts if kind == "texts" else pictures
    network = RouterNetwork(network_of, 2, seed=1)
    train(network, *samples(24, seed=0), steps=30)
    x, y = samples(20, seed=1)
    network.eval()

    arrays = after_travel(arrays_of(network.state_dict()))
    found = Router(network_of, arrays, 2).scores(x)

    assert found.argmax(1).tolist() == y.tolist()
    torch.testing.assert_close(found, network(x))
    assert not found.requires_grad


def test_the_encoder_stays_at_home_and_is_not_trained(backbone):
    whole = model(backbone("bert"), "transformer")
    network = RouterNetwork(whole, 2, seed=1)

    network(texts(4, seed=0)[0]).sum().backward()

    assert {name.partition(".")[0] for name in network.state_dict()} == {"network"}
    assert all(p.grad is None for p in whole.parameters())


def test_a_network_depends_on_its_seed_alone_and_disturbs_nobody():
    torch.manual_seed(9)
    expected = torch.randn(3)
    torch.manual_seed(9)
    first, again, other = (RouterNetwork(images(), 2, seed) for seed in (1, 1, 2))

    assert torch.equal(torch.randn(3), expected)
    weights = [network.network[1].weight for network in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_other_inputs_have_no_network():
    digits = create_model("small", tasks=1, classes=2, single_head=True, seed=0)

    with pytest.raises(ContractError, match=r"no router for .* \(1, 8, 8\)"):
        RouterNetwork(digits, 2, seed=0)


def test_a_trained_router_tells_the_groups_apart(backbone):
    network = model(backbone("bert"))
    y = torch.arange(24) % 2
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(5, 15, (24, 6), generator=draw) + 20 * y[:, None]
    made = FedEtTrainer(network, PublicExamples(x, y, y), TRAINING, seed=0)
    before = snapshot(network, network.state_dict())

    arrays = made.train_router(y.numpy(), epochs=12)

    found = Router(network, arrays, 2).scores(x)
    assert found.argmax(1).tolist() == y.tolist()
    assert exact({"": snapshot(network, before)}) == exact({"": before})
    assert exact({"": made.train_router(y.numpy(), epochs=12)}) == exact({"": arrays})
