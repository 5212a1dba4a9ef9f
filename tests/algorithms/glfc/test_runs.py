"""GLFC in whole runs on digits: what its parts do, an end, and a hostile client."""

import numpy as np
import pytest
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from flwr.app import Message
from mutants import array_of, with_array

from fcl_flower.federation import messages

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"strategy": "glfc", "rounds": 2, "strategy.search_steps": 5}


def learned(folder, **values):
    """Return how much of the first task is left at the end, and the rounds."""
    given = {"scenario": "class-incremental", "scenario.class_fraction": 1.0}
    given |= {"epochs": 3, "learning_rate": 3e-3, "tasks": 3, "seed": 1}
    given |= {"strategy.search_steps": 30, "dataset": "digits", "model": "small"}
    run_in_process(tiny(folder, **{**SMALL, **given, **values}))
    matrices = summary_of(folder)["client_accuracy"]
    return np.mean([matrix[-1][0] for matrix in matrices]), rounds_of(folder)


def test_the_old_model_holds_the_first_task_with_memory_and_without(tmp_path):
    found, rounds = {}, {}
    for samples, weight in ((20, 0.5), (20, 0.0), (0, 2.0), (0, 0.0)):
        values = {"memory_samples": samples, "distillation": weight}
        found[samples, weight], rounds[samples, weight] = learned(
            tmp_path / f"{samples}-{weight}",
            **{f"strategy.{key}": value for key, value in values.items()},
        )

    assert found[20, 0.5] > found[20, 0.0] + 0.1
    assert found[0, 2.0] > found[0, 0.0] + 0.2
    accuracies = [row["diagnostics"]["proxy/accuracy"] for row in rounds[0, 2.0]]
    assert {row["diagnostics"]["proxy/images"] for row in rounds[0, 2.0]} == {4}
    # Within a task the best model never gets worse on its images.
    assert all(accuracies[n] <= accuracies[n + 1] for n in (0, 2, 4))
    assert len(set(accuracies)) > 1


def test_gradients_of_nothing_are_left_out_as_if_their_client_had_failed(tmp_path):
    def hostile(who, message, reply):
        if who != 1 or not asked_in(message, 3):
            return reply
        sent = messages.decode_payload(reply.content)["prototypes"]["fc.bias"]
        bad = array_of(np.asarray(sent) * 7)
        content = with_array(reply.content, "prototypes", "fc.bias", bad)
        return Message(content, reply_to=message)

    def absent(who, message, reply):
        return failure(message, "gone") if who == 1 and asked_in(message, 3) else reply

    run_in_process(tiny(tmp_path / "a", **SMALL), tamper=hostile)
    run_in_process(tiny(tmp_path / "b", **SMALL), tamper=absent)

    assert [row["failed"] for row in rounds_of(tmp_path / "a")] == [[], [], [1], []]
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]


@pytest.mark.parametrize("value", [1e20, -1e20])
def test_gradients_of_no_image_do_not_end_a_run(tmp_path, value):
    def hostile(who, message, reply):
        if who != 1 or not asked_in(message, 1):
            return reply
        sent = messages.decode_payload(reply.content)["prototypes"]["body.0.bias"]
        bad = array_of(np.full_like(np.asarray(sent), value))
        content = with_array(reply.content, "prototypes", "body.0.bias", bad)
        return Message(content, reply_to=message)

    config = tiny(tmp_path, **SMALL, tasks=1, max_update_norm=0)
    run_in_process(config, tamper=hostile)

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[], []]
    assert summary_of(tmp_path)["average_accuracy"] > 0
