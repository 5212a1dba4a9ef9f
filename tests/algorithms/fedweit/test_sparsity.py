"""The sparsity of gates and adapters: a proximal step after each of the optimizer."""

import numpy as np
import pytest
import torch
from fedweit_cases import (
    NOTHING,
    W,
    data,
    learner,
    linear_model,
    random_workspace,
    stage,
)
from torch import nn

from clients.fedweit.maths import retroactive
from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.federation.client import model_bytes
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Fit, Score, Training, fit
from fcl_flower.training.optimizers import OptimizerChoice

ONE = TaskStage(round=1, task=0, starts_task=True, ends_task=False)
ADAM = OptimizerChoice()


def minimised(work, names, objective, optimizer=ADAM):
    """Return where training ends: optimizer and proximal step, no noise."""
    job = Fit(
        parameters={name: work.leaves[name] for name in names},
        objective=lambda x, y: objective(),
        examples=Examples(torch.zeros(100, 1), torch.zeros(100, dtype=torch.int64)),
        training=Training(30, batch_size=1, learning_rate=0.03, optimizer=optimizer),
        seed=0,
        round=ONE.round,
        validate=lambda: Score(1.0, 0.0),
        after_step=work.proximal_step,
    )
    fit(job)
    return [work.leaves[name].detach() for name in names]


def parabolas(work, names, seed=4):
    """Return sum_j h_j (w_j - b_j)^2 / 2 as a function, and h and b by leaf."""
    rng = np.random.default_rng(seed)
    shapes = {name: work.leaves[name].shape for name in names}
    h = {
        n: torch.tensor(rng.uniform(0.2, 5, s), dtype=torch.float32)
        for n, s in shapes.items()
    }
    b = {
        n: torch.tensor(rng.normal(size=s), dtype=torch.float32)
        for n, s in shapes.items()
    }

    def objective():
        return sum((h[n] * (work.leaves[n] - b[n]) ** 2 / 2).sum() for n in names)

    return objective, h, b


@pytest.mark.parametrize(
    "optimizer",
    [ADAM, OptimizerChoice("sgd"), OptimizerChoice("sgd", momentum=0.9)],
    ids=["adam", "sgd", "momentum"],
)
def test_training_ends_at_the_closed_form_of_a_lasso(optimizer):
    """Minimise sum_j h_j (w_j - b_j)^2 / 2 + lambda |w_j|: soft(b_j, lambda / h_j).

    Entries differ in curvature and start; a threshold of rate times lambda would weigh
    lambda by the size of each entry's gradient, and end elsewhere.
    """
    work, _ = random_workspace(lambda1=0.9, lambda_mask=0.8, gate="identity")
    names = [f"adapters/{W}", f"masks/{W}"]
    objective, h, b = parabolas(work, names)
    for name, found, weight in zip(
        names, minimised(work, names, objective, optimizer), (0.9, 0.8), strict=True
    ):
        best = b[name].sign() * (b[name].abs() - weight / h[name]).clamp(0)
        assert 0 < (best == 0).double().mean() < 1
        assert torch.equal(found == 0, best == 0), "the zeros are exact"
        torch.testing.assert_close(found, best, atol=2e-3, rtol=0)


def test_both_solvers_have_the_same_minimum_in_the_base_and_in_an_old_adapter():
    """The exact shortcut against equation 2 as printed, with a base that may move."""
    found = {}
    for solver in ("closed", "gradient"):
        work, n = random_workspace(old=True, solver=solver, lambda1=0.3, lambda2=0.7)
        names = [f"base/{W}", *(f"old/0/{W}" for _ in work.tensors.old[0].adapters)]
        cost, _, goal = parabolas(work, names[:1])
        found[solver] = minimised(work, names, lambda c=cost, w=work: c() + w.drift())
    (base,) = found["closed"]
    torch.testing.assert_close(base, found["gradient"][0], atol=2e-3, rtol=0)
    assert (base - goal[f"base/{W}"]).abs().max() > 0.1, "the old task pulls at it"
    followed = retroactive(
        torch.from_numpy(n["old_anchor"]),
        base - torch.from_numpy(n["anchor"]),
        work.tensors.old[0].gates[W],
        0.3,
        0.7,
    )
    assert 0 < (followed == 0).double().mean() < 1
    torch.testing.assert_close(followed, found["gradient"][1], atol=2e-3, rtol=0)


def two_halves():
    """Return a model whose last three channels look at nothing but inputs 2 and 3."""
    model = linear_model()
    with torch.no_grad():
        model.body[0].weight[3:, :2] = 0
    return model


def without_second_half(task):
    def silent(part):
        return Examples(part.x * torch.tensor([1.0, 1.0, 0.0, 0.0]), part.y)

    return TaskData(*map(silent, (task.train, task.valid, task.test)), task.classes)


def test_gates_leave_their_start_and_those_of_unused_channels_close():
    weit = learner(two_halves(), rate=1e-3, base_rate=0.0)
    task = without_second_half(data(1))
    state, _ = weit.train(weit.init(), NOTHING, ONE, task)
    gates = state["masks/0"][W]
    assert gates[3:].tolist() == [0, 0, 0]
    used = np.abs(gates[:3] - weit.params.initial_gate)
    assert used.min() > 0.02, "they have left their start"
    assert np.ptp(gates[:3]) > 0.05, "and channels differ"
    assert np.count_nonzero(gates[:3]) == 3


def test_without_a_rate_of_its_own_a_mask_stays_where_it_started():
    moved = {}
    for rate in (1.0, 30.0):
        weit = learner(rate=1e-3, mask_rate=rate)
        state, _ = weit.train(weit.init(), NOTHING, ONE, data(1))
        moved[rate] = np.abs(state["masks/0"][W] - weit.params.initial_gate).max()
    assert moved[1.0] < 0.006 < 0.1 < moved[30.0]


def test_a_sigmoid_is_penalised_as_a_gate_and_not_as_a_raw_mask():
    """Its slope at m is lambda g (1 - g): towards 0, where |m| would pull to 0.5."""
    work, numbers = random_workspace(lambda_mask=0.3, gate="sigmoid")
    work.gate_penalty().backward()
    gates = 1 / (1 + np.exp(-numbers["mask"].astype(np.float64)))
    assert (work.leaves[f"masks/{W}"].grad > 0).all()
    np.testing.assert_allclose(
        work.leaves[f"masks/{W}"].grad, 0.3 * gates * (1 - gates), rtol=1e-5
    )
    assert list(work.sparse) == [f"adapters/{W}"]


def test_what_the_network_does_not_use_has_no_step_to_shrink_after():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = nn.Linear(4, 6), nn.Linear(4, 6)

        def forward(self, x):
            return self.used(x)

    model = linear_model()
    model.body = Half()
    weit = learner(model, initial_adapter=1.0)
    state, _ = weit.train(weit.init(), NOTHING, ONE, data(1))
    spare = "body.spare.weight"
    assert np.array_equal(state["adapters/0"][spare], weit.init()["base"][spare])


def test_the_base_moves_less_where_it_feels_what_old_adapters_would_cost():
    moved = {}
    for solver in ("closed", "unbraked"):
        weit = learner(solver=solver, lambda1=0.05, rate=0.002, epochs=20)
        state, _ = weit.train(weit.init(), NOTHING, ONE, data(1))
        before = state["base"][W]
        later = TaskStage(round=2, task=1, starts_task=True, ends_task=True)
        state, _ = weit.train(state, NOTHING, later, data(2))
        moved[solver] = np.abs(state["base"][W] - before).mean()
    assert moved["closed"] < 0.7 * moved["unbraked"]


def test_a_finished_task_costs_less_than_a_tenth_of_a_network():
    """At the paper's sparsity: new adapters keep 3 to 4 % of their entries."""
    width, tasks, stored = 64, 4, {}
    for solver in ("closed", "unbraked"):
        torch.manual_seed(0)
        model = MultiHeadModel(
            nn.Sequential(nn.Linear(width, width), nn.Tanh()),
            features=width,
            input_shape=(width,),
            tasks=tasks,
            classes=2,
            single_head=False,
        )
        weit = learner(model, solver=solver, lambda1=0.01, rate=1e-3, epochs=20)
        state = weit.init()
        for task in range(tasks):
            known = data(task + 1, shape=(width,), count=200)
            state, _ = weit.train(state, NOTHING, stage(task), known)
        kept = {g: tensors for g, tensors in state.items() if g.startswith("adapters/")}
        stored[solver] = model_bytes(weit, kept, {}) / tasks
    network = 4 * width * width
    assert stored["closed"] < network / 10
    assert stored["unbraked"] > network / 2, "what it was"
