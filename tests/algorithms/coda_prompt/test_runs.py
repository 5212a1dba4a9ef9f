"""CODA-Prompt in whole runs on digits: some clients at a time, hostile ones, an end."""

import numpy as np
import pytest
from encoders import reading_digits
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from resuming import check_resumed, small

from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Reply

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]

KEYS = "body.pools.0.keys"
SIZES = {"components": 2, "prompt_length": 2}
ANOTHER = pytest.param("vit", marks=pytest.mark.soak)


@pytest.fixture(scope="module", params=["dinov2", ANOTHER])
def settings(request, tmp_path_factory):
    folder, kind = tmp_path_factory.mktemp("encoder"), request.param
    return reading_digits(folder, "coda-prompt", "prompted-vit", kind, **SIZES)


def test_some_clients_at_a_time_are_enough(tmp_path, settings):
    config = tiny(tmp_path, **settings, client_fraction=0.34)

    run_in_process(config)

    # Each round has one client; who missed a task can predict all the same.
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    for matrix in summary_of(tmp_path)["client_accuracy"]:
        assert None not in matrix[1]


@pytest.mark.soak
@pytest.mark.parametrize("number", [1, 3])
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(
    tmp_path, settings, number
):
    check_resumed(tmp_path, small(**settings), number)


def test_a_hostile_slice_is_left_out_as_if_its_client_had_failed(tmp_path, settings):
    def infinite(who, request, reply):
        if who != 1 or not asked_in(request, 2):
            return reply
        found = messages.decode_payload(reply.content)["prompts"][KEYS]
        bad = array_of(np.full_like(np.asarray(found), np.inf))
        content = with_array(reply.content, "prompts", KEYS, bad)
        return Reply(request, content)

    def absent(who, request, reply):
        return failure(request, "gone") if who == 1 and asked_in(request, 2) else reply

    run_in_process(tiny(tmp_path / "a", **settings), tamper=infinite)
    run_in_process(tiny(tmp_path / "b", **settings), tamper=absent)

    rows = rounds_of(tmp_path / "a")
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]
