"""CODA-Prompt, server side: a task's components and head rows are averaged.

Smith et al., CVPR 2023, https://arxiv.org/abs/2211.13218, section 4, as their released
code computes. The average over clients follows fed-mammoth
(https://arxiv.org/abs/2410.17961, where the method is a baseline). There the whole pool
and head travel. All clients have the same values except for the components of the
current task and the rows of its classes. The mean does not change these values, so here
they do not travel.
"""

import math
from typing import Final

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params, Updates
from fcl_flower.algorithms.finished_tasks import (
    HELD,
    TASK,
    SendsFinishedTasks,
    as_count,
    count_in,
    unsent,
    with_held,
)
from fcl_flower.algorithms.head_rows import (
    BIAS,
    WEIGHT,
    check_rows,
    rows_classes,
    rows_of,
)
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import (
    Array,
    Arrays,
    Payload,
    TaskStage,
    Update,
)
from fcl_flower.core.update_checks import same_tensors


class CodaPromptParams(Params):
    """Hyper-parameters of CODA-Prompt; those of the prompts are the model's."""

    ortho_weight: float = Field(0.0, ge=0)
    """The weight of the penalty that keeps components orthogonal, at least 0: the
    paper's lambda, the code's mu."""


ALGORITHM = Algorithm(
    name="coda-prompt",
    server="strategies.coda_prompt:CodaPrompt",
    client="clients.coda_prompt:CodaPrompt",
    params_type=CodaPromptParams,
    summary="a frozen transformer to whose prompts each task adds components",
    paper="Smith et al., CVPR 2023",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("prompted-transformer", "prompted-vit"),
    needs_single_head=True,
    returns_to_tasks=False,
)


PROMPTS: Final = "prompts"
NOW: Final = "prompts/now"
HEADS: Final = "heads"
ROWS_OLD: Final = "heads/old"
ROWS_NOW: Final = "heads/now"
LEARNED: Final = "meta/learned"

PROMPTED: Final = (
    "prompted-transformer or prompted-vit, whose prompts CODA-Prompt trains"
)
_KINDS = (".keys", ".attention", ".prompts")


# ---- what both sides share


def finished_prompts(payload: Payload) -> list[str]:
    """List the groups of the components of all finished tasks, in order."""
    return [f"{PROMPTS}/{task}" for task in range(count_in(payload[TASK], "finished"))]


def learned_prompts(payload: Payload) -> list[str]:
    """List the trained groups; the last one may be the current task's."""
    now = [NOW] if count_in(payload[TASK], "rounds") else []
    return [*finished_prompts(payload), *now]


def orthonormal_rows(old: Array, number: int, rng: np.random.Generator) -> Array:
    """Draw orthonormal rows that are orthogonal to old rows.

    The function uses QR. The released code subtracts projections on old rows one by
    one. Once training has turned the old rows, that leaves new rows that are not
    orthogonal to them. If the width has no room for all rows, the oldest are left out.

    Args:
        old: shape (rows, width); the rows need not be orthonormal.
        number: number of new rows, at most the width.
        rng: source of the random numbers.

    Returns:
        float32, shape (number, width).
    """
    width = old.shape[1]
    kept = np.asarray(old[max(0, len(old) + number - width) :], np.float64)
    drawn = np.concatenate([kept, rng.normal(size=(number, width))])
    basis, _ = np.linalg.qr(drawn.T)
    return np.asarray(basis[:, len(kept) :].T, np.float32)


# ---- the server side


class CodaPrompt(SendsFinishedTasks[CodaPromptParams]):
    """A strategy that keeps the components of each task, and one head.

    A client receives the components of finished tasks once, likewise the rows of their
    classes (``heads/old``). In each round it receives the current components
    (``prompts/now``) and the rows of classes that some client has reported
    (``heads/now``). It sends ``prompts`` and ``heads``, the rows of its classes.

    State:

    - ``prompts/T`` of each finished task T and of ``now``.
    - ``heads``: the whole head.
    - ``meta/learned``: ``task``, int64, (classes,), the last task in which a row was
      learned, -1 for none.
    - ``meta/held``, and ``meta/task`` (``rounds``, int64, of the current task so far;
      ``finished``).
    """

    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        heads = {name: model[name] for name in (WEIGHT, BIAS) if name in model}
        pools = {name: np.asarray(model[name]) for name in model if name not in heads}
        odd = [name for name in pools if not name.endswith(_KINDS)]
        if odd or not pools or len(heads) < 2:
            shared = f"one that shares {odd[0]}" if odd else "one without prompts"
            raise config_error("model.name", shared, PROMPTED)
        never = np.full(len(np.asarray(model[BIAS])), -1, np.int64)
        return {
            **self._new_task({NOW: pools}, 0),
            HEADS: heads,
            LEARNED: {"task": never},
            HELD: {},
        }

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        tasks, learned = unsent(state, client), np.asarray(state[LEARNED]["task"])
        sent = {f"{PROMPTS}/{task}": state[f"{PROMPTS}/{task}"] for task in tasks}
        old = np.flatnonzero(np.isin(learned, tasks))
        if len(old):
            sent[ROWS_OLD] = rows_of(state[HEADS], old)
        rows = rows_of(state[HEADS], np.flatnonzero(learned == tasks.stop))
        return {NOW: state[NOW], ROWS_NOW: rows, TASK: state[TASK], **sent}

    @override
    def send_to_predict(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        sent = self.send(state, stage, client)
        fresh = NOW not in learned_prompts(state)
        return {g: arrays for g, arrays in sent.items() if g != NOW or not fresh}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        if payload.keys() != {PROMPTS, HEADS}:
            raise WireError(f"groups {sorted(payload)}: expected heads and prompts")
        same_tensors({PROMPTS: payload[PROMPTS]}, {PROMPTS: state[NOW]})
        check_rows(HEADS, payload[HEADS], state[HEADS])
        if not len(rows_classes(payload[HEADS])):
            raise WireError(f"{HEADS}: expected whole rows of at least one class")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        task, before = state[TASK], {PROMPTS: state[NOW], HEADS: state[HEADS]}
        mean = self.aggregation.combine_groups(updates, before)
        finished = count_in(task, "finished")
        learned = np.asarray(state[LEARNED]["task"]).copy()
        for update in updates.values():
            if update.num_examples:
                learned[rows_classes(update.payload[HEADS])] = finished
        new: dict[str, Arrays] = {
            **with_held(state, updates),
            NOW: mean[PROMPTS],
            HEADS: mean[HEADS],
            TASK: {**task, "rounds": as_count(count_in(task, "rounds") + 1)},
            LEARNED: {"task": learned},
        }
        if not stage.ends_task:
            return new
        ended = {**new, f"{PROMPTS}/{finished}": mean[PROMPTS]}
        return {**ended, **self._new_task(ended, finished + 1)}

    def _new_task(self, state: Payload, number: int) -> Payload:
        """Begin a task with components that are orthonormal to all earlier ones."""
        rng = np.random.default_rng(self.context.derive("coda-prompt", number))
        pools = dict[str, Array]()
        for name in sorted(state[NOW]):
            shape = state[NOW][name].shape
            width = math.prod(shape[1:])
            older = [
                np.asarray(state[f"{PROMPTS}/{task}"][name]).reshape(-1, width)
                for task in range(number)
            ]
            old = np.concatenate([np.zeros((0, width), np.float32), *older])
            pools[name] = orthonormal_rows(old, shape[0], rng).reshape(shape)
        return {NOW: pools, TASK: {"rounds": as_count(0), "finished": as_count(number)}}
