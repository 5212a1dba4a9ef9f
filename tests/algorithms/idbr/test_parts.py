"""IDBR's parts: swapped halves, exemplars by k-means, and the two spaces."""

import numpy as np
import pytest
import torch
from encoders import inputs, plain, saved

from clients.idbr import draw_cuts, nearest_to_centres, swap_halves
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.encoder import DisentangledTransformer
from fcl_flower.models.registry import DisentangledParams

# ---------------------------------------------------------------- halves

TEXTS = torch.tensor(
    [
        [1, 5, 6, 7, 8, 2, 0],
        [1, 5, 6, 2, 0, 0, 0],
        [1, 5, 2, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0, 0],
    ]
)


def test_halves_are_swapped_between_the_tokenizers_own_tokens():
    found = swap_halves(TEXTS, torch.tensor([1, 1, 1, 1]))
    assert found.tolist() == [
        [1, 6, 7, 8, 5, 2, 0],
        [1, 6, 5, 2, 0, 0, 0],
        [1, 5, 2, 0, 0, 0, 0],
        [1, 2, 0, 0, 0, 0, 0],
    ]
    assert swap_halves(TEXTS[:1], torch.tensor([3])).tolist() == [[1, 8, 5, 6, 7, 2, 0]]


def test_a_text_is_cut_anywhere_between_its_words():
    torch.manual_seed(0)
    cuts = torch.stack([draw_cuts(TEXTS) for _ in range(200)])
    assert set(cuts[:, 0].tolist()) == {1, 2, 3}
    assert set(cuts[:, 1:].ravel().tolist()) == {1}
    assert abs((cuts[:, 0] == 2).float().mean() - 1 / 3) < 0.1


# ---------------------------------------------------------------- exemplars


def test_the_sample_nearest_to_each_clusters_mean_is_kept():
    rng = np.random.default_rng(3)
    centres = np.array([[0, 0, 0], [50, 0, 0], [0, 70, 0], [0, 0, 90.0]])
    which = rng.permutation(np.repeat(np.arange(4), [3, 5, 7, 9]))
    points = centres[which] + rng.normal(size=(24, 3))
    expected = []
    for cluster in range(4):
        members = np.flatnonzero(which == cluster)
        distance = np.linalg.norm(points[members] - points[members].mean(0), axis=1)
        expected.append(int(members[distance.argmin()]))

    found = nearest_to_centres(points, 4, seed=1)

    assert found.tolist() == sorted(expected)
    assert found.dtype == np.int64


@pytest.mark.parametrize("count", [3, 9])
def test_there_are_no_more_than_different_samples(count):
    points = np.array([[0.0], [1.0], [1.0], [5.0]])
    found = nearest_to_centres(points, count, seed=2**40)
    assert points[found].ravel().tolist() == [0, 1, 5]


# ---------------------------------------------------------------- spaces


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("bert"), "bert", hidden_size=10)


def test_features_are_two_spaces_of_the_pooled_encoder(encoder):
    torch.manual_seed(1)
    body = DisentangledTransformer(DisentangledParams(encoder=encoder, max_tasks=7))
    body.eval()
    x = inputs("bert")
    pooled = plain(encoder)(x).detach().double().numpy()

    found = body(x).detach()

    torch.testing.assert_close(body.pooled(x), plain(encoder)(x))
    for layer, part in ((body.generic, found[:, :5]), (body.specific, found[:, 5:])):
        weight = layer.weight.detach().double().numpy()
        expected = np.tanh(pooled @ weight.T + layer.bias.detach().double().numpy())
        np.testing.assert_allclose(part, expected, atol=1e-5)
    assert found.shape == (2, body.features) == (2, 10)
    assert body.order.weight.shape == (2, 5)
    assert body.task.weight.shape == (7, 5)
    assert all(parameter.requires_grad for parameter in body.parameters())


def test_an_odd_width_gives_the_rest_to_the_specific_space(tmp_path):
    odd = saved(tmp_path, "bert", hidden_size=9, num_attention_heads=3)
    body = DisentangledTransformer(DisentangledParams(encoder=odd))
    assert (body.width, body.specific.out_features) == (4, 5)
    assert body(inputs("bert")).shape == (2, 9)


def test_an_encoder_of_images_has_no_halves(tmp_path):
    images = saved(tmp_path, "vit")
    with pytest.raises(
        ConfigError, match=r"model\.encoder: got .*, expected an encoder"
    ):
        DisentangledTransformer(DisentangledParams(encoder=images))
