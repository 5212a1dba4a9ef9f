"""Texts that a language model writes with a learner's weights, and their scores."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from fcl_flower.core.errors import require_extra
from fcl_flower.core.types import Payload
from fcl_flower.data.examples import Examples, batches
from fcl_flower.data.instructions import NO_LABEL, ChatTokenizer
from fcl_flower.models.language import LanguageModel

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import ClientLearner

BATCH = 16
"""The number of prompts that are answered together."""

T = TypeVar("T")


def while_predicting(
    learner: "ClientLearner[Any]",
    state: Payload,
    received: Payload,
    task: int,
    call: Callable[[LanguageModel], T],
    rows: Sequence[Sequence[int]] = ((0,),),
) -> T:
    """Call a function of the body while the learner predicts with it.

    A learner loads its weights for that call alone. ``rows`` are the prompts' tokens,
    on which the weights may depend.
    """
    results: list[T] = []

    def once(network: nn.Module, _: object) -> None:
        if not results:
            results.append(call(cast(LanguageModel, network.body)))

    handle = learner.model.register_forward_pre_hook(once)
    # A prediction is for a prompt with an answer: here a token that is never looked at.
    longest = max(map(len, rows))
    samples = [[n + 1 for n in r] + [-1] + [0] * (longest - len(r)) for r in rows]
    sample = torch.tensor(samples, device=learner.context.device)
    try:
        with torch.no_grad():
            learner.predict(state, received, task, sample)
    finally:
        handle.remove()
    return results[0]


def rouge_l(
    learner: "ClientLearner[Any]",
    state: Payload,
    received: Payload,
    task: int,
    examples: Examples,
    tokenizer: ChatTokenizer,
) -> float:
    """Measure ROUGE-L of the answers that greedy decoding writes, from 0 to 1.

    It is the mean F-measure of the longest common subsequence of words, with stemming
    (Lin, ACL 2004 workshop, https://aclanthology.org/W04-1013), by the package
    rouge-score. An answer has at most twice the tokens of the longest right one. NaN
    without examples.
    """
    with require_extra("llm", "federation.measure=rouge-l"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer, scores = RougeScorer(["rougeL"], use_stemmer=True), []
    for x, y in batches(examples, BATCH, seed=None):
        prompts = [(row[row > 0] - 1).tolist() for row in x]
        generate = partial(
            LanguageModel.generate,
            prompts=prompts,
            end=tokenizer.end,
            max_new_tokens=2 * y.shape[1],
        )
        written = while_predicting(learner, state, received, task, generate, prompts)
        for numbers, answer in zip(written, y, strict=True):
            right = tokenizer.text(answer[answer != NO_LABEL].tolist())
            found = scorer.score(right, tokenizer.text(numbers))
            scores.append(found["rougeL"].fmeasure)
    return sum(scores) / len(scores) if scores else float("nan")
