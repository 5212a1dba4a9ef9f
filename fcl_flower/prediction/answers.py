"""The answers of a trained language model to prompts."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar, cast

from fcl_flower.core.errors import config_error
from fcl_flower.data.instructions import ChatTokenizer, Message
from fcl_flower.models.language import LanguageModel
from fcl_flower.prediction.model import Model
from fcl_flower.training.generation import BATCH, while_predicting

T = TypeVar("T")


def answers(
    model: Model,
    prompts: Sequence[str | Sequence[Message]],
    *,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """Write an answer to each prompt with the weights that a client predicts with.

    Args:
        model: model of a run with ``causal-lm``.
        prompts: texts of a user; or conversations of (role, content).
        max_new_tokens: largest number of an answer's tokens, at least 1. An answer
            also ends where the context does.
        temperature: 0 for the likeliest token at each place; above 0 tokens are drawn
            by the softmax of the logits divided by it.
        seed: seed of the draws.

    Raises:
        ConfigError: the model is no language model, or a prompt is empty or longer than
            the model's context.
    """
    tokenizer = model.run.tokenizer
    if not isinstance(tokenizer, ChatTokenizer):
        expected = "a run of causal-lm, which answers prompts"
        raise config_error("prompt", model.run.config.model.name, expected)
    for key, value, expected in (
        ("max-new-tokens", max_new_tokens, "at least 1"),
        ("temperature", temperature, "at least 0"),
    ):
        if value < (key == "max-new-tokens"):
            raise config_error(key, value, expected)
    written: list[str] = []
    context = cast(LanguageModel, model.learner.model.body).context
    for at in range(0, len(prompts), BATCH):
        rows = []
        for prompt in prompts[at : at + BATCH]:
            messages = (("user", prompt),) if isinstance(prompt, str) else prompt
            if not all(content.strip() for _, content in messages):
                raise config_error("prompt", prompt, "a text that is not empty")
            rows.append(tokenizer.prompt(messages))
            if (size := len(rows[-1])) >= context:
                expected = f"fewer than the {context} tokens of a context, not {size}"
                raise config_error("prompt", messages[-1][1][:40], expected)
        generate = partial(
            LanguageModel.generate,
            prompts=rows,
            end=tokenizer.end,
            max_new_tokens=min(max_new_tokens, context - max(map(len, rows))),
            temperature=temperature,
            seed=seed + at,
        )
        written += map(tokenizer.text, with_weights(model, generate, rows))
    return written


def with_weights(
    model: Model,
    call: Callable[[LanguageModel], T],
    rows: Sequence[Sequence[int]] = ((0,),),
) -> T:
    """Call a function of the body with the weights that predict; see `rows` there."""
    learner, task = model.learner, model.number(None)
    return while_predicting(learner, model.state, model.received, task, call, rows)
