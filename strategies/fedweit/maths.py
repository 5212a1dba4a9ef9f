"""The decomposed weights, the choice of foreign adapters, and the overlap of tasks.

Knowledge bases ``previous``, ``sample:K`` and ``all`` look only at clients and task
numbers (FedWeIT, Yoon et al., ICML 2021, algorithm 1). ``sit:K`` is Selective
Inter-client Transfer (Chaudhary et al., Findings of EMNLP 2022, section 2.3). It takes
the K adapters whose tasks overlap most with the new one, judged by cluster centres of
mean word vectors.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import AfterValidator

from fcl_flower.algorithms.base import Metrics
from fcl_flower.core.diagnostics import Diagnostic, Matrix, Table
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, ClientTask, Payload, specs

Overlap = Literal["centred-cosine", "mean-cosine", "thresholded"]
SUMMARY = {"centred-cosine": "mean", "mean-cosine": "mean", "thresholded": "centres"}
ATTENTION = re.compile(r"attention/([0-9]{1,9}/[0-9]{1,9})")
DENSITY = "adapter_density"
EXACT: Final = 32
"""The number of bits of adapters that are not rounded."""
BLOCK = 2**20
"""The number of cosines that are compared with the threshold at a time."""
LONGEST = 1 + 2**-8
"""The largest length of a vector of length 1 after its transport: bfloat16 keeps 8
bits."""


def decomposed(arrays: Arrays) -> dict[str, Array]:
    """Select the dense tensors of a model that are decomposed: the body's weights.

    Biases and the scales and statistics of normalisation have one axis. They belong to
    a task, as its head does.
    """
    return {
        name: tensor  # type: ignore[misc]
        for name, tensor in arrays.items()
        if name.startswith("body.") and len(tensor.shape) > 1
    }


def require_weights(weights: Arrays, method: str) -> None:
    """Refuse a model without weights to decompose."""
    if not weights:
        raise ConfigError(
            "model: got a body without trained weights, expected one that has "
            f"them: {method} decomposes nothing else"
        )


# ---- the choice of adapters


def _known(value: str) -> str:
    name, _, count = value.partition(":")
    if value in {"previous", "all", "none"}:
        return value
    if name in {"sample", "sit"} and count.isdecimal() and int(count) > 0:
        return value
    raise ValueError(
        "'previous', 'sample:K' or 'sit:K' with K above 0, 'all' or 'none'"
    )


SelectionRule = Annotated[str, AfterValidator(_known)]


def choose(
    rule: SelectionRule, adapters: Sequence[ClientTask], new: ClientTask, seed: int
) -> list[ClientTask]:
    """Choose the ``adapters``, ascending, that travel to ``new``, without SIT."""
    name, _, count = rule.partition(":")
    if name == "none":
        return []
    if name == "previous":
        return list({adapter.client: adapter for adapter in adapters}.values())
    if name == "sample" and int(count) < len(adapters):
        draw = np.random.default_rng(derive(seed, "knowledge", new.client, new.task))
        picked = draw.choice(len(adapters), size=int(count), replace=False)
        return [adapters[i] for i in sorted(picked)]
    return list(adapters)


def most_similar(scores: Mapping[str, float], count: int) -> list[str]:
    """Choose the ``count`` tasks ``c/t`` of the highest scores, in order of task."""
    ranked = sorted(scores, key=lambda name: (-scores[name], ClientTask.of(name)))
    return sorted(ranked[:count], key=ClientTask.of)


def centred(summaries: Array) -> Array:
    """Centre the summaries of tasks on the mean of all, and normalise them.

    Mean word vectors have most in common whatever the task; the rest tells tasks apart.
    Both shapes are (tasks, D). A task at the mean becomes zeros.
    """
    apart = summaries - summaries.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    directions: Array = np.divide(
        apart, lengths, out=np.zeros_like(apart), where=lengths > 0
    )
    return directions


def similarity(kind: Overlap, one: Array, other: Array, threshold: float) -> float:
    """Compute the domain overlap of two tasks (Chaudhary et al., section 2.3).

    - ``mean-cosine``: the mean cosine over all pairs of centres. It equals the inner
      product of the means (D,) of the normalised centres. So one vector for each task
      is an exact summary.
    - ``centred-cosine``, our choice: the inner product of the means after `centred`.
    - ``thresholded``: the mean over all pairs of normalised centres (Q, D), in which a
      cosine up to ``threshold`` counts as 0 (the released code).
    """
    if kind != "thresholded":
        return float(one.astype(np.float64) @ other.astype(np.float64))
    # The product is computed in blocks, since two tasks may have many centres.
    theirs = other.astype(np.float64).T
    rows = max(1, BLOCK // len(other))
    total = 0.0
    for start in range(0, len(one), rows):
        cosines = one[start : start + rows].astype(np.float64) @ theirs
        total += float(np.where(cosines > threshold, cosines, 0.0).sum())
    return total / (len(one) * len(other))


# ---- what clients report


def check_summary(kind: Overlap, answer: Payload, base: Arrays, most: int) -> None:
    """Refuse a reply that is no summary of a task; an empty one is a withheld summary.

    ``base`` is the server's, whose weights are as wide as word vectors. ``most`` is Q,
    the number of centres that a task may have.
    """
    if not answer:
        return
    name = SUMMARY[kind]
    if answer.keys() != {"summary"} or answer["summary"].keys() != {name}:
        raise WireError(f"query: expected one group summary with {name}")
    # The shape is checked first: a few bytes may claim any number of vectors.
    spec = specs(answer["summary"])[name]
    if spec.sparse or spec.dtype != np.float32:
        raise WireError(f"summary/{name}: expected dense float32 values")
    # Word vectors are as wide as the filters that slide over them.
    widths = {weight.shape[1] for weight in base.values()}
    shape = (1, *spec.shape) if name == "mean" else spec.shape
    if len(shape) != 2 or shape[1] not in widths or not 0 < shape[0] <= most:
        raise WireError(
            f"summary/{name}: expected 1 to {most} vectors of {sorted(widths)} "
            f"entries, got shape {spec.shape}"
        )
    # Squares are in double precision, since those of hostile values may exceed float32.
    rows = np.asarray(answer["summary"][name], np.float64).reshape(shape)
    if not np.linalg.norm(rows, axis=1).max() <= LONGEST:
        raise WireError(f"summary/{name}: expected vectors of length at most 1")


def check_metrics(metrics: Mapping[str, float], adapters: Collection[str]) -> None:
    """Refuse a density that is no fraction, and weights of none of the ``adapters``."""
    if not 0 <= (density := metrics.get(DENSITY, 0)) <= 1:
        raise WireError(f"{DENSITY}: got {density}, expected a value in [0, 1]")
    for source, weight in _attention(metrics).items():
        if source not in adapters or weight < 0:
            raise WireError(
                f"attention/{source}: got {weight}, expected a weight of at least 0 "
                f"for one of {len(adapters)} adapters"
            )


def _attention(metrics: Mapping[str, float]) -> dict[str, float]:
    matches = ((ATTENTION.fullmatch(name), value) for name, value in metrics.items())
    return {match[1]: value for match, value in matches if match}


def of_adapters(metrics: Metrics) -> dict[str, Diagnostic]:
    """Report the attention and the densities of the tasks that have some."""
    report: dict[str, Diagnostic] = {}
    attention = {task.name: _attention(scalars) for task, scalars in metrics.items()}
    if used := {task: weights for task, weights in attention.items() if weights}:
        report["attention"] = Matrix(
            title="Weight of each foreign adapter for each client and task",
            rows="who attends (client/task)",
            columns="whose adapter (client/task)",
            values=used,
            note="Mean |alpha| over the layers. An empty cell: the adapter was not "
            "offered for that task.",
        )
    dense = {
        t.name: (scalars[DENSITY],)
        for t, scalars in metrics.items()
        if DENSITY in scalars
    }
    if dense:
        report["adapters"] = Table(
            title="Density of each client's adapters",
            rows="client/task",
            columns=("density",),
            values=dense,
            note="Fraction of the entries that are kept when the task ends. From an "
            "adapter of density 0 no other client can learn anything.",
        )
    return report


def advice_on(diagnostics: Mapping[str, Diagnostic], lambda1: float, bits: int) -> str:
    """Name the setting that mends adapters that are empty, or full and not rounded.

    Full means more than half of the entries: float32 values and their places then take
    about as many bytes as a network.
    """
    table = diagnostics.get("adapters")
    if not isinstance(table, Table):
        return ""
    densities = [float(cells[0]) for cells in table.values.values()]
    empty = densities.count(0.0)
    full = sum(density > 0.5 for density in densities)
    if empty:
        return (
            f"{empty} of {len(densities)} adapters ended empty, from which no client "
            f"can learn: strategy.lambda1 was {lambda1:g}, and a tenth of it keeps "
            "more entries; so does training for more steps"
        )
    if full and bits == EXACT:
        return (
            f"{full} of {len(densities)} adapters ended with more than half of their "
            "entries, so that each takes about as many bytes as a network: "
            "strategy.adapter_bits = 5 keeps a sixth of them"
        )
    return ""


def of_overlaps(
    scores: dict[str, dict[str, float]], chosen: dict[str, list[str]]
) -> dict[str, Diagnostic]:
    """Report how much new tasks overlap with old ones, and which adapters are sent."""
    if not scores:
        return {}
    matrix = Matrix(
        title="Overlap of each new task with the finished tasks of other clients",
        rows="new task (client/task)",
        columns="finished task (client/task)",
        values=scores,
        marked=chosen,
        note="As the server scored it (FedSeIT, Chaudhary et al., Findings of EMNLP "
        "2022, section 2.3). A dot: chosen, that is, its adapter was sent. An empty "
        "cell: not a candidate.",
    )
    return {"overlap": matrix}
