"""DISCO: subspaces by hand, prompts that choose by themselves, hostile identities."""

import numpy as np
import pytest
import torch
from language_models import saved_language_model

from fcl_flower.algorithms.base import ClientContext, ModelShape, ServerContext
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.instructions import Instruction, chat_tokenizer
from fcl_flower.models.build import create_model
from fcl_flower.models.registry import LanguageParams
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.disco import Disco, DiscoParams, cosines, identities, nearest

STAGE = TaskStage(1, 0, starts_task=True, ends_task=False)
LAYER = "body.adapters.0"


def strategy(**params):
    context = ServerContext(0, ModelShape(features=3))
    return Disco(DiscoParams(**params), context)


def factors(value):
    full = np.full((2, 2), value, np.float32)
    return {f"{LAYER}.down": full, f"{LAYER}.up": full}


def update(value, token, examples):
    token = np.asarray(token, np.float32)
    return Update({"base": factors(value), "identity": {"token": token}}, examples)


def learned(updates, **params):
    server = strategy(**params)
    state = server.init(factors(9.0))
    for one in updates.values():
        server.check_update(state, one)
    return server, server.combine(state, STAGE, updates)


def test_like_clients_share_a_subspace_and_unlike_ones_do_not():
    alike = {0: update(1.0, [1, 0, 0], 30), 2: update(2.0, [1, 0.1, 0], 10)}
    server, state = learned({**alike, 1: update(5.0, [0, 0, 2], 7)})

    assert sorted(state) == [
        "fresh",
        *(f"{k}/{n}" for k in ("identity", "subspace") for n in (0, 1)),
    ]
    assert np.allclose(state["subspace/0"][f"{LAYER}.up"], 1.25)  # (30 + 2 * 10) / 40
    assert np.allclose(state["subspace/1"][f"{LAYER}.up"], 5.0)
    assert np.allclose(identities(state), [[1, 0.025, 0], [0, 0, 2]])
    assert state["identity/0"]["count"] == 40
    # A later update of the second kind moves its subspace alone.
    after = server.combine(state, STAGE, {1: update(8.0, [0, 0.1, 1], 7)})
    assert np.allclose(after["subspace/1"][f"{LAYER}.down"], 8.0)
    assert after["subspace/0"] == state["subspace/0"]
    assert np.allclose(identities(after)[1], [0, 0.05, 1.5])


def test_a_client_without_examples_opens_no_subspace():
    _, state = learned({0: update(1.0, [1, 0, 0], 3), 1: update(5.0, [0, 0, 2], 0)})
    assert "subspace/1" not in state


def test_where_all_subspaces_are_taken_the_nearest_is_joined():
    known, params = np.eye(3)[:2], DiscoParams(subspaces=2)
    assert nearest(np.array([0.3, 0.4, 1.0]), known, params) == 1
    assert nearest(np.array([0.3, 0.4, 1.0]), known, DiscoParams()) == 2
    assert nearest(np.array([1.0, 0.2, 0.0]), known, DiscoParams()) == 0
    assert nearest(np.ones(3), np.zeros((0, 3)), params) == 0


@pytest.mark.parametrize(
    "token", [[0, 0, 0], [1, 0], np.ones((1, 3)), np.ones(3, np.float64)]
)
def test_an_identity_that_is_none_is_refused(token):
    server = strategy()
    odd = Update({"base": factors(1.0), "identity": {"token": np.asarray(token)}}, 3)
    with pytest.raises(WireError, match="token"):
        server.check_update(server.init(factors(0.0)), odd)


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    folder = saved_language_model(tmp_path_factory.mktemp("lm"))
    model = create_model(
        "causal-lm",
        tasks=1,
        classes=1,
        single_head=True,
        seed=1,
        params=LanguageParams(encoder=folder, max_tokens=32, rank=2),
    )
    context = ClientContext(0, 0, Training(1, 2, 0.01))
    from clients.disco import Disco as Learner

    learner = Learner(DiscoParams(temperature=0.2), model, context)
    texts = ["what colour has the sky", "say yes twice", "what is grass"]
    asked = [Instruction.of(text, "blue and white") for text in texts]
    x, _ = chat_tokenizer(folder, 32).examples(asked)
    return learner, torch.from_numpy(x)


def drawn(learner, tokens):
    rng = np.random.default_rng(4)
    shapes = snapshot(learner.model, learner.model.shared_names())
    received = {}
    for number, token in enumerate(tokens):
        received[f"subspace/{number}"] = {
            name: rng.normal(size=np.shape(a)).astype(np.float32) / 2
            for name, a in shapes.items()
        }
        received[f"identity/{number}"] = {"token": np.asarray(token, np.float32)}
    return received


def test_each_prompt_has_the_mean_of_subspaces_that_its_words_choose(learner):
    learner, x = learner
    body = learner.model.body
    embedded = body.embed(x).numpy()
    received = drawn(learner, [embedded[0], embedded[1]])
    logits = learner.predict({}, received, 0, x)

    weights = cosines(embedded, embedded[:2]) / 0.2
    weights = np.exp(weights) / np.exp(weights).sum(1, keepdims=True)
    assert weights[0, 0] > 0.5 > weights[1, 0]
    for row in range(3):  # one at a time, each with weights composed by hand
        for place, change in enumerate(body.changes):
            name = f"body.adapters.{place}"
            total = sum(
                w
                * received[f"subspace/{k}"][f"{name}.up"]
                @ received[f"subspace/{k}"][f"{name}.down"]
                for k, w in enumerate(weights[row])
            )
            change.fixed = (torch.tensor(total, dtype=torch.float32),)
        with torch.no_grad():
            alone = learner.model(x[row : row + 1], 0)
        for change in body.changes:
            change.fixed = ()
        assert torch.allclose(logits[row : row + 1], alone, atol=1e-4)
        single = learner.predict({}, received, 0, x[row : row + 1])
        assert torch.allclose(single, logits[row : row + 1], atol=1e-4)


def test_words_of_the_template_do_not_make_prompts_alike(learner):
    learner, x = learner
    table = learner.model.body.encoder.get_input_embeddings().weight.detach()
    from language_models import numbers

    words = table[numbers("what colour has the sky")].mean(0)
    assert torch.allclose(learner.model.body.embed(x)[0], words, atol=1e-6)
