"""An optimizer's moments live as long as a task: each round goes on where one ended."""

import sys

import pytest
from every_method import smallest
from fakes import exact, run_in_process, tiny

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.training import loop

TASKS = {"scenario": "overlapped", "rounds": 2, "clients": 1, "tasks": 2}
NO_GRADIENTS = {"analytic"}
AFRESH = {
    "fedet": "the released code makes an optimizer each round",
    "lorm": "turns between two factors, each with an optimizer of its own",
}


@pytest.fixture
def trainings(monkeypatch):
    """Return each training of a task: round, client, moments before and after."""
    for entry in algorithms().values():
        entry.load_client()  # so that all that train are there to be watched
    found, fit = [], loop.fit

    def watched(job):
        done = fit(job)
        moments = exact({"moments": job.optimizer_state})
        left = exact({"moments": done.optimizer_state})
        if job.round:  # 0: something that is fitted outside of any task
            found.append((job.round, job.client, moments, left))
        return done

    for name, module in [*sys.modules.items()]:
        ours = name.startswith(("clients.", "fcl_flower."))
        if ours and getattr(module, "fit", None) is fit:
            monkeypatch.setattr(module, "fit", watched)
    return found


@pytest.mark.parametrize("name", sorted(algorithms().keys() - NO_GRADIENTS))
def test_a_round_begins_with_the_moments_that_the_last_one_left(
    tmp_path, trainings, name
):
    given = TASKS | smallest(name, tmp_path)
    run_in_process(tiny(tmp_path / "run", **given))
    nothing = exact({"moments": {}})
    assert len(trainings) == 4
    last = {}
    for number, client, before, after in trainings:
        goes_on = number % 2 == 0 and name not in AFRESH
        assert before == (last[client] if goes_on else nothing)
        assert after != nothing
        last[client] = after
