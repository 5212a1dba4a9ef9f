"""Whole runs of the analytic strategy: the same head whatever happens on the way."""

import json
import sys

import numpy as np
import pytest
from analytic_cases import start
from fakes import exact as plain
from fakes import failure, rounds_of, run_in_process, summary_of

from fcl_flower.algorithms.base import ModelShape
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.usefixtures("one_thread")


def head(folder):
    """Return the server's head, in double precision."""
    saved = FolderStateStore(folder / "checkpoint").load(before=sys.maxsize)
    return plain({"head": saved.state["head"]})


@pytest.mark.run
def test_it_learns_and_its_record_says_how(tmp_path):
    run_in_process(start(tmp_path))
    summary = summary_of(tmp_path)
    assert summary["sample_accuracy"][-1] > 0.8
    solved = [row["diagnostics"] for row in rounds_of(tmp_path)]
    assert [one["samples"] for one in solved] == sorted(
        one["samples"] for one in solved
    )
    assert "features" in json.dumps(summary["remarks"])


@pytest.mark.run
@pytest.mark.parametrize("form", ["exact", "gram", "low-rank", "class-sums"])
@pytest.mark.parametrize("kind", ["discriminant", "ridge"])
def test_every_form_learns(tmp_path, form, kind):
    given = {"strategy.form": form, "strategy.head": kind}
    rank = {"strategy.rank": 20} if form == "low-rank" else {}
    run_in_process(start(tmp_path, **given, **rank))
    assert summary_of(tmp_path)["sample_accuracy"][-1] > 0.75


@pytest.mark.run
def test_a_lifted_head_learns(tmp_path):
    run_in_process(start(tmp_path, **{"strategy.lift": "relu", "strategy.width": 300}))
    assert summary_of(tmp_path)["sample_accuracy"][-1] > 0.8


@pytest.mark.run
def test_without_rounds_the_head_is_the_same_to_the_last_bit(tmp_path):
    run_in_process(start(tmp_path / "rounds"))
    for durations in ("1,1,1", "1,5,2"):
        folder = tmp_path / durations
        run_in_process(start(folder, asynchronous=True, simulated_durations=durations))
        assert head(folder) == head(tmp_path / "rounds")


@pytest.mark.run
def test_messages_lost_and_asked_for_again_change_nothing(tmp_path):
    run_in_process(start(tmp_path / "undisturbed", rounds=2))
    lost = {(1, 1), (2, 3), (1, 5)}

    def tamper(client, request, reply):
        number = (
            len(list(rounds_of(folder))) + 1
            if (folder / "rounds.jsonl").exists()
            else 1
        )
        if (client, number) in lost and request.kind == "train":
            return failure(request, "lost")
        return reply

    folder = tmp_path / "lossy"
    run_in_process(start(folder, rounds=2), tamper=tamper)
    failed = [bool(row["failed"]) for row in rounds_of(folder)]
    assert failed == [True, False, True, False, True, False]
    assert head(folder) == head(tmp_path / "undisturbed")


@pytest.mark.run
def test_a_client_that_comes_late_makes_the_same_head(tmp_path):
    run_in_process(start(tmp_path / "all", rounds=2))
    # In half of the rounds two of three take part; over a task's rounds, all.
    run_in_process(start(tmp_path / "some", rounds=6, client_fraction=0.67))
    assert head(tmp_path / "some") == head(tmp_path / "all")


@pytest.mark.run
def test_resumed_is_undisturbed_to_the_last_bit(tmp_path):
    whole = tmp_path / "whole"
    run_in_process(start(whole))
    broken = tmp_path / "broken"
    states = str(tmp_path / "states")

    def stop(client, request, reply):
        if (broken / "rounds.jsonl").exists() and len(rounds_of(broken)) == 1:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        run_in_process(start(broken, client_state=states), tamper=stop)
    run_in_process(start(broken, client_state=states, resume=True))
    assert head(broken) == head(whole)
    assert rounds_of(broken) == rounds_of(whole)


@pytest.mark.run
def test_it_sends_each_task_once(tmp_path):
    run_in_process(start(tmp_path, rounds=3))
    up = [row["bytes_up"].get("sums", 0) for row in rounds_of(tmp_path)]
    assert [bool(sent) for sent in up] == [True, False, False] * 3


@pytest.mark.run
def test_a_task_with_too_few_samples_is_left_out_with_the_reason(tmp_path):
    run_in_process(start(tmp_path, clients=2, **{"strategy.min_samples": 154}))
    failed = [row["reasons"] for row in rounds_of(tmp_path)]
    assert [list(why) for why in failed] == [[], ["0"], ["0"]]
    assert "strategy.min_samples: got 154" in json.dumps(failed)


@pytest.mark.run
def test_bounds_on_norms_are_the_strategys_own(tmp_path):
    """The norm of a sum grows with the samples, and weights are no measure of it."""
    run_in_process(start(tmp_path, max_update_norm=0.001))
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 3


@pytest.mark.run
def test_a_client_stores_the_head_and_who_is_alone_the_sums_too(tmp_path):
    run_in_process(start(tmp_path / "a"))
    run_in_process(start(tmp_path / "b", local_only=True))
    features, classes, tasks = 64, 9, 3
    kept, alone = (summary_of(tmp_path / name)["model_bytes"] for name in "ab")
    numbers_of_data = 8 * tasks
    assert kept <= 4 * classes * (features + 1) + numbers_of_data
    assert alone > kept + 8 * classes * features


@pytest.mark.run
def test_hidden_concepts_are_one_task_with_new_data_in_every_round(tmp_path):
    given = {"scenario": "concepts", "tasks": 2, "rounds": 4, "classes_per_task": 0}
    run_in_process(start(tmp_path, **given, **{"strategy.min_samples": 1}))
    samples = [row["diagnostics"]["samples"] for row in rounds_of(tmp_path)]
    assert samples == sorted(samples)
    assert samples[-1] > samples[0]


@pytest.mark.parametrize(
    ("head", "sizes"), [("single", (64, 9, True)), ("multi", (64, 3, False))]
)
def test_the_sizes_of_the_network_are_known_to_the_server(tmp_path, head, sizes):
    scenario = "class-incremental" if head == "single" else "overlapped"
    run = resolve(start(tmp_path, scenario=scenario, head=head))
    made = Built(run).strategy()
    assert made.context.model == ModelShape(*sizes)


@pytest.mark.run
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
