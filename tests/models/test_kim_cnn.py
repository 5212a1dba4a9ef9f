"""Kim's network against torch's convolution on each document alone."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv1d

from fcl_flower.core.errors import ContractError
from fcl_flower.models.build import create_model
from fcl_flower.models.words import KimCnn, Windows

WORDS, DEPTH = 10, 4


def word_table(seed=0):
    table = np.random.default_rng(seed).normal(size=(WORDS + 1, DEPTH))
    table[0] = 0
    return table.astype(np.float32)


@pytest.fixture(autouse=True)
def few_filters(monkeypatch, one_thread):
    monkeypatch.setattr("fcl_flower.models.words.FILTERS", 7)


def network(seed=0):
    torch.manual_seed(seed)
    return KimCnn(word_table()).eval()


def padded(documents, extra=0):
    width = max(map(len, documents)) + extra
    return torch.tensor([[*d, *[0] * (width - len(d))] for d in documents])


def responses(document, weight):
    """Return all responses to one document by torch's convolution, (F, windows)."""
    words = torch.from_numpy(word_table())[
        torch.tensor([*document, *[0] * (5 - len(document))])
    ]
    return conv1d(words.t()[None], weight)[0]


def plain(net, documents):
    rows = []
    for document in documents:
        layers = [
            torch.relu(responses(document, conv.weight).amax(1) + conv.bias)
            for conv in net.convs
        ]
        rows.append(torch.cat(layers))
    return torch.stack(rows)


def gradients(net, features):
    """Return gradients of a sum that weighs every feature differently."""
    weights = torch.randn(features.shape[1], generator=torch.Generator().manual_seed(3))
    parameters = list(net.parameters())
    return torch.autograd.grad((features * weights).square().sum(), parameters)


# Two words only: n-grams repeat, so that the maximum is reached several times.
word = st.one_of(st.integers(1, WORDS), st.integers(1, 2))
documents = st.lists(st.lists(word, min_size=1, max_size=40), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(documents)
@example([[1, 2, 3, 1, 2, 3, 1, 2, 3], [4] * 12, [4] * 5])  # windows share a maximum
@example([[1], [2, 3], [4, 5, 6], [7, 8, 9, 1], [2, 3, 4, 5, 6]])
def test_features_and_gradients_are_those_of_a_convolution(drawn):
    net = network()
    found, expected = net(padded(drawn)), plain(net, drawn)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(net, found), gradients(net, expected), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_windows_of_other_words_that_tie_share_the_gradient_like_amax():
    net = network()
    for conv in net.convs:
        torch.nn.init.zeros_(conv.weight)
        torch.nn.init.ones_(conv.bias)
    given = [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    found, expected = net(padded(given)), plain(net, given)
    for one, other in zip(gradients(net, found), gradients(net, expected), strict=True):
        torch.testing.assert_close(one, other)


def test_neither_padding_nor_the_other_documents_change_a_result():
    net = network()
    given = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3], [7] * 20, [1, 2, 3, 4, 5]]
    together = net(padded(given, extra=9))
    for document, features in zip(given, together, strict=True):
        alone = net(padded([document]))[0]
        torch.testing.assert_close(features, alone, atol=1e-6, rtol=1e-6)


def test_padding_is_no_window_even_where_it_would_be_the_maximum():
    net = network()
    for conv in net.convs:
        torch.nn.init.constant_(conv.weight, 0)
        # Word vectors of the document answer with -1 in every tap, padding with 0.
        with torch.no_grad():
            conv.weight[:, 0] = -1
            conv.bias[:] = 10
    net.table = torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0]])
    features = net(padded([[1] * 6], extra=5))[0]
    assert features.tolist() == [7.0] * 7 + [6.0] * 7 + [5.0] * 7


def test_no_documents_give_no_features():
    net = network()
    nothing = torch.zeros(0, 7, dtype=torch.int64)
    assert net(nothing).shape == (0, 21)
    assert net.extremes(nothing, [net.convs[1].weight])[0].shape == (2, 0, 7)
    assert net.embed(nothing).shape == (0, DEPTH)


def test_dropout_works_in_training_alone():
    net = network()
    x = padded([[1, 2, 3, 4, 5, 6]] * 50)
    whole = net(x)
    torch.testing.assert_close(net(x), whole)
    net.train()
    torch.manual_seed(0)
    dropped = net(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], (whole / 0.7)[kept])
    assert float((~kept)[whole > 0].float().mean()) == pytest.approx(0.3, abs=0.06)


def test_word_vectors_neither_train_nor_travel(monkeypatch):
    monkeypatch.undo()  # the paper has 128 filters of three widths
    model = create_model(
        "kim-cnn", tasks=2, classes=3, single_head=False, seed=0, table=word_table()
    )
    names = {f"body.convs.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")}
    heads = {f"heads.{n}.{kind}" for n in range(2) for kind in ("weight", "bias")}
    assert {name for name, _ in model.named_parameters()} == names | heads
    assert set(model.state_dict()) == names | heads
    assert set(model.shared_names()) == names
    shapes = [tuple(conv.weight.shape) for conv in model.body.convs]
    assert shapes == [(128, DEPTH, width) for width in (3, 4, 5)]


def test_a_document_is_represented_by_the_mean_of_its_words():
    table = word_table()
    found = network().embed(padded([[1, 1, 4], [7]], extra=2))
    by_hand = np.stack([(table[1] + table[1] + table[4]) / 3, table[7]])
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)
    model = create_model(
        "kim-cnn", tasks=1, classes=2, single_head=False, seed=0, table=table
    )
    torch.testing.assert_close(model.embed(padded([[1, 1, 4], [7]])), found)


def test_images_are_represented_by_nothing():
    model = create_model("small", tasks=1, classes=2, single_head=False, seed=0)
    with pytest.raises(ContractError, match="SmallNet"):
        model.embed(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize("width", [3, 4, 5])
def test_extremes_are_the_largest_and_smallest_responses(width):
    weight = torch.from_numpy(
        np.random.default_rng(width).normal(size=(6, DEPTH, width)).astype(np.float32)
    ).requires_grad_()
    given = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3], [7] * 20]
    (found,) = network().extremes(padded(given, extra=3), [weight])
    for n, document in enumerate(given):
        plainly = responses(document, weight).detach()
        torch.testing.assert_close(found[0, n], plainly.amax(1))
        torch.testing.assert_close(found[1, n], plainly.amin(1))
    assert not found.requires_grad


def test_a_document_shorter_than_the_widest_filter_is_padded_to_it_by_hand():
    table = torch.tensor([[0.0], [-1.0], [-2.0]])
    weight = torch.tensor([[[1.0, 10.0, 100.0]]])
    # Padded to 1 2 0 0 0: windows 1 2 0 -> -21, 2 0 0 -> -2, 0 0 0 -> 0.
    found = Windows(torch.tensor([[1, 2]]), table, 5).extremes(weight)
    assert found.flatten().tolist() == [0, -21]
