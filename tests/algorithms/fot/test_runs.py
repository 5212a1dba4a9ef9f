"""FOT in whole runs on digits: forgetting, absent clients, an end, hostile sketches."""

import numpy as np
import pytest
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from resuming import check_resumed

from fcl_flower.rounds.transport import Reply

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]


def settings(folder, **given):
    return tiny(folder, **{"strategy": "fot", "rounds": 2, "clients": 3, **given})


def run(folder, **given):
    return run_in_process(settings(folder, **given))


@pytest.mark.soak
def test_updates_that_keep_off_the_subspace_forget_less(tmp_path):
    lost = {}
    for name, params in (("fedavg", {}), ("fot", {"strategy.energy": 0.97})):
        given = {"tasks": 3, "scenario": "classes", "epochs": 4, "seed": 1}
        run(tmp_path / name, strategy=name, **given, **params, learning_rate=5e-3)
        found = summary_of(tmp_path / name)["client_accuracy"]
        assert np.mean([matrix[2][2] for matrix in found]) > 0.85  # it learns as well
        lost[name] = np.mean([matrix[0][0] - matrix[2][0] for matrix in found])
    assert lost["fedavg"] > 0.15
    assert lost["fot"] < 0.5 * lost["fedavg"]


def test_directions_are_taken_at_the_end_of_each_task(tmp_path):
    run(tmp_path, tasks=3)
    taken = [row["diagnostics"]["subspace/body.conv2"] for row in rounds_of(tmp_path)]
    assert taken[0] == 0
    assert taken[1] == taken[2] > 0
    assert taken[3] == taken[4] > taken[2]
    kinds = summary_of(tmp_path)["bytes_by_kind"]
    assert kinds["up"].keys() == {"base", "sketches", "meta"}
    assert kinds["down"].keys() == {"base", "subspace", "meta"}


def test_some_clients_at_a_time_are_enough(tmp_path):
    run(tmp_path, client_fraction=0.34, rounds=3)
    rows = rounds_of(tmp_path)
    assert [row["failed"] for row in rows] == [[]] * 6
    assert rows[-1]["diagnostics"]["subspace/body.fc1"] > 0
    # A client that is drawn once has its first and last round at the same time.
    once = [row for row in rows[:3] if "sketches" in row["bytes_up"]]
    assert len(once) == len({row["clients"][0] for row in rows[:3]})


def test_a_client_alone_has_a_subspace_of_its_own(tmp_path):
    runs = {
        "together": {},
        "alone": {"local_only": True},
        "fedavg": {"strategy": "fedavg"},
        "local": {"strategy": "local"},
    }
    losses, sizes = {}, {}
    for name, given in runs.items():
        run(tmp_path / name, clients=1, tasks=3, rounds=1, **given)
        losses[name] = [row["loss"] for row in rounds_of(tmp_path / name)]
        sizes[name] = summary_of(tmp_path / name)["model_bytes"]

    assert losses["alone"] == losses["together"]
    assert losses["together"][:2] == losses["fedavg"][:2]
    assert losses["together"][2] != losses["fedavg"][2]  # after a projected update
    # The server sends the subspace for each task; who is alone has to keep it.
    assert sizes["together"] == pytest.approx(sizes["fedavg"], rel=0.01)
    assert sizes["alone"] > 1.1 * sizes["local"]


@pytest.mark.soak
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    # What was received in round 3 is needed in round 4.
    check_resumed(tmp_path, settings, 4)


@pytest.mark.parametrize(
    ("group", "tensor"),
    [
        ("sketches/outside", np.float32(2)),
        ("sketches", np.full((513, 513), np.inf, np.float32)),
        ("sketches", np.zeros((513, 514), np.float32)),
    ],
)
def test_hostile_sketches_are_left_out_as_if_their_client_had_failed(
    tmp_path, group, tensor
):
    def hostile(who, request, reply):
        if who != 1 or not asked_in(request, 2):
            return reply
        bad = array_of(np.asarray(tensor))
        content = with_array(reply.content, group, "body.fc1", bad)
        return Reply(request, content)

    def absent(who, request, reply):
        return failure(request, "gone") if who == 1 and asked_in(request, 2) else reply

    run_in_process(settings(tmp_path / "a", clients=2), tamper=hostile)
    run_in_process(settings(tmp_path / "b", clients=2), tamper=absent)

    rows, expected = (rounds_of(tmp_path / name) for name in "ab")
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    for key in ("loss", "diagnostics"):
        assert [row[key] for row in rows] == [row[key] for row in expected]
