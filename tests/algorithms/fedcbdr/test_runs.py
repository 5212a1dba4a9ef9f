"""FedCBDR in whole runs on digits: forgetting, an end, hostile answers, one alone."""

import pytest
from class_streams import five_and_five
from fakes import rounds_of, run_in_process, tiny
from queries import hostile_and_absent
from resuming import check_resumed

from fcl_flower.federation.replies import QUERY

pytestmark = pytest.mark.usefixtures("one_thread")


def settings(folder, **given):
    usual = {"strategy": "fedcbdr", "dataset": "digits", "model": "small", "rounds": 2}
    usual |= {"scenario": "classes", "head": "single", "epochs": 2}
    return tiny(folder, **{**usual, **given})


def test_balanced_samples_save_old_classes(tmp_path):
    found = {
        samples: five_and_five(
            tmp_path / str(samples), "fedcbdr", **{"strategy.memory_samples": samples}
        )
        for samples in (0, 100)
    }
    assert found[0][0] < 0.1
    assert found[100][0] > 0.6
    assert all(new > 0.7 for _, new in found.values())


def test_products_travel_once_a_task(tmp_path):
    run_in_process(settings(tmp_path))
    sent = ["grams" in row["bytes_up"] for row in rounds_of(tmp_path)]
    told = ["selection" in row["bytes_down"] for row in rounds_of(tmp_path)]
    assert sent == told == [False, True, False, True]
    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4


def test_a_client_alone_asks_itself(tmp_path):
    run_in_process(settings(tmp_path / "a", clients=1))
    run_in_process(settings(tmp_path / "b", clients=1, local_only=True))
    run_in_process(
        settings(tmp_path / "c", clients=1, **{"strategy.memory_samples": 0})
    )
    losses = [[row["loss"] for row in rounds_of(tmp_path / run)] for run in "abc"]
    assert losses[0] == losses[1] != losses[2]


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    check_resumed(tmp_path, settings, 4, QUERY)


def test_a_hostile_answer_is_as_good_as_none(tmp_path):
    rows, expected = hostile_and_absent(tmp_path, settings, 2, "grams", "half")
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected]
