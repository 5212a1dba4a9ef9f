"""What is reported of foreign adapters: which ones a task uses, and how dense they are.

Clients report ``attention/c/t``, the mean weight ``|alpha|`` that they give to the
adapter of client c's task t, and ``adapter_density``, the fraction of their own
adapter's entries that they keep when the task ends. From an adapter of density 0 no
other client can learn anything.
"""

import re
from collections.abc import Collection, Mapping

from fcl_flower.algorithms.base import Metrics
from fcl_flower.core.diagnostics import Diagnostic, Matrix, Table
from fcl_flower.core.errors import WireError

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
