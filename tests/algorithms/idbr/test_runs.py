"""IDBR in whole runs on a few texts: what its parts do, and an end."""

import numpy as np
import pytest
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from flwr.app import Message
from mutants import array_of, with_array
from resuming import check_resumed, small
from text_sets import encoded_topics

from fcl_flower.algorithms.registry import algorithm

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    found = encoded_topics(tmp_path_factory.mktemp("topics"), per_label=60)
    return {"strategy": "idbr", "scenario": "class-incremental", **found}


def first_task(folder, texts, **params):
    """Return how much of the first task is left at the end."""
    given = {"scenario.class_fraction": 1.0, "rounds": 2, "epochs": 12, "seed": 1}
    given |= {"learning_rate": 5e-3, "batch_size": 16}
    values = {f"strategy.{key}": value for key, value in params.items()}
    run_in_process(tiny(folder, **{**texts, **given, **values}))
    matrices = summary_of(folder)["client_accuracy"]
    assert all(matrix[0][0] == 1 for matrix in matrices), "it was learned"
    return np.mean([matrix[1][0] for matrix in matrices])


def test_the_memory_holds_the_first_task(tmp_path, texts):
    nothing = {"budget": "fixed", "memory_samples": 0}
    blank = first_task(tmp_path / "blank", texts, **nothing)
    whole = first_task(tmp_path / "whole", texts, buffer_fraction=0.5)

    assert blank == 0
    assert whole >= 0.5


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path, texts):
    check_resumed(tmp_path, small(**{**texts, "rounds": 2}), 3)


def test_spaces_that_do_not_fit_are_left_out_as_if_their_client_had_failed(
    tmp_path, texts
):
    def hostile(who, message, reply):
        if who != 1 or not asked_in(message, 1):
            return reply
        bad = array_of(np.zeros((3, 3), np.float32))
        content = with_array(reply.content, "base", "body.generic.weight", bad)
        return Message(content, reply_to=message)

    def absent(who, message, reply):
        return failure(message, "gone") if who == 1 and asked_in(message, 1) else reply

    run_in_process(tiny(tmp_path / "a", **texts), tamper=hostile)
    run_in_process(tiny(tmp_path / "b", **texts), tamper=absent)

    assert [row["failed"] for row in rounds_of(tmp_path / "a")] == [[1], []]
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]


def test_the_defaults_are_those_of_the_released_code():
    found = algorithm("idbr").params({})
    assert (found.generic, found.specific, found.order, found.task) == (0.5, 0.5, 1, 1)
    assert (found.new_weight, found.replayed_weight) == (0.5, 5)
