"""The knowledge base: which adapters of other clients' finished tasks a client gets.

``previous``, ``sample:K`` and ``all`` look at nothing but who and when (FedWeIT,
algorithm 1). ``sit:K`` is Selective Inter-client Transfer (Chaudhary et al., Findings
of EMNLP 2022, section 2.3): the K whose tasks overlap most with the new one, judged
by cluster centres of mean word vectors.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator

from fcl_flower.algorithms.base import Metrics
from fcl_flower.core.diagnostics import Diagnostic, Matrix, Table
from fcl_flower.core.errors import WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    Array,
    Arrays,
    ClientTask,
    Payload,
    TaskStage,
    client_tasks,
    specs,
)


def is_decomposed(name: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a tensor of the shared body is a weight with output channels.

    Biases and the scales and statistics of normalisation have one axis; they belong
    to a task, as its head does.
    """
    return name.startswith("body.") and len(shape) > 1


def decomposed(arrays: Arrays) -> dict[str, Array]:
    """Select the dense tensors of a model that are decomposed, by name."""
    return {
        name: tensor  # type: ignore[misc]
        for name, tensor in arrays.items()
        if is_decomposed(name, tuple(tensor.shape))
    }


ATTENTION = re.compile(r"attention/([0-9]{1,9}/[0-9]{1,9})")
DENSITY = "adapter_density"


def check_metrics(metrics: Mapping[str, float], known: Collection[str]) -> None:
    """Refuse weights and densities that are none.

    Args:
        metrics: of an update.
        known: the tasks whose adapters the server has, as ``client/task``.

    Raises:
        WireError: an attention weight is negative, or is that of an adapter that does
            not exist; or a density is no fraction.
    """
    if not 0 <= (density := metrics.get(DENSITY, 0)) <= 1:
        raise WireError(f"{DENSITY}: got {density}, expected a value in [0, 1]")
    for source, weight in _attention(metrics).items():
        if source not in known or weight < 0:
            raise WireError(
                f"attention/{source}: got {weight}, expected a weight of at least 0 "
                f"for one of {len(known)} adapters"
            )


def of_adapters(metrics: Metrics) -> dict[str, Diagnostic]:
    """Report the attention and the densities of the tasks that have some."""
    found: dict[str, Diagnostic] = {}
    attention = {task.name: _attention(of) for task, of in metrics.items()}
    if used := {task: weights for task, weights in attention.items() if weights}:
        found["attention"] = Matrix(
            title="Weight of each foreign adapter for each client and task",
            rows="who attends (client/task)",
            columns="whose adapter (client/task)",
            values=used,
            note="Mean |alpha| over the layers. An empty cell: the adapter was not "
            "offered for that task.",
        )
    dense = {t.name: (of[DENSITY],) for t, of in metrics.items() if DENSITY in of}
    if dense:
        found["adapters"] = Table(
            title="Density of each client's adapters",
            rows="client/task",
            columns=("density",),
            values=dense,
            note="Fraction of the entries that are kept when the task ends. From an "
            "adapter of density 0 no other client can learn anything.",
        )
    return found


def of_overlaps(
    scores: Mapping[str, Mapping[str, float]], chosen: Mapping[str, list[str]]
) -> dict[str, Diagnostic]:
    """Report how much new tasks overlap with old ones of other clients.

    Args:
        scores: by new task and candidate, both as ``client/task``.
        chosen: the candidates whose adapters are sent, by new task.
    """
    if not scores:
        return {}
    matrix = Matrix(
        title="Overlap of each new task with the finished tasks of other clients",
        rows="new task (client/task)",
        columns="finished task (client/task)",
        values={task: dict(of_task) for task, of_task in scores.items()},
        marked=dict(chosen),
        note="As the server scored it (FedSeIT, Chaudhary et al., Findings of EMNLP "
        "2022, section 2.3). A dot: chosen, that is, its adapter was sent. An empty "
        "cell: not a candidate.",
    )
    return {"overlap": matrix}


def _attention(metrics: Mapping[str, float]) -> dict[str, float]:
    matches = ((ATTENTION.fullmatch(name), value) for name, value in metrics.items())
    return {match[1]: value for match, value in matches if match}


Overlap = Literal["centred-cosine", "mean-cosine", "thresholded"]
SUMMARY = {
    "centred-cosine": "mean",
    "mean-cosine": "mean",
    "thresholded": "centres",
}
OVERLAP = "meta/overlap"
BEGUN = "meta/begun"
BLOCK = 2**20
"""Cosines that are compared with the threshold at a time."""
LONGEST = 1 + 2**-8
"""A vector of length 1 may get longer on its way: bfloat16 keeps 8 bits."""


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


Adapter: TypeAlias = ClientTask
"""Whose adapter, and of which of its tasks."""


class AdapterSelection(NamedTuple):
    """Who gets whose adapters, by a policy; it looks at the server's state.

    With SIT the state also has ``summaries/C/T``, ``meta/overlap/C/T`` (scores of that
    task by candidate ``c/t``) and ``meta/begun`` (round of its query by task ``C/T``).

    Attributes:
        policy: such as ``previous`` or ``sit:3``.
        overlap: how SIT compares tasks.
        threshold: of the thresholded score.
        seed: the run's seed, for ``sample``.
    """

    policy: str
    overlap: Overlap
    threshold: float
    seed: int

    @property
    def sit(self) -> int:
        """K of ``sit:K``; 0 for the other policies."""
        name, _, count = self.policy.partition(":")
        return int(count) if name == "sit" else 0

    def chosen(
        self, state: Payload, new: Adapter, known: Sequence[Adapter]
    ) -> list[Adapter]:
        """Choose the adapters that travel to a new task.

        Args:
            state: of the server.
            new: the task.
            known: its `candidates`.
        """
        if not self.sit:
            return chosen(self.policy, known, new, self.seed)
        scores = state.get(new.group(OVERLAP), {})
        ranked = [
            (Adapter.of(name), float(np.asarray(v))) for name, v in scores.items()
        ]
        return most_similar(ranked, self.sit)

    def aggregate_query(
        self, state: Payload, stage: TaskStage, answers: Mapping[int, Payload]
    ) -> Payload:
        """Add new tasks' summaries to the state, and what they overlap with.

        A client that withholds its summary gets no adapters.
        """
        known = {client: answer for client, answer in answers.items() if answer}
        tasks = [Adapter(client, stage.task) for client in known]
        summaries = {t.group("summaries"): known[t.client]["summary"] for t in tasks}
        state = {**state, **summaries}
        scores = {task.group(OVERLAP): self._overlaps(state, task) for task in tasks}
        begun = {t.name: np.asarray(stage.round) for t in tasks}
        return {**state, **scores, BEGUN: {**state.get(BEGUN, {}), **begun}}

    def overlaps(self, state: Payload, stage: TaskStage) -> dict[str, Diagnostic]:
        """Report the scores of the tasks that began in this round, and the chosen."""
        begun = [
            Adapter.of(name)
            for name, number in state.get(BEGUN, {}).items()
            if int(np.asarray(number)) == stage.round
        ]
        scores = {
            task.name: {
                name: float(np.asarray(score))
                for name, score in state[task.group(OVERLAP)].items()
            }
            for task in sorted(begun)
        }
        chosen = {
            task.name: [one.name for one in self.chosen(state, task, [])]
            for task in sorted(begun)
        }
        return of_overlaps(scores, chosen)

    def _overlaps(self, state: Payload, new: Adapter) -> Arrays:
        name = SUMMARY[self.overlap]
        told = {
            group: np.asarray(tensors[name])
            for group, tensors in state.items()
            if group.startswith("summaries/")
        }
        if self.overlap == "centred-cosine":
            told = dict(zip(told, centred(np.stack(list(told.values()))), strict=True))
        mine, scores = told[new.group("summaries")], {}
        for other in candidates(state, new):
            if other.group("summaries") in told:
                theirs = told[other.group("summaries")]
                score = similarity(self.overlap, mine, theirs, self.threshold)
                scores[other.name] = np.asarray(score)
        return scores


def uploaded_groups(state: Payload) -> list[Adapter]:
    """List whose adapters the server has, in one order."""
    return client_tasks(state, "adapters")


def candidates(state: Payload, new: Adapter) -> list[Adapter]:
    """List the adapters of other clients' finished tasks: never the client's own.

    Whatever has been handed in: clients have orders of their own, so that the number
    of another client's task says nothing, least of all when some are slower.
    """
    return [a for a in uploaded_groups(state) if a.client != new.client]


def chosen(
    knowledge: str, known: Sequence[Adapter], new: Adapter, seed: int
) -> list[Adapter]:
    """Choose those of ``known`` that travel to ``new``, by all policies but SIT."""
    name, _, count = knowledge.partition(":")
    if name == "none":
        return []
    if name == "previous":
        last = {a.client: a for a in sorted(known)}
        return list(last.values())
    if name == "sample" and int(count) < len(known):
        draw = np.random.default_rng(derive(seed, "knowledge", new.client, new.task))
        picked = draw.choice(len(known), size=int(count), replace=False)
        return [known[i] for i in sorted(picked)]
    return list(known)


def most_similar(scores: Sequence[tuple[Adapter, float]], count: int) -> list[Adapter]:
    """Choose the ``count`` adapters of the highest scores, in order of adapter."""
    ranked = sorted(scores, key=lambda pair: (-pair[1], pair[0]))
    return sorted(adapter for adapter, _ in ranked[:count])


def centred(summaries: Array) -> Array:
    """Centre the summaries of tasks on the mean of all, and normalise them.

    Mean word vectors have most in common whatever the task; what tells tasks apart is
    the rest.

    Args:
        summaries: shape (tasks, D), of all tasks that clients have begun.

    Returns:
        The same shape, float64: rows of length 1, or 0 for a task that is the mean.
    """
    apart = summaries - summaries.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(apart, axis=1, keepdims=True)
    directions: Array = np.divide(
        apart, lengths, out=np.zeros_like(apart), where=lengths > 0
    )
    return directions


def similarity(kind: Overlap, one: Array, other: Array, threshold: float) -> float:
    """Compute the domain overlap of two tasks (section 2.3).

    ``mean-cosine``: the mean cosine over all pairs of centres. It equals the inner
    product of the means of the normalised centres, so that one vector a task is an
    exact summary. ``centred-cosine``, of ours: the inner product of what `centred`
    makes of the means. ``thresholded``: the same mean, in which a cosine up to
    ``threshold`` counts as 0 (the released code); this needs the centres.

    Args:
        kind: which score.
        one: a summary: mean (D,), its direction, or normalised centres (Q, D).
        other: the summary of another task.
        threshold: of ``thresholded``.
    """
    if kind != "thresholded":
        return float(one.astype(np.float64) @ other.astype(np.float64))
    # In blocks: many centres of two tasks would make a matrix without bound.
    theirs = other.astype(np.float64).T
    rows = max(1, BLOCK // len(other))
    total = 0.0
    for start in range(0, len(one), rows):
        cosines = one[start : start + rows].astype(np.float64) @ theirs
        total += float(np.where(cosines > threshold, cosines, 0.0).sum())
    return total / (len(one) * len(other))


def check_summary(kind: Overlap, answer: Payload, base: Arrays, most: int) -> None:
    """Refuse what is no summary of a task; nothing at all is one that is withheld.

    Args:
        kind: what was asked for.
        answer: what came.
        base: the server's, whose weights are as wide as word vectors.
        most: Q, the number of centres that a task may have.

    Raises:
        WireError: the names, shape, dtype or length of a vector are not as expected.
    """
    if not answer:
        return
    name = SUMMARY[kind]
    if answer.keys() != {"summary"} or answer["summary"].keys() != {name}:
        raise WireError(f"query: expected one group summary with {name}")
    # By its shape first: a few bytes may claim any number of vectors.
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
    # In double precision: the squares of hostile values may exceed a float32.
    rows = np.asarray(answer["summary"][name], np.float64).reshape(shape)
    if not np.linalg.norm(rows, axis=1).max() <= LONGEST:
        raise WireError(f"summary/{name}: expected vectors of length at most 1")
