"""LoRM on a tiny language model: merges by hand, and Hugging Face's own answers."""

import numpy as np
import pytest
import torch
import transformers
from language_models import saved_language_model

from clients.lorm import Lorm
from fcl_flower.algorithms.base import ClientContext, ServerContext, Turn
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.data.instructions import Instruction, chat_tokenizer
from fcl_flower.models.build import create_model
from fcl_flower.models.registry import LanguageParams
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import snapshot
from strategies.lorm import Lorm as Server
from strategies.lorm import LormParams, merged_layer

pytestmark = pytest.mark.usefixtures("one_thread")

COLOURS = (
    Instruction.of("what colour has the sky", "blue"),
    Instruction.of("grass", "green"),
)
ECHOES = (Instruction.of("say yes", "yes yes"), Instruction.of("say no", "no no"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved_language_model(tmp_path_factory.mktemp("lm"))


@pytest.fixture
def make(folder):
    def learner(client=0):
        settings = LanguageParams(encoder=folder, max_tokens=32, num_blocks=2, rank=2)
        model = create_model(
            "causal-lm", tasks=1, classes=1, single_head=True, seed=1, params=settings
        )
        training = Training(3, 2, 0.05, lr_patience=0)
        context = ClientContext(client=client, seed=0, training=training)
        return Lorm(LormParams(), model, context)

    return learner


@pytest.fixture
def server(make):
    model = make().model
    strategy = Server(LormParams(), ServerContext(0))
    return strategy, strategy.init(snapshot(model, model.shared_names()))


def data(folder, instructions):
    x, y = map(torch.from_numpy, chat_tokenizer(folder, 32).examples(instructions))
    return TaskData(Examples(x, y), Examples(x[:1], y[:1]), Examples(x, y), ())


def played(make, server, folder, rounds):
    """Play rounds of one client, (instructions, whether the task ends) each."""
    strategy, state = server
    learner, private = make(), {}
    for number, (instructions, ends) in enumerate(rounds, 1):
        first = number == 1 or rounds[number - 2][1]
        stage = TaskStage(number, 0, starts_task=first, ends_task=ends)
        received = strategy.send(state, stage, 0)
        task = data(folder, instructions)
        private, update = learner.train(Turn(private, received, stage, task))
        strategy.check_update(state, update)
        state = strategy.combine(state, stage, {0: update})
    return learner, state, private, update


ONE_ROUND = [(COLOURS, False)]


def test_a_head_that_is_frozen_does_not_travel(make, server, folder):
    strategy, first = server
    learner, state, _, update = played(make, server, folder, ONE_ROUND)
    assert sorted(update.payload) == ["adapters", "grams"]
    stage = TaskStage(2, 0, starts_task=False, ends_task=True)
    sent = strategy.send(state, stage, 0)
    assert sorted(sent) == ["adapters/now", "grams/now", "meta/task"]
    assert np.isfinite(update.metrics["loss"])
    assert np.isfinite(update.metrics["valid_loss"])
    # B learned first, from 0.
    changes = len(learner.model.body.changes)
    assert len(update.payload["adapters"]) == changes == 4
    assert all(name.endswith(".up") for name in update.payload["adapters"])

    head = {"classes": np.zeros(1, np.int64)}
    hostile = Update({**update.payload, "heads": head}, 2)
    with pytest.raises(WireError, match=r"groups \[.*: expected adapters, grams"):
        strategy.check_update(first, hostile)


def test_grams_count_each_token_of_prompts_and_answers_once(make, server, folder):
    learner, _, _, update = played(make, server, folder, ONE_ROUND)
    body, entered = learner.model.body, []
    layers = [
        block.get_submodule(name)
        for block in body.blocks[1:]
        for name in ("self_attn.q_proj", "self_attn.v_proj")
    ]
    inputs = {layer: [] for layer in layers}
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, given: inputs[layer].append(given[0][0].detach())
        )
        for layer in layers
    ]
    x = data(folder, COLOURS).train.x
    for row in x:  # each alone, without padding
        body(row[None, row != 0])
        entered.append(int((row != 0).sum()))
    for hook in hooks:
        hook.remove()
    grams = update.payload["grams"]
    assert int(grams["tokens"]) == sum(entered) < x.numel()
    for place, layer in enumerate(layers):
        rows = torch.cat(inputs[layer]).double()
        expected = rows.square().mean(0)
        np.testing.assert_allclose(grams[f"body.adapters.{place}"], expected, rtol=1e-4)


def test_answers_are_those_of_weights_with_the_merged_changes(make, server, folder):
    rounds = [(COLOURS, False), (COLOURS, True), (ECHOES, False), (ECHOES, True)]
    learner, state, private, _ = played(make, server, folder, rounds)
    strategy, _ = server
    stage = TaskStage(5, 0, starts_task=True, ends_task=False)
    received = strategy.send(state, stage, 0)
    x = data(folder, (*COLOURS, *ECHOES)).test.x
    logits = learner.predict(private, received, 0, x)

    whole = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    names = ("self_attn.q_proj", "self_attn.v_proj")
    layers = [
        whole.model.layers[number].get_submodule(name)
        for number in (1, 2)
        for name in names
    ]
    for place, layer in enumerate(layers):
        down, up = merged_layer({**private, **received}, f"body.adapters.{place}")
        assert np.abs(up @ down).max() > 1e-3
        change = torch.from_numpy((up @ down).astype(np.float32))
        layer.weight.data += change
    for row, got in zip(x, logits, strict=True):
        ids = row[row != 0].abs() - 1
        answer = int((row < 0).sum())
        expected = whole(input_ids=ids[None]).logits[0, -answer - 1 : -1].T
        torch.testing.assert_close(got[:, :answer], expected, atol=1e-4, rtol=1e-4)
    network = learner.predictor(private, received, 0)
    torch.testing.assert_close(network(x), logits, atol=1e-4, rtol=1e-4)
