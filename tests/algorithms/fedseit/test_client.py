"""FedSeIT's client half on tiny texts, against plain convolutions.

Equations are those of Chaudhary et al., Findings of EMNLP 2022.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import exact
from fedweit_cases import NOTHING, stage
from torch.nn.functional import conv1d, cross_entropy

from clients.fedseit import (
    BranchedModel,
    FedSeit,
    initial_projections,
)
from clients.fedweit.client import FedWeit
from clients.fedweit.maths import TaskModel
from fcl_flower.algorithms.base import ClientContext, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import SparseArray
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.models.build import create_model
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.models.words import KimCnn
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import dense
from strategies.fedseit import FedSeitParams
from strategies.fedweit import FedWeitParams

WORDS, DEPTH, FILTERS = 10, 4, 3
FEATURES = 3 * FILTERS
CONVS = [f"body.convs.{n}.weight" for n in range(3)]
UNTRAINED = 1e-9
"""A learning rate at which a task's training is over before its first step."""


@pytest.fixture(autouse=True)
def small_and_forgotten(monkeypatch, one_thread):
    monkeypatch.setattr("fcl_flower.models.words.FILTERS", FILTERS)
    monkeypatch.setattr("clients.fedseit.CHUNK", 5)
    monkeypatch.setattr("clients.fedseit._tables", {})


@pytest.fixture
def no_dropout(monkeypatch):
    monkeypatch.setattr("fcl_flower.models.words.DROPOUT", 0.0)


def word_table(seed=0):
    table = np.random.default_rng(seed).normal(size=(WORDS + 1, DEPTH))
    table[0] = 0
    return table.astype(np.float32)


def text_model(single_head=False):
    torch.manual_seed(0)
    return MultiHeadModel(
        KimCnn(word_table()),
        features=FEATURES,
        input_shape=(-1,),
        tasks=4,
        classes=2,
        single_head=single_head,
    )


def place(epochs=2, rate=0.01, client=0):
    training = Training(epochs=epochs, batch_size=8, learning_rate=rate)
    return ClientContext(client=client, seed=0, training=training)


def learner(model=None, epochs=2, rate=0.01, **params):
    """Make a learner whose adapters are not rounded, unless ``params`` say so."""
    params = {"adapter_bits": 32} | params
    return FedSeit(
        FedSeitParams(**params), model or text_model(), place(epochs=epochs, rate=rate)
    )


def examples(seed, count=12, longest=9):
    """Draw documents, padded; the label of one is whether words 1 or 2 occur."""
    rng = np.random.default_rng(seed)
    x = rng.integers(1, WORDS + 1, (count, longest))
    lengths = rng.integers(1, longest + 1, count)
    x[np.arange(longest) >= lengths[:, None]] = 0
    labels = ((x == 1) | (x == 2)).any(1).astype(np.int64)
    return Examples(torch.from_numpy(x), torch.from_numpy(labels))


def data(seed):
    train, valid = examples(seed), examples(seed + 50, count=5, longest=14)
    return TaskData(train, valid, examples(seed + 90), 2)


def adapter(seed):
    rng = np.random.default_rng(seed)
    return {
        name: SparseArray.of_nonzero(
            rng.normal(size=(FILTERS, DEPTH, width)).astype(np.float32), 0.3
        )
        for name, width in zip(CONVS, (3, 4, 5), strict=True)
    }


def adapters(*sources):
    """Return what arrives with the adapters of ``sources``, such as "2/0"."""
    return {
        "base": {},
        **{f"adapters/{s}": adapter(sum(map(ord, s))) for s in sources},
    }


def scrambled(state, task, seed=5):
    """Return the state with random values in all that the task's model is made of."""
    rng = np.random.default_rng(seed)
    groups = ("base", "anchor/base", "masks", "adapters", "heads", "anchor")
    groups += ("branches", "projections")

    def drawn(values):
        return rng.normal(size=dense(values).shape).astype(np.float32)

    return {
        group: {name: drawn(values) for name, values in arrays.items()}
        if group in groups or group.rpartition("/")[0] in groups
        else arrays
        for group, arrays in state.items()
    }


def with_attention(state, task, *alpha):
    """Return the state with alpha by branch, another multiple in every layer."""
    found = dict(state[f"branches/{task}"])
    for n, name in enumerate(CONVS):
        found[f"attention/{name}"] = np.float32(alpha) * (n + 1)
    return {**state, f"branches/{task}": found}


# ---- equations


def plain_logits(work, x):
    """Compute equations 1 to 3 by convolutions with theta and with alpha_i A_i."""
    table, rows = torch.from_numpy(word_table()), []
    private, joined = work.tensors.private, work.joined
    head = f"heads.{work.model.head_index(work.task)}"
    for numbers in x:
        document = table[numbers[: max(5, int((numbers != 0).sum()))]]
        missing = torch.zeros(max(0, 5 - len(document)), DEPTH)
        words = torch.cat([document, missing]).t()[None]

        def pooled(weight, bias, words=words):
            return torch.relu(conv1d(words, weight, bias)[0]).amax(1)

        local, foreign = [], []
        for n, name in enumerate(CONVS):
            local.append(pooled(work.theta(name), private[f"body.convs.{n}.bias"]))
            vectors = [
                pooled(alpha * torch.from_numpy(dense(given[name])), bias)
                for given, alpha, bias in zip(
                    work.adapters,
                    joined[f"attention/{name}"],
                    joined[f"bias/{name}"],
                    strict=True,
                )
            ]
            foreign.append(joined[f"foreign/{name}"] @ torch.cat(vectors))
        z = joined["local"] @ torch.cat([*local, *foreign])
        rows.append(private[f"{head}.weight"] @ z + private[f"{head}.bias"])
    return torch.stack(rows)


def loss_and_gradients(work, logits, y):
    loss = cross_entropy(logits, y)
    leaves = dict(sorted(work.leaves.items()))
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    return loss.detach(), dict(zip(leaves, gradients, strict=True))


def test_the_loss_is_equation_5_but_for_sparsity_that_is_a_proximal_step(no_dropout):
    seit = learner(solver="gradient", lambda2=0.07)
    state = seit.finish_task(seit.start(seit.init(), NOTHING, 0), 0)
    state = seit.start(state, adapters("1/0", "2/0"), 1)
    state = with_attention(scrambled(state, 1), 1, 0.7, -1.3)
    x, y = examples(4)
    work = seit.build_task_model(state, 1)
    expected = float(cross_entropy(plain_logits(work, x), y).detach())
    for name in CONVS:
        gates = state["masks/0"][name][:, None, None]
        moved = (state["base"][name] - state["anchor/base"][name]) * gates
        followed = state["adapters/0"][name] - state["anchor/0"][name]
        expected += 0.07 * np.square(moved + followed).sum()
    assert float(work.loss(x, y).detach()) == pytest.approx(expected, rel=1e-4)
    shrunk = {name.split("/body")[0] for name in work.sparse}
    assert shrunk == {"masks", "adapters", "old/0"}, "nothing foreign"


def test_dropout_acts_on_the_local_vector_alone():
    seit = learner()
    state = seit.start(seit.init(), adapters("1/0"), 1)
    bias = {f"bias/{name}": np.full((1, FILTERS), 9, "f4") for name in CONVS}
    state["branches/1"] = {**state["branches/1"], **bias}
    both = {"local": np.ones((3 * FILTERS, 6 * FILTERS), "f4")}
    state["projections/1"] = {**state["projections/1"], **both}
    work = seit.build_task_model(state, 1)
    x = examples(3, count=60).x

    def logits(training, without_local=False):
        work.model.train(training)
        torch.manual_seed(0)
        kept = work.joined["local"].detach().clone()
        if without_local:
            work.joined["local"].data[:, : 3 * FILTERS] = 0
        found = work.forward(x).detach()
        work.joined["local"].data = kept
        return found

    assert not torch.allclose(logits(True), logits(False))
    torch.testing.assert_close(logits(True, True), logits(False, True))


# ---- the extremes that are kept


@pytest.mark.parametrize("single_head", [False, True])
@pytest.mark.parametrize(
    ("settings", "atol", "kept"),
    [
        ({}, 1e-5, True),
        ({"cache_megabytes": 0}, 1e-5, False),
        ({"cache": "float16"}, 1e-2, True),
    ],
)
def test_outputs_and_gradients_are_those_of_plain_convolutions(
    settings, atol, kept, single_head, no_dropout
):
    seit = learner(text_model(single_head), **settings)
    sources = ["1/0", "2/0", "1/1"]
    state = seit.start(seit.init(), adapters(*sources), 1)
    state = with_attention(scrambled(state, 1), 1, 0.7, -1.3, 2.0)
    given = data(4)

    plainly = seit.build_task_model(state, 1)
    for part in ("train", "valid"):
        x, y = getattr(given, part)
        work = seit.build_task_model(state, 1)
        seen = work.prepared(given)
        assert (seen.train.x.shape != given.train.x.shape) == kept
        assert seen.test is given.test
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
        work.model.train()
        found = work.forward(getattr(seen, part).x[order])
        expected = plain_logits(plainly, x[order])
        torch.testing.assert_close(found, expected, atol=10 * atol, rtol=1e-3)
        one, ours = loss_and_gradients(work, found, y[order])
        other, theirs = loss_and_gradients(plainly, expected, y[order])
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-3)
        assert {name.rpartition("/body")[0] for name in ours} >= {
            "branches/attention",
            "branches/bias",
            "branches/foreign",
        }
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], atol=atol, rtol=1e-2)
        assert float(ours[f"branches/attention/{CONVS[0]}"].abs().min()) > 1e-4


@pytest.mark.parametrize(("stored", "width"), [("float32", 4), ("float16", 2)])
def test_extremes_are_kept_up_to_the_limit_in_bytes(monkeypatch, stored, width):
    monkeypatch.setattr("clients.fedseit.MEGABYTE", 1)
    # 12 + 5 documents, 2 adapters, 9 filters, maximum and minimum.
    needed = 17 * 2 * 9 * 2 * width
    for limit in (needed, needed - 1):
        seit = learner(cache=stored, cache_megabytes=limit)
        state = seit.start(seit.init(), adapters("1/0", "2/0"), 1)
        work = seit.build_task_model(state, 1)
        work.prepared(data(1))
        assert (work.table is not None) == (limit == needed)


def test_a_second_round_computes_no_extremes_again_and_nothing_else_hits(monkeypatch):
    computed, extremes = [], BranchedModel.extremes

    def counted(work, x):
        computed.append(len(x))
        return extremes(work, x)

    monkeypatch.setattr(BranchedModel, "extremes", counted)
    seit, state = learner(epochs=1), learner().init()
    received = adapters("1/0", "2/0")
    for number in (1, 2):
        now = stage(1, number == 1, ends_task=False, number=number)
        state, _ = seit.train(Turn(state, received, now, data(1)))
        assert computed == [5, 5, 5, 2], "17 documents, in chunks"

    def hits(state, given, learner=seit):
        computed.clear()
        learner.build_task_model(state, 1).prepared(given)
        return not computed

    assert hits(state, data(1))
    assert not hits(state, data(2)), "other documents"
    others = seit.start(seit.init(), adapters("1/0", "2/1"), 1)
    assert not hits(others, data(1)), "other adapters"
    assert not hits(state, data(1), learner(cache="float16"))
    assert hits(state, data(1)), "used again, and so not the oldest"
    words = text_model()
    words.body.table = torch.from_numpy(word_table(seed=1))
    assert not hits(state, data(1), learner(words))
    assert hits(state, data(1)), "four are remembered"
    assert not hits(state, data(2)), "and no more"


def test_extremes_are_of_adapters_at_their_places():
    received = adapters("1/0")
    moved = {
        group: {
            name: replace(tensor, indices=tensor.size - 1 - tensor.indices[::-1])
            for name, tensor in tensors.items()
        }
        for group, tensors in received.items()
    }
    seit = learner()
    models = [
        seit.build_task_model(seit.start(seit.init(), payload, 1), 1)
        for payload in (received, moved, received)
    ]
    found, elsewhere, again = (model.digest(data(1).train.x) for model in models)
    assert found == again != elsewhere


# ---- the local model


def test_without_foreign_adapters_it_is_fedweit_bit_for_bit():
    seit = learner(lambda2=0.5)
    weit = FedWeit(FedWeitParams(lambda2=0.5, adapter_bits=32), text_model(), place())
    states = [each.init() for each in (seit, weit)]
    for task in (0, 1):
        done = [
            each.train(Turn(state, NOTHING, stage(task), data(task)))
            for each, state in zip((seit, weit), states, strict=True)
        ]
        states = [state for state, _ in done]
        ours, theirs = (update for _, update in done)
        assert exact(states[0]) == exact(states[1])
        assert exact(ours.payload) == exact(theirs.payload)
        assert ours.metrics == theirs.metrics


def test_a_task_begins_exactly_as_its_local_model():
    seit = learner()
    state, _ = seit.train(Turn(seit.init(), NOTHING, stage(0), data(1)))
    state = seit.start(state, adapters("1/0", "2/0"), 1)
    assert not any(g.startswith(("received/", "foreign/")) for g in state)
    work = seit.build_task_model(state, 1)
    local = TaskModel(text_model(), seit.params, 1, seit.task_tensors(state, 1))
    x = examples(8).x
    assert torch.equal(work.logits(x), local.logits(x))


# ---- learning


def test_attention_biases_and_projections_learn():
    seit, received = learner(epochs=6), adapters("1/0", "2/0")
    started = seit.start(seit.init(), received, 1)
    now = stage(1, ends_task=False)
    state, update = seit.train(Turn(seit.init(), received, now, data(1)))
    alpha = np.stack([state["branches/1"][f"attention/{name}"] for name in CONVS])
    assert np.abs(alpha - 1).min() > 0.01
    for n, source in enumerate(("1/0", "2/0")):
        weight = update.metrics[f"attention/{source}"]
        assert weight == pytest.approx(np.abs(alpha[:, n]).mean())
        assert state[f"library/{source}"] is received[f"adapters/{source}"], "frozen"
    for name in CONVS:
        assert np.abs(state["branches/1"][f"bias/{name}"]).max() > 1e-3
        before, after = (
            s["projections/1"][f"foreign/{name}"] for s in (started, state)
        )
        assert np.abs(after - before).max() > 1e-3
    assert np.abs(state["projections/1"]["local"][:, FEATURES:]).max() > 1e-3

    still = learner(attention_rate=0.0, initial_attention=-0.5)
    state, _ = still.train(Turn(still.init(), received, now, data(1)))
    for name in CONVS:
        assert state["branches/1"][f"attention/{name}"].tolist() == [-0.5, -0.5]


def test_projections_start_alike_at_every_client():
    base, received = learner().init()["base"], adapters("1/0", "2/0")
    found = initial_projections(base, 2, seed=0)
    for client in (0, 2):
        seit = FedSeit(FedSeitParams(), text_model(), place(client=client))
        begun = seit.start(seit.init(), received, 1)
        assert exact({"": begun["projections/1"]}) == exact({"": found})
    identity = np.hstack([np.eye(FEATURES), np.zeros((FEATURES, FEATURES))])
    np.testing.assert_array_equal(found["local"], identity)
    limit = np.sqrt(6 / (3 * FILTERS))
    for name in CONVS:
        values = found[f"foreign/{name}"]
        assert values.shape == (FILTERS, 2 * FILTERS)
        assert 0.7 * limit < np.abs(values).max() <= limit
    other = initial_projections(base, 2, seed=1)[f"foreign/{CONVS[0]}"]
    assert np.abs(other - found[f"foreign/{CONVS[0]}"]).max() > 0.1


def test_branches_are_in_numerical_order():
    seit = learner()
    state = seit.start(seit.init(), adapters("10/0", "2/10", "2/9"), 11)
    assert state["sources/11"]["foreign"].tolist() == [[2, 9], [2, 10], [10, 0]]


# ---- tasks of the past


@pytest.mark.parametrize("solver", ["closed", "gradient"])
def test_an_old_task_keeps_its_own_branches_and_predicts_as_before(solver):
    seit = learner(solver=solver, lambda1=0.0, lambda2=1000.0, threshold=0.0)
    state, _ = seit.train(Turn(seit.init(), NOTHING, stage(0), data(1)))
    state, _ = seit.train(
        Turn(state, adapters("1/0", "2/0"), stage(1, ends_task=False), data(2))
    )
    x = examples(4).x
    during = seit.predict(state, {}, 1, x)
    state = seit.finish_task(state, 1)
    before = seit.predict(state, {}, 1, x)
    torch.testing.assert_close(before, during, atol=1e-6, rtol=1e-6)

    after, _ = seit.train(Turn(state, adapters("1/0", "1/1", "2/1"), stage(2), data(3)))
    for group in ("sources/1", "branches/1", "projections/1", "library/2/0"):
        assert exact({"": after[group]}) == exact({"": state[group]})
    assert np.abs(after["base"][CONVS[0]] - state["base"][CONVS[0]]).max() > 0.001
    found = seit.predict(after, {}, 1, x)
    torch.testing.assert_close(
        found, before, atol=1e-4 if solver == "closed" else 0.04, rtol=0
    )
    work = seit.build_task_model(after, 2)
    newest = seit.predict(after, {}, 2, x)
    expected = plain_logits(work, x)
    torch.testing.assert_close(newest, expected, rtol=1e-4, atol=1e-4)


def test_a_client_that_comes_back_to_a_task_goes_on_with_its_branches():
    seit = learner(lambda1=0.0, lambda2=100.0, threshold=0.0)
    state = seit.init()
    for task, sources in ((1, ("1/0", "2/0")), (0, ("2/0", "2/1"))):
        now = stage(task, number=2 - task)
        state, _ = seit.train(Turn(state, adapters(*sources), now, data(task)))
    x = examples(4).x
    torch.testing.assert_close(
        seit.predict(seit.resume(state, 1), {}, 1, x), seit.predict(state, {}, 1, x)
    )
    other = seit.predict(state, {}, 0, x)

    newer = adapters("1/1", "1/2")
    after, update = seit.train(
        Turn(state, newer, stage(1, starts_task=False, number=3), data(1))
    )

    for group in ("sources/1", "library/1/0", "library/2/0", "branches/0"):
        assert exact({"": after[group]}) == exact({"": state[group]})
    for group in ("branches/1", "projections/1"):
        assert exact({"": after[group]}) != exact({"": state[group]})
    told = {name for name in update.metrics if name.startswith("attention/")}
    assert told == {"attention/1/0", "attention/2/0"}
    torch.testing.assert_close(seit.predict(after, {}, 0, x), other, atol=1e-4, rtol=0)


def test_a_foreign_adapter_that_was_handed_in_again_changes_no_task_of_the_past():
    seit = learner()
    received = adapters("1/0", "2/0")
    state, _ = seit.train(Turn(seit.init(), received, stage(0), data(1)))
    later = {**received, "adapters/1/0": received["adapters/2/0"]}
    begun = seit.start(state, later, 1)
    x = examples(4).x
    assert torch.equal(seit.predict(begun, {}, 0, x), seit.predict(state, {}, 0, x))


# ---- dense layer sharing


def shared_projections(count, value):
    return {
        "local": np.full((FEATURES, 2 * FEATURES), value, np.float32),
        **{
            f"foreign/{name}": np.full((FILTERS, count * FILTERS), value, np.float32)
            for name in CONVS
        },
    }


def test_projections_travel_with_dls_alone():
    received = adapters("1/0", "2/0")
    for dls, more in ((True, {"dense/2"}), (False, set())):
        seit = learner(dls=dls, epochs=1)
        state, update = seit.train(Turn(seit.init(), received, stage(1), data(1)))
        assert set(update.payload) == {"base", "adapters"} | more
        if dls:
            assert update.payload["dense/2"] is state["projections/1"]
        _, update = seit.train(Turn(seit.init(), NOTHING, stage(0), data(1)))
        assert set(update.payload) == {"base", "adapters"}, "no branches, no more"


def test_shared_projections_are_taken_over_for_the_same_k_by_old_tasks_and_new():
    seit = learner(dls=True, rate=UNTRAINED)
    received = adapters("1/0", "2/0")
    now = stage(1, ends_task=False)
    state, _ = seit.train(Turn(seit.init(), received, now, data(1)))
    own = initial_projections(state["base"], 2, seed=0)
    assert exact({"": state["projections/1"]}) == exact({"": own})
    again = stage(1, starts_task=False, ends_task=False, number=3)
    for count, expected in ((2, shared_projections(2, 0.25)), (3, own)):
        sent = {f"dense/{count}": shared_projections(count, 0.25)}
        new, _ = seit.train(Turn(state, {**NOTHING, **sent}, again, data(1)))
        assert exact({"": new["projections/1"]}) == exact({"": expected})
        new, _ = seit.train(Turn(state, {**received, **sent}, stage(2), data(2)))
        assert exact({"": new["projections/2"]}) == exact({"": expected})


def test_a_model_that_is_not_for_text_is_refused():
    model = create_model("small", tasks=2, classes=2, single_head=False, seed=0)
    with pytest.raises(ConfigError, match=r"model\.name: got 'SmallNet', expected k"):
        FedSeit(FedSeitParams(), model, place())
