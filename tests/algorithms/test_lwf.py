"""Learning without forgetting, and the old model as a teacher."""

import numpy as np
import pytest
import torch
from class_streams import (
    FIRST,
    SECOND,
    check_loss,
    data,
    logits_of,
    model,
    moved,
    place,
    softmax,
    start,
)
from watched_fit import Watched

from clients.lwf import Lwf
from fcl_flower.algorithms.base import Turn
from fcl_flower.training.distillation import distillation_loss
from fcl_flower.training.tensors import load
from strategies.lwf import LwfParams

# ---- equations


def test_the_distillation_is_the_scaled_divergence_of_softened_answers():
    rng = np.random.default_rng(0)
    z, targets = rng.normal(size=(2, 5, 3)) * 2
    q, p = softmax(z / 3.0), softmax(targets / 3.0)
    expected = 9 * (p * (np.log(p) - np.log(q))).sum(1).mean()

    found = distillation_loss(torch.from_numpy(z), torch.from_numpy(targets), 3.0)

    assert float(found) == pytest.approx(expected)
    alike = distillation_loss(torch.from_numpy(z), torch.from_numpy(z), 3.0)
    assert float(alike) == pytest.approx(0, abs=1e-12)


def objective(base, old_base, x, y, old, new, params):
    """Return LwF's loss by NumPy: labels among new classes, the teacher among old."""
    z, taught = logits_of(base, x), logits_of(old_base, x)
    p = softmax(z[:, new] if params.contrast == "new" else z)
    places = [new.index(label) if params.contrast == "new" else label for label in y]
    entropy = -np.log(p[np.arange(len(y)), places]).mean()
    t = params.temperature
    q, r = softmax(z[:, old] / t), softmax(taught[:, old] / t)
    divergence = (r * (np.log(r) - np.log(q))).sum(1).mean()
    return entropy + params.strength * t**2 * divergence


@pytest.mark.parametrize("contrast", ["new", "all"])
@pytest.mark.parametrize("growing", [False, True])
def test_the_loss_of_a_second_task_and_its_gradient_by_numpy(contrast, growing):
    params = LwfParams(strength=1.7, temperature=2.5, contrast=contrast)
    learner = Lwf(params, model(), place(learning_rate=1e-12))
    watched = Watched(learner)
    if growing:
        learner.model.restrict_head([0, 1])
    state, _ = learner.train(Turn({}, start(), FIRST, data(0)))
    if growing:
        learner.model.restrict_head([0, 1, 2, 3])
    old_base = moved(start())["base"]
    learner.train(Turn(state, {"base": old_base}, SECOND, data(1)))
    now = moved(start(), 0.07)["base"]
    load(learner.model, now)
    rows = torch.tensor([3, 0, 11])
    examples = data(1).train
    x, y = examples.x[rows], examples.y[rows]

    def by_hand(weight):
        base = {**now, "heads.0.weight": weight}
        if growing and contrast == "all":  # classes 4 and 5 do not exist yet
            base = {n: v[:4] if n.startswith("heads") else v for n, v in base.items()}
        inputs = x.double().numpy()
        return objective(base, old_base, inputs, y.tolist(), [0, 1], [2, 3], params)

    check_loss(watched, x, y, rows, by_hand)


# ---- the teacher


# ---- runs
