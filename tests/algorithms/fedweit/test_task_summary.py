"""What a client tells of a task: centres that stand for several documents each."""

import numpy as np
import pytest
import torch

from clients.fedweit.client import FedWeit
from clients.fedweit.maths import centres
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.training.loop import Training
from strategies.fedweit import FedWeitParams

KINDS = ["k-means", "gaussian-mixture"]


def blobs(sizes, dimensions=6, noise=0.02, seed=0):
    """Return documents around far points on the axes, and the blob of each."""
    rng = np.random.default_rng(seed)
    which = np.repeat(np.arange(len(sizes)), sizes)
    points = 3 * np.eye(dimensions)[which]
    documents = points + noise * rng.normal(size=points.shape)
    return documents.astype(np.float32), which


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_some_well_separated_blobs_has_its_centre(kind):
    documents, which = blobs([12, 9, 9])
    found = centres(documents, 3, kind, 5, seed=1)
    assert found.dtype == np.float32
    assert found.shape == (3, 6)
    for blob in range(3):
        mean = documents[which == blob].mean(0)
        by_hand = mean / np.sqrt((mean**2).sum())
        assert np.abs(found - by_hand).max(1).min() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_centres_have_length_1(kind):
    documents = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    found = centres(documents, 7, kind, 2, seed=1)
    np.testing.assert_allclose(np.sqrt((found**2).sum(1)), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "count", "members", "expected"),
    [([5] * 4, 200, 5, 4), ([5] * 4, 2, 5, 2), ([9] * 4, 200, 9, 4), ([9], 1, 1, 1)],
)
def test_there_are_q_centres_or_as_many_as_the_documents_suffice_for(
    sizes, count, members, expected
):
    documents, _ = blobs(sizes)
    assert len(centres(documents, count, "k-means", members, seed=0)) == expected


def test_q_is_an_upper_bound_where_a_centre_may_be_a_document():
    documents = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    found = centres(documents, 200, "k-means", 1, seed=0)
    lengths = np.sqrt((documents**2).sum(1, keepdims=True))
    np.testing.assert_allclose(
        np.sort(found, axis=0), np.sort(documents / lengths, axis=0), atol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_blob_of_too_few_documents_goes_to_the_nearest_large_one(kind):
    documents, which = blobs([10, 10, 2])
    # Nearer to the second than to the first.
    documents[which == 2] += np.float32([0, 1.5, 0, 0, 0, 0])
    found = centres(documents, 3, kind, 5, seed=1)
    first = documents[which == 0].mean(0)
    second = documents[which > 0].mean(0)
    by_hand = np.stack([first, second])
    by_hand /= np.sqrt((by_hand**2).sum(1, keepdims=True))
    assert len(found) == 2
    order = found[:, 0].argsort()[::-1]
    np.testing.assert_allclose(found[order], by_hand, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_no_centre_stands_for_fewer_documents_than_members(kind, seed):
    """Each axis is a blob, so that a centre's mixture says whom it stands for."""
    sizes = np.random.default_rng(seed).integers(1, 12, size=8)
    documents, _ = blobs(sizes, dimensions=8)
    found = centres(documents, 200, kind, 5, seed)
    assert 1 <= len(found) <= sum(sizes) // 5
    assert ((found > 0.02) @ sizes).min() >= 5
    directions = documents / np.sqrt((documents**2).sum(1, keepdims=True))
    assert np.abs(found[:, None] - directions).max(2).min() > 1e-5, "a document"


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_documents_than_members_give_no_centre(kind):
    documents, _ = blobs([4])
    assert centres(documents, 3, kind, 5, seed=0).shape == (0, 6)
    assert centres(documents, 3, kind, 4, seed=0).shape == (1, 6)
    assert centres(documents[:0], 3, kind, 1, seed=0).shape == (0, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_document_count_once_and_do_not_warn(kind):
    documents, _ = blobs([4, 6])
    many = np.repeat(documents, [30, 1, 1, 1, 5, 1, 1, 1, 1, 1], axis=0)
    np.testing.assert_array_equal(
        centres(many, 2, kind, 4, seed=0), centres(documents, 2, kind, 4, seed=0)
    )
    assert len(centres(np.repeat(documents[:1], 50, axis=0), 2, kind, 2, seed=0)) == 0
    # Equal but for the last digit, as the same words in another order.
    close = np.float32([[1, 1], [1, 1], [1e-30, 0], [2e-30, 0]]).repeat(3, axis=0)
    assert len(centres(close, 200, kind, 1, seed=0)) > 0
    assert len(centres(documents[:1], 3, kind, 1, seed=0)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_documents_without_direction_give_a_centre_of_zeros(kind):
    opposite = np.float32([[1, 2], [-1, -2]])
    assert centres(opposite, 1, kind, 2, seed=0).tolist() == [[0, 0]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_alone_decides_and_the_order_of_documents_does_not(kind):
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(80, 5)).astype(np.float32)

    def found(seed, rows=documents):
        return centres(rows, 10, kind, 2, seed)

    first = found(2**62 + 3)
    np.random.seed(5)
    np.testing.assert_array_equal(found(2**62 + 3), first)
    np.testing.assert_array_equal(found(2**62 + 3, rng.permutation(documents)), first)
    assert any(
        other.shape != first.shape or not np.array_equal(other, first)
        for other in map(found, range(3))
    )


# ---- the learner's answer


TABLE = np.concatenate(
    [np.zeros((1, 4)), np.random.default_rng(3).normal(size=(30, 4))]
).astype(np.float32)


def task(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(1, len(TABLE), size=(count, 7))
    x[::2, 4:] = 0  # half of the documents are shorter
    train = Examples(torch.from_numpy(x), torch.zeros(count, dtype=torch.int64))
    valid, test = (Examples(train.x[:1] * 0 + n, train.y[:1]) for n in (1, 2))
    return TaskData(train, valid, test, 2)


def learner(client=0, seed=9, **params):
    model = create_model(
        "kim-cnn", tasks=2, classes=2, single_head=False, seed=0, table=TABLE
    )
    place = ClientContext(client, seed, Training(1, 8, 1e-3))
    return FedWeit(FedWeitParams(**params), model, place)


def answer(data, number=1, task=0, client=0, seed=9, **params):
    asked = learner(client, seed, **params)
    return asked.answer_query(
        asked.init(), {}, TaskStage(number, task, True, False), data
    )


@pytest.mark.parametrize("clustering", KINDS)
def test_the_answer_is_the_mean_of_the_centres_or_all_of_them(clustering):
    data = task(40)
    given = {"clusters": 6, "clustering": clustering, "members": 3}
    one = answer(data, **given)
    assert set(one) == {"summary"}
    assert set(one["summary"]) == {"mean"}
    mean = one["summary"]["mean"]
    assert mean.shape == (4,)
    assert mean.dtype == np.float32
    assert np.sqrt((mean**2).sum()) <= 1
    all_of_them = answer(data, overlap="thresholded", **given)
    assert set(all_of_them["summary"]) == {"centres"}
    found = all_of_them["summary"]["centres"]
    assert 1 < len(found) <= 6
    np.testing.assert_allclose(np.sqrt((found**2).sum(1)), 1, atol=1e-6)
    by_hand = [sum(row[n] for row in found.tolist()) / len(found) for n in range(4)]
    np.testing.assert_allclose(mean, by_hand, atol=1e-6)


def test_a_document_is_the_mean_of_its_words_without_padding():
    data = task(3)
    mean = answer(data, clusters=1, members=3)["summary"]["mean"]
    documents = []
    for row in data.train.x.tolist():
        words = [n for n in row if n]
        documents.append(sum(TABLE[n].astype(np.float64) for n in words) / len(words))
    by_hand = np.mean(documents, axis=0)
    np.testing.assert_allclose(mean, by_hand / np.linalg.norm(by_hand), atol=1e-6)


def test_a_task_of_too_few_documents_is_withheld():
    assert answer(task(4)) == {}
    assert answer(task(5)) != {}, "members is 5 unless told otherwise"
    assert answer(task(5), members=6) == {}


def test_the_answer_depends_on_nothing_but_documents_seed_client_and_task():
    data = task(60)
    given = {"clusters": 12, "members": 2}

    def mean(**place):
        return answer(data, **given, **place)["summary"]["mean"].tolist()

    usual = mean()
    assert mean() == usual
    assert mean(number=4) == usual
    assert len({tuple(mean(**p)) for p in ({}, {"seed": 1}, {"client": 1})}) == 3
    assert mean(task=1) != usual
