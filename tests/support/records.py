"""Events of a run, with what a test does not care for filled in."""

from fcl_flower.core.types import Evaluation, TaskStage
from fcl_flower.results.events import (
    About,
    Begun,
    Evaluated,
    ScenarioInfo,
    Traffic,
    Trained,
)
from fcl_flower.results.record import Record

ABOUT = {
    **{"label": "fedavg", "strategy": "fedavg", "local_only": False, "params": {}},
    **{"scenario": "overlapped", "dataset": "digits", "model": "small", "seed": 1},
    **{"clients": 2, "tasks": 2, "rounds": 1, "total_rounds": 2},
    "counterpart": None,
}


def begun(about=None, **values):
    return Begun(about=About(**{**ABOUT, **(about or {})}), **values)


def trained(number, task=0, **values):
    nothing = {"replies": {}, "failed": {}, "traffic": Traffic(), "diagnostics": {}}
    nothing |= {"stages": {}, "timing": {}, "seconds": 1.5}
    return Trained(round=number, task=task, **(nothing | values))


def stage(task, number=1):
    return TaskStage(number, task, starts_task=True, ends_task=True)


def evaluated(
    number, task, accuracy, kind=Evaluated, counts=None, inferred=None, **told
):
    """Make an evaluation of accuracies by client; counts by class of all tasks.

    ``inferred``, ``balanced`` and ``unbalanced`` are by client, too.
    """
    known = {"inferred": inferred or {}, "balanced": {}, "unbalanced": {}, **told}
    scores = {
        client: Evaluation(
            values,
            9,
            counts or [],
            known["inferred"].get(client, []),
            known["balanced"].get(client, []),
            known["unbalanced"].get(client, False),
            [],
        )
        for client, values in accuracy.items()
    }
    return kind(round=number, task=task, scores=scores)


def record(*events, scenario=None, **values):
    """Add up events of two clients with two tasks each, of 30 and 10 samples."""
    tasks = [{"name": f"t{t}", "test": n} for t, n in enumerate((30, 10))]
    described = {"name": "overlapped", "seed": 1, "datasets": ["digits"]}
    described["clients"] = [tasks, tasks]
    info = ScenarioInfo(**{**described, **(scenario or {})})
    found = Record(info, begun(**values))
    for event in events:
        found.add(event)
    return found
