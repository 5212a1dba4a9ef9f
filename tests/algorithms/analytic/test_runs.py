"""Whole runs of the analytic strategy: the same head whatever happens on the way."""

import json
import sys

import numpy as np
import pytest
from analytic_cases import start
from fakes import exact as plain
from fakes import rounds_of, run_in_process, summary_of

from fcl_flower.federation.checkpoint import FolderStateStore

pytestmark = pytest.mark.usefixtures("one_thread")


def head(folder):
    """Return the server's head, in double precision."""
    saved = FolderStateStore(folder / "checkpoint").load(before=sys.maxsize)
    return plain({"head": saved.state["head"]})


def test_it_learns_and_its_record_says_how(tmp_path):
    run_in_process(start(tmp_path))
    summary = summary_of(tmp_path)
    assert summary["sample_accuracy"][-1] > 0.8
    solved = [row["diagnostics"] for row in rounds_of(tmp_path)]
    assert [one["samples"] for one in solved] == sorted(
        one["samples"] for one in solved
    )
    assert "features" in json.dumps(summary["remarks"])


def test_without_rounds_the_head_is_the_same_to_the_last_bit(tmp_path):
    run_in_process(start(tmp_path / "rounds"))
    for durations in ("1,1,1", "1,5,2"):
        folder = tmp_path / durations
        run_in_process(start(folder, asynchronous=True, simulated_durations=durations))
        assert head(folder) == head(tmp_path / "rounds")


def test_it_sends_each_task_once(tmp_path):
    run_in_process(start(tmp_path, rounds=3))
    up = [row["bytes_up"].get("sums", 0) for row in rounds_of(tmp_path)]
    assert [bool(sent) for sent in up] == [True, False, False] * 3


def test_bounds_on_norms_are_the_strategys_own(tmp_path):
    """The norm of a sum grows with the samples, and weights are no measure of it."""
    run_in_process(start(tmp_path, max_update_norm=0.001))
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 3


def test_the_head_is_the_same_whatever_the_split_and_the_number_of_clients(tmp_path):
    given = {
        "strategy.penalty": 0.1,
        "strategy.min_samples": 1,
        "strategy.form": "gram",
    }
    heads = []
    for number, (clients, split) in enumerate(
        [(1, "iid"), (4, "iid"), (4, "dirichlet:0.1"), (7, "classes"), (2, "classes")]
    ):
        folder = tmp_path / str(number)
        run_in_process(
            start(folder, clients=clients, **{"scenario.split": split}, **given)
        )
        saved = FolderStateStore(folder / "checkpoint").load(before=sys.maxsize)
        heads.append(saved.state["head"])
    # Of the same features it is so to 1e-9; their own last bits depend on the batch.
    for found in heads[1:]:
        for name in ("weight", "bias"):
            error = np.linalg.norm(found[name] - heads[0][name])
            assert error / np.linalg.norm(heads[0][name]) < 1e-6
