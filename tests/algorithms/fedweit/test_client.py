"""FedWeIT's client half on tiny networks, against NumPy and by its promises."""

import numpy as np
import pytest
import torch
from fedweit_cases import (
    NOTHING,
    W,
    data,
    foreign_payload,
    learner,
    linear_model,
    random_workspace,
    sigmoid,
    stage,
)
from torch import nn

from clients.fedweit.client import density, task_statistics, with_global_base
from clients.fedweit.maths import compose
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.types import SparseArray
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import dense, snapshot
from strategies.fedweit import FedWeitParams
from strategies.fedweit.server import FedWeit as Server


def convolutional_model(tasks=3):
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 16, 5),
    )
    return MultiHeadModel(
        body,
        features=5,
        input_shape=(1, 4, 4),
        tasks=tasks,
        classes=2,
        single_head=False,
    )


def test_every_term_of_the_loss_against_numpy():
    work, n = random_workspace(
        old=True, solver="gradient", gate="sigmoid", lambda_mask=0.3, lambda2=0.7
    )
    x, y = data(1).train

    loss = float(work.loss(x, y).detach())

    theta = n["base"] * sigmoid(n["mask"])[:, None] + n["adapter"]
    private = {k: v.detach().double().numpy() for k, v in work.tensors.private.items()}
    hidden = np.tanh(x.double().numpy() @ theta.T + private["body.0.bias"])
    logits = hidden @ private["heads.0.weight"].T + private["heads.0.bias"]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    cross_entropy = -log_p[np.arange(len(y)), y.numpy()].mean()
    sparsity = 0.3 * sigmoid(n["mask"]).sum()  # that of adapters is a proximal step
    moved = (n["base"] - n["anchor"]) * sigmoid(n["old_mask"])[:, None]
    drift = 0.7 * np.square(moved + n["old"] - n["old_anchor"]).sum()
    assert loss == pytest.approx(cross_entropy + sparsity + drift, rel=1e-5)


def test_the_gradient_of_the_drift_pulls_base_and_old_adapter_by_hand():
    work, n = random_workspace(old=True, solver="gradient", lambda2=0.7)
    work.drift().backward()
    gates = sigmoid(n["old_mask"])[:, None]
    residual = (n["base"] - n["anchor"]) * gates + n["old"] - n["old_anchor"]
    np.testing.assert_allclose(
        work.leaves[f"old/0/{W}"].grad, 2 * 0.7 * residual, rtol=1e-4
    )
    np.testing.assert_allclose(
        work.leaves[f"base/{W}"].grad, 2 * 0.7 * residual * gates, rtol=1e-4
    )


def test_the_mask_gets_the_tasks_gradient_as_by_finite_differences():
    work, _ = random_workspace()
    x, y = data(1).train
    work.loss(x, y).backward()
    found = work.leaves[f"masks/{W}"].grad.clone()
    step = 1e-2
    for channel in range(6):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                work.leaves[f"masks/{W}"][channel] += sign * step
                values.append(float(work.loss(x, y)))
                work.leaves[f"masks/{W}"][channel] -= sign * step
        numeric = (values[0] - values[1]) / (2 * step)
        assert float(found[channel]) == pytest.approx(numeric, abs=2e-4)
    assert found.abs().max() > 1e-3


def test_base_is_overwritten_only_where_it_was_sent():
    base = {W: np.float32([[1, 1], [2, 2]]), "kept": np.float32([[3, 3]])}
    sent = {W: SparseArray.of_channels(np.float32([[0, 0], [0, 9]]), np.array([1]))}
    new = with_global_base(base, sent)
    assert new[W].tolist() == [[1, 1], [0, 9]], "a zero that was sent is a zero"
    assert new["kept"] is base["kept"]
    assert base[W].tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize("solver", ["closed", "gradient"])
def test_old_tasks_predict_as_before_though_the_base_moved(solver):
    weit = learner(solver=solver, lambda1=0.0, lambda2=1000.0, threshold=0.0)
    state, _ = weit.train(weit.init(), NOTHING, stage(0), data(1))
    x = data(1).test.x
    before = weit.predict(state, {}, 0, x)
    base = state["base"][W]
    for task in (1, 2):
        state, _ = weit.train(state, NOTHING, stage(task), data(task + 1))
    assert np.abs(state["base"][W] - base).max() > 0.01, "the base did move"
    tolerance = 1e-4 if solver == "closed" else 0.05
    torch.testing.assert_close(
        weit.predict(state, {}, 0, x), before, atol=tolerance, rtol=0
    )


def test_a_task_whose_last_round_never_came_is_kept_all_the_same():
    weit = learner(lambda1=0.0, threshold=0.0)
    state, _ = weit.train(weit.init(), foreign_payload(2), stage(0), data(1))
    # The client was away in the last round of task 1, and the server's base has moved.
    state, _ = weit.train(state, NOTHING, stage(1, ends_task=False), data(2))
    probes = [(task, data(task + 1).test.x) for task in (0, 1)]
    before = [weit.predict(state, {}, task, x) for task, x in probes]
    rows = {
        name: SparseArray.of_channels(dense(v) + 1.0, np.arange(len(v)))
        for name, v in state["base"].items()
    }
    state, _ = weit.train(state, {"base": rows}, stage(2), data(3))
    for (task, x), expected in zip(probes, before, strict=True):
        torch.testing.assert_close(
            weit.predict(state, {}, task, x), expected, atol=1e-3, rtol=0
        )


def test_old_tasks_would_change_without_the_retroactive_update():
    weit = learner(lambda1=0.0, lambda2=0.0, threshold=0.0)
    state, _ = weit.train(weit.init(), NOTHING, stage(0), data(1))
    x = data(1).test.x
    before = weit.predict(state, {}, 0, x)
    state, _ = weit.train(state, NOTHING, stage(1), data(2))
    assert (weit.predict(state, {}, 0, x) - before).abs().max() > 0.05


def test_old_tasks_follow_a_base_that_the_server_moved():
    weit = learner(lambda1=0.0, threshold=0.0)
    state, _ = weit.train(weit.init(), NOTHING, stage(0), data(1))
    x = data(1).test.x
    before = weit.predict(state, {}, 0, x)
    base = {k: dense(v) + 1.0 for k, v in state["base"].items()}
    moved = {**state, "base": base}
    torch.testing.assert_close(weit.predict(moved, {}, 0, x), before, atol=1e-4, rtol=0)


def test_the_mask_is_learned_and_not_merely_shrunk():
    weit = learner(lambda1=0.0, epochs=20)
    state, _ = weit.train(weit.init(), NOTHING, stage(0, ends_task=False), data(1))
    mask = state["masks/0"][W]
    assert np.abs(mask - weit.params.initial_gate).min() > 1e-3
    assert mask.max() > weit.params.initial_gate > mask.min()


def test_up_go_the_top_channels_and_at_the_end_the_pruned_adapter():
    weit = learner(kappa=0.5, threshold=0.05)
    state, update = weit.train(weit.init(), NOTHING, stage(0, ends_task=False), data(1))
    assert set(update.payload) == {"base"}
    channels = sorted({i // 4 for i in update.payload["base"][W].indices.tolist()})
    gates = state["masks/0"][W]
    assert channels == sorted(np.argsort(-np.abs(gates), kind="stable")[:3].tolist())
    np.testing.assert_array_equal(
        update.payload["base"][W].values, state["base"][W][channels].ravel()
    )

    after, update = weit.train(state, NOTHING, stage(0, starts_task=False), data(1))
    assert update.metrics["adapter_density"] == density(update.payload["adapters"])
    adapter = update.payload["adapters"][W]
    assert np.abs(adapter.values).min() > 0.05
    assert 0 < adapter.density < 1
    np.testing.assert_array_equal(
        adapter.to_dense(), dense(after["adapters/0"][W]), "what is sent is kept"
    )


def test_the_literal_rule_sends_the_gated_base():
    weit = learner(kappa=1.0, aggregation="literal", gate="sigmoid")
    state, update = weit.train(weit.init(), NOTHING, stage(0, ends_task=False), data(1))
    expected = state["base"][W] * sigmoid(state["masks/0"][W])[:, None]
    np.testing.assert_allclose(
        update.payload["base"][W].to_dense(), expected, rtol=1e-5
    )


def test_foreign_adapters_start_with_equal_attention_and_then_learn():
    weit = learner(rate=0.001, attention_rate=30.0)
    state, _ = weit.train(weit.init(), NOTHING, stage(0), data(1))
    received = foreign_payload(4)
    started = weit.start(state, received, 1)
    assert started["attention"][W].tolist() == [0.25] * 4

    state, update = weit.train(state, received, stage(1, ends_task=False), data(2))
    alpha = state["attention"][W]
    assert np.abs(alpha - 0.25).min() > 0.01
    for j in range(4):
        shown = update.metrics[f"attention/{j + 1}/0"]
        assert shown == pytest.approx(abs(alpha[j]), rel=1e-6)


def test_predictions_stay_the_same_when_foreign_adapters_are_folded():
    weit = learner(threshold=0.0, lambda1=0.0)
    state, _ = weit.train(weit.init(), NOTHING, stage(0), data(1))
    state, _ = weit.train(state, foreign_payload(3), stage(1, ends_task=False), data(2))
    x = data(2).test.x
    before = weit.predict(state, {}, 1, x)
    foreign = sum(
        state["attention"][W][j]
        * foreign_payload(3)[f"adapters/{j + 1}/0"][W].to_dense()
        for j in range(3)
    )
    theta = compose(
        torch.from_numpy(state["base"][W]),
        torch.from_numpy(state["masks/1"][W]),
        torch.from_numpy(state["adapters/1"][W]),
        torch.from_numpy(foreign),
    )
    torch.testing.assert_close(weit.build_task_model(state, 1).theta(W).detach(), theta)

    finished = weit.finish_task(state, 1)
    torch.testing.assert_close(weit.predict(finished, {}, 1, x), before)
    assert "attention" not in finished
    assert not any(group.startswith("received/") for group in finished)


def test_any_network_of_linear_and_convolutional_layers_is_decomposed():
    weit = learner(convolutional_model(), threshold=0.0, lambda1=0.0)
    state, update = weit.train(weit.init(), NOTHING, stage(0), data(1, shape=(1, 4, 4)))
    assert set(update.payload["base"]) == {W, "body.4.weight"}
    private = state["heads/0"]
    assert {"body.1.weight", "body.1.running_mean", "heads.0.weight"} <= set(private)
    assert "heads.1.weight" not in private
    assert np.abs(private["body.1.running_mean"]).max() > 0
    x = data(1, shape=(1, 4, 4)).test.x
    before = weit.predict(state, {}, 0, x)
    state, _ = weit.train(state, NOTHING, stage(1), data(2, shape=(1, 4, 4)))
    torch.testing.assert_close(
        weit.predict(state, {}, 0, x), before, atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("single_head", [False, True])
def test_what_is_frozen_is_neither_decomposed_nor_kept_by_tasks(single_head):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
    body[0].requires_grad_(False)
    model = MultiHeadModel(
        body,
        features=5,
        input_shape=(4,),
        tasks=2,
        classes=2,
        single_head=single_head,
    )
    frozen = snapshot(model, ["body.0.weight", "body.0.bias"])
    weit = learner(model)

    state, update = weit.train(weit.init(), NOTHING, stage(0), data(1))

    assert set(update.payload["base"]) == {"body.2.weight"}
    assert set(state["masks/0"]) == {"body.2.weight"}
    own = {"body.2.bias", "heads.0.weight", "heads.0.bias"}
    assert set(state["heads/0"]) == own
    assert all((snapshot(model, [n])[n] == v).all() for n, v in frozen.items())
    assert torch.isfinite(weit.predict(state, {}, 0, data(1).test.x)).all()


def test_a_task_that_was_never_trained_can_be_asked():
    weit = learner()
    logits = weit.predict(weit.init(), {}, 2, data(1).test.x)
    assert logits.shape == (40, 2)
    assert torch.isfinite(logits).all()


def test_both_halves_fit_together_over_two_tasks():
    weit, server = learner(), Server(FedWeitParams(knowledge="all"), ServerContext(0))
    model = linear_model()
    common = server.init(snapshot(model, model.shared_names()))
    other = {W: SparseArray.of_nonzero(np.full((6, 4), 0.5, np.float32))}
    common = {**common, "adapters/1/0": other}
    state = weit.init()
    for task in range(2):
        now = stage(task)
        state, update = weit.train(
            state, server.configure_train(common, now, 0), now, data(task)
        )
        server.check_update(common, update)
        common = server.aggregate_train(common, now, {0: update})
    assert {"adapters/0/0", "adapters/0/1", "adapters/1/0"} <= set(common)
    assert "foreign/1" in state


def test_a_finished_task_says_what_its_parts_amount_to():
    weit = learner(threshold=0.0, lambda1=0.0)
    state = weit.init()
    for task in (0, 1):
        state, update = weit.train(
            state, foreign_payload(2 * task), stage(task), data(task + 1)
        )
        if not task:
            assert update.metrics["foreign_norm"] == 0
    base, foreign = state["base"][W], state["foreign/1"][W].to_dense()
    expected = np.linalg.norm(foreign) / np.linalg.norm(base)
    assert update.metrics["foreign_norm"] == pytest.approx(expected, rel=1e-5)
    assert update.metrics["mask_density"] == np.mean(state["masks/1"][W] != 0)
    finished = {**state, "masks/1": {W: np.float32([1, 0, 0, 0, 0, 2])}}
    assert task_statistics(finished, 1)["mask_density"] == 2 / 6


def test_density_is_the_share_of_entries_that_are_not_zero():
    half = SparseArray.of_nonzero(np.array([[1.0, 0.0, 2.0, 0.0]], np.float32))
    full = np.ones(4, np.float32)
    assert density({"a": half, "b": full}) == 6 / 8
    assert density({"a": SparseArray.of_nonzero(np.zeros(3, np.float32))}) == 0
