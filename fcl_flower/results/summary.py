"""The summary of a run: a pure function of its configuration and its history."""

from typing import Any

import numpy as np

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import Array
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.results import metrics
from fcl_flower.results.history import Accuracies, RunHistory

MEASURES = {
    "average_accuracy": metrics.average_accuracy,
    "forgetting": metrics.forgetting,
    "backward_transfer": metrics.backward_transfer,
    "learning_accuracy": metrics.learning_accuracy,
}

HARDWARE = ("training.device", "training.threads")
"""Keys of the configuration that say where training runs, not what it does."""

OF_OTHER_SECTIONS = ("federation.client_fraction", "model.head")
"""Keys of the configuration that a summary has under ``training`` all the same."""


def summarize(
    config: RunConfig, scenario: Scenario, history: RunHistory
) -> dict[str, Any]:
    """Return what a run was and what came out; the same seed gives the same.

    The recorder adds what is not here: the duration, the counterpart, diagnostics,
    remarks and the environment.
    """
    traffic, sizes = history.traffic, history.model_bytes.values()
    return {
        "label": config.title,
        "strategy": config.strategy.name,
        "local_only": config.strategy.local_only,
        "params": dict(config.strategy.params),
        "training": _training(config),
        "scenario": config.scenario.name,
        "dataset": config.data.datasets,
        "model": config.model.name,
        "seed": config.run.seed,
        "clients": config.scenario.clients,
        "tasks": config.scenario.tasks,
        "rounds": config.federation.rounds_per_task,
        "total_rounds": total_rounds(config, scenario),
        "mode": "asynchronous" if config.asynchronous.enabled else "synchronous",
        "clock": history.clock or None,
        **measures(scenario, history.accuracy),
        "honest_accuracy": _honest_accuracy(config, history),
        "untrained_client_tasks": _untrained(config, scenario, history),
        "late_replies": {str(c): n for c, n in sorted(history.late_replies.items())},
        "left_out": {str(client): why for client, why in history.left_out.items()},
        "before_aggregation": measures(scenario, history.before_aggregation),
        "bytes_up": traffic.up.total(),
        "bytes_down": traffic.down.total(),
        "nominal_bytes_up": traffic.nominal_up,
        "nominal_bytes_down": traffic.nominal_down,
        "bytes_by_kind": {
            "up": dict(sorted(traffic.up.items())),
            "down": dict(sorted(traffic.down.items())),
        },
        "model_bytes": round(sum(sizes) / len(sizes)) if sizes else 0,
        "hidden": None
        if scenario.stream is None
        else {
            **scenario.stream.to_dict(),
            "reveal_ids": bool(config.scenario.params.get("reveal_ids")),
        },
        "command": "fcl simulate --config config.toml",
    }


def _training(config: RunConfig) -> dict[str, Any]:
    """Return how clients trained, by the settings' names without their sections.

    Every setting of ``training`` is in it, so that none is forgotten that comes later.
    """
    flat = config.flat()
    own = [key for key in flat if key.startswith("training.") and key not in HARDWARE]
    return {key.partition(".")[2]: flat[key] for key in (*own, *OF_OTHER_SECTIONS)}


def _honest_accuracy(config: RunConfig, history: RunHistory) -> float | None:
    """Return the average accuracy without the hostile clients; None without any."""
    hostile = config.federation.attackers
    if not hostile:
        return None
    honest = history.accuracy.matrix[:-hostile]
    return _or_none(metrics.average_accuracy(honest))


def total_rounds(config: RunConfig, scenario: Scenario) -> int:
    """Return the number of rounds of a run, or of updates of an asynchronous one.

    Hidden concepts share all rounds; otherwise each task has its own.
    """
    hidden = scenario.stream is not None
    rounds = config.federation.rounds_per_task * (
        1 if hidden else config.scenario.tasks
    )
    return rounds * config.scenario.clients if config.asynchronous.enabled else rounds


def _untrained(
    config: RunConfig, scenario: Scenario, history: RunHistory
) -> int | None:
    """Return how many tasks of clients no update that was used was trained on.

    They are tested all the same. None where concepts are hidden, which clients meet by
    chance.
    """
    if scenario.stream is not None:
        return None
    every = config.scenario.clients * config.scenario.tasks
    if config.scenario.joint:  # every round trains on all tasks
        clients = {client for client, _ in history.trained}
        return every - len(clients) * config.scenario.tasks
    return every - len(history.trained)


def measures(scenario: Scenario, found: Accuracies) -> dict[str, Any]:
    """Return the measures that the scenario allows, by name; None where not known.

    Hidden concepts have no moment at which they were learned: only the accuracy at the
    end and what was lost since the best evaluation.

    Args:
        scenario: the tasks of every client.
        found: the evaluations.
    """
    accuracy = found.matrix
    known: dict[str, Any] = {
        "sample_accuracy": _sample_accuracy(scenario, accuracy),
        "accuracy_matrix": _nested(metrics.mean_measured(accuracy, axis=0)),
        "client_accuracy": [_nested(matrix) for matrix in accuracy],
    }
    if scenario.stream is None:
        if np.isnan(accuracy).all():  # nothing was evaluated, so nothing is known
            return dict.fromkeys(MEASURES) | known
        return {
            n: _or_none(measure(accuracy)) for n, measure in MEASURES.items()
        } | known
    known = dict.fromkeys(MEASURES) | known
    known["average_accuracy"] = _or_none(metrics.average_accuracy(accuracy))
    if found.evaluations:
        lost = metrics.forgetting_of_concepts(np.array(found.evaluations))
        known["forgetting"] = _or_none(lost)
    return known


def _sample_accuracy(scenario: Scenario, accuracy: Array) -> list[float | None]:
    """Return the accuracy over all test samples so far, by task learned last.

    None where only the clients know how many samples there are.
    """
    if scenario.local_data:
        return [None] * accuracy.shape[1]
    counts = [[len(task.test) for task in tasks] for tasks in scenario.clients]
    return _row(metrics.sample_accuracy(accuracy, np.array(counts)))


def _nested(matrix: Array) -> list[list[float | None]]:
    return [_row(row) for row in matrix]


def _row(values: Array) -> list[float | None]:
    return [_or_none(value) for value in values]


def _or_none(value: float) -> float | None:
    """Return None for NaN, which JSON does not know."""
    return None if np.isnan(value) else float(value)
