"""Measures against those of Avalanche, whose plugins see the same predictions.

Where two definitions differ, the test says by how much; `docs/reference/measures.md`
says why.
Needs ``pip install avalanche-lib`` beside the rest, and is skipped without it.
"""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fcl_flower.results import measures
from fcl_flower.results.measures import recall
from fcl_flower.training.loop import ClassCounts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what it imports
    avalanche = pytest.importorskip(
        "avalanche.evaluation.metrics", reason="avalanche-lib is not installed"
    )

SAMPLES = 20
MATRICES = [
    # Falls at once; falls, rises; never falls; best neither first nor last.
    [[0.8], [0.6, 0.9], [0.5, 0.7, 0.85]],
    [[0.8], [0.4, 0.9], [0.7, 0.95, 0.2]],
    [[0.3], [0.4, 0.5], [0.6, 0.7, 0.8]],
    [[0.5], [0.9, 0.4], [0.7, 0.6, 1.0], [0.1, 0.3, 0.9, 0.0]],
    [[0.65], [0.65, 0.35]],
]


def square(rows):
    whole = np.full((1, len(rows), len(rows)), math.nan)
    for t, row in enumerate(rows):
        whole[0, t, : len(row)] = row
    return whole


def shown(plugin, rows):
    for t, row in enumerate(rows):
        plugin.before_training_exp(at(t))
        plugin.before_eval(at(t))
        for i, accuracy in enumerate(row):
            plugin.before_eval_exp(at(i))
            plugin.after_eval_iteration(at(i, accuracy))
            plugin.after_eval_exp(at(i))
        (value,) = plugin.after_eval(at(t))
    return value.value


def at(experience, accuracy=0.0):
    """Make a strategy of Avalanche that has just predicted all of a test set."""
    right = round(accuracy * SAMPLES)
    assert right == pytest.approx(accuracy * SAMPLES)
    labels = torch.arange(SAMPLES) % 2
    answers = torch.where(torch.arange(SAMPLES) < right, labels, 1 - labels)
    return SimpleNamespace(
        experience=SimpleNamespace(
            current_experience=experience,
            origin_stream=SimpleNamespace(name="test"),
            task_label=0,
        ),
        clock=SimpleNamespace(train_iterations=0),
        is_eval=True,
        mb_y=labels,
        mb_output=torch.nn.functional.one_hot(answers, 2).float(),
    )


@pytest.mark.parametrize("rows", MATRICES)
def test_measures_are_those_of_avalanche(rows):
    ours = square(rows)
    theirs = shown(avalanche.StreamBWT(), rows)
    assert measures.backward_transfer(ours) == pytest.approx(theirs)
    # Theirs is from the first to the last: ours adds what later tasks had brought.
    theirs = shown(avalanche.StreamForgetting(), rows)
    risen = [
        max(row[i] for row in rows[i:-1]) - rows[i][i] for i in range(len(rows) - 1)
    ]
    assert measures.forgetting(ours) == pytest.approx(theirs + np.mean(risen))
    stream = avalanche.Accuracy()  # of equal test sets: over samples and tasks alike
    for i, accuracy in enumerate(rows[-1]):
        seen = at(i, accuracy)
        stream.update(seen.mb_output, seen.mb_y)
    assert measures.average_accuracy(ours) == pytest.approx(stream.result())


def test_accuracy_over_samples_is_that_over_a_stream_of_unequal_test_sets():
    stream = avalanche.Accuracy()
    for right, wrong in ((3, 1), (10, 30)):
        labels = torch.zeros(right + wrong, dtype=torch.int64)
        answers = torch.cat([labels[:right], labels[right:] + 1])
        stream.update(answers, labels)
    accuracy, counts = square([[1.0], [0.75, 0.25]]), np.array([[4, 40]])

    assert measures.sample_accuracy(accuracy, counts)[-1] == stream.result()


def test_balanced_accuracy_is_the_mean_over_the_classes_of_avalanche():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 3])
    answers = torch.tensor([0, 0, 0, 1, 1, 2, 3])
    theirs = avalanche.ClassAccuracy()
    theirs.update(answers, labels, 0)

    kept = ClassCounts(lambda x: torch.nn.functional.one_hot(x, 4))
    kept(answers)
    ours = recall(np.array(kept.by_class(labels, 4)))

    for label, accuracy in theirs.result()[0].items():
        assert ours[label] == pytest.approx(accuracy)
    assert math.isnan(ours[2])  # which has no sample, and is none of theirs
