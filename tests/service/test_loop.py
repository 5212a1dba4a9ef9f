"""A service in one process: tasks come late, and it is killed wherever it can be."""

import itertools
import time

import numpy as np
import pytest
from fakes import summary_of
from services import DoneError, World, deliver

from fcl_flower.config.run_config import RunConfig
from fcl_flower.rounds.messages import TASKS
from fcl_flower.rounds.transport import Content, Reply
from fcl_flower.service import changes, loop
from fcl_flower.service.status import BEGIN_NOW, Policy, ServiceStatus


@pytest.fixture
def steps(monkeypatch):
    """Count each writing of the service's own files as an event of the world."""
    world = []

    def counted(function):
        def call(*given):
            if world:
                world[0].event()
            function(*given)
            if world:
                world[0].event()

        return call

    monkeypatch.setattr(ServiceStatus, "write", counted(ServiceStatus.write))
    replaced = counted(changes.replace_config)
    monkeypatch.setattr(loop, "replace_config", replaced)
    monkeypatch.setattr(changes, "replace_config", replaced)
    return world


def late_second(world):
    """Client 1 has no data for the federation's second task, and for the third."""

    def waits(learned, now):
        first, second = world[0].places
        if learned == 0:
            deliver(first, 1)
            deliver(second, 1)
        elif learned == 1:
            deliver(first, 2)
        elif learned == 2:
            deliver(first, 3)
            deliver(second, 2)
        else:
            raise DoneError

    return waits


def late_world(folder, **settings):
    worlds = []
    policy = Policy(quorum=1.0, deadline=60.0, look=10.0)
    world = World(folder, policy, late_second(worlds), **settings)
    worlds.append(world)
    return world


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_client_without_a_task_sits_it_out_and_learns_its_own_next_one_later(
    tmp_path, strategy
):
    world = late_world(tmp_path, strategy=strategy)

    assert world.serve()

    assert world.trained == [(0, 1, 0), (1, 1, 0), (0, 2, 1), (0, 3, 2), (1, 3, 1)]
    summary, lines, table = world.outcome()
    assert [line["clients"] for line in lines] == [[0, 1], [0], [0, 1]]
    assert [line["failed"] for line in lines] == [[], [], []]
    assert (summary["tasks"], summary["sat_out"]) == (3, {"1": [1]})
    assert summary["untrained_client_tasks"] == 0
    assert "client 1 had none for 1" in (world.run / "report.html").read_text()
    # Its second task is the federation's third; nothing stands for the one between.
    accuracy = np.array(summary["client_accuracy"], float)
    assert np.isnan(accuracy[1, :, 1]).all()
    assert not np.isnan(accuracy[1, 2, [0, 2]]).any()
    assert not np.isnan(accuracy[1, 1, 0])
    assert [row.split(",")[2:4] for row in table.splitlines()[1:]] == [
        *(["0", "0"], ["1", "0"]),
        *(["0", "0"], ["0", "1"], ["1", "0"]),
        *(["0", "0"], ["0", "1"], ["0", "2"], ["1", "0"], ["1", "2"]),
    ]


def killed_once(folder, steps, number):
    """Return what comes out of a service that is killed before an event."""
    world = late_world(folder)
    steps[:] = [world]
    world.kill_at = number
    assert not world.serve()
    assert world.serve()
    return world.outcome()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    world = late_world(tmp_path_factory.mktemp("whole"))
    assert world.serve()
    return world.outcome()


# Some of each kind: while it waits, as it plans, as it says so, and as it trains.
@pytest.mark.run
@pytest.mark.parametrize("number", [0, 5, 8, 11, 14, 30, 40, 55])
def test_a_service_that_is_killed_ends_with_the_same_numbers(
    tmp_path, steps, undisturbed, number
):
    assert killed_once(tmp_path, steps, number) == undisturbed


@pytest.mark.run
@pytest.mark.fuzz
def test_a_service_may_be_killed_between_any_two_steps(tmp_path, steps, undisturbed):
    world = late_world(tmp_path / "whole")
    steps.append(world)
    assert world.serve()
    assert world.events > 50
    for number in range(world.events):
        assert killed_once(tmp_path / str(number), steps, number) == undisturbed, number


@pytest.mark.run
def test_it_is_begun_now_by_a_file_with_what_there_is(tmp_path):
    def waits(learned, now):
        if learned == 0 and now == 1010:
            assert not (world.run / BEGIN_NOW).exists()  # there was nothing
            deliver(world.places[1], 1)
        elif learned == 0 and now == 1100:
            assert world.status().sentence == (
                "waits for a new task at 2 clients, where 1 have one"
            )
            assert world.status().due is None
            (world.run / BEGIN_NOW).touch()
        elif learned == 1:
            raise DoneError

    world = World(tmp_path, Policy(quorum=2, look=10.0), waits)
    (world.run / BEGIN_NOW).touch()

    assert world.serve()

    assert world.trained == [(1, 1, 0)]
    assert not (world.run / BEGIN_NOW).exists()
    assert summary_of(world.run)["sat_out"] == {"0": [0]}


@pytest.mark.run
def test_who_begins_now_has_the_tasks_of_this_moment(tmp_path):
    def waits(learned, now):
        if learned == 1:
            raise DoneError
        if now == 1100:  # clients told long ago that they have none
            deliver(world.places[0], 1)
            (world.run / BEGIN_NOW).touch()

    world = World(tmp_path, Policy(quorum=1.0, look=500.0), waits)

    assert world.serve()

    assert world.trained == [(0, 1, 0)]
    assert world.status().last_begun < 1200


@pytest.mark.run
def test_a_client_without_data_is_not_waited_for(tmp_path):
    def waits(learned, now):
        deliver(world.places[0], learned + 1)
        if learned == 0:
            deliver(world.places[1], 1)
        elif learned == 1:
            world.offline = {101}
        else:
            raise DoneError

    world = World(tmp_path, Policy(quorum=1, look=10.0), waits, timeout=60)
    began = time.monotonic()

    assert world.serve()

    assert time.monotonic() - began < 30
    assert world.trained[-1] == (0, 2, 1)


@pytest.mark.run
def test_clients_that_take_longer_to_answer_than_the_look_are_heard(tmp_path):
    def waits(learned, now):
        for place in world.places:
            deliver(place, 1)
        if learned == 1:
            raise DoneError

    world = World(tmp_path, Policy(quorum=1.0, look=10.0), waits)
    world.delay = lambda client: 3 + client  # pulls, each of which takes as long

    assert world.serve()

    assert world.trained == [(0, 1, 0), (1, 1, 0)]
    assert world.status().last_begun < 1100


@pytest.mark.parametrize(("comes", "sat_out"), [(1040, ""), (2000, "1:0")])
def test_clients_that_may_be_about_to_connect_are_waited_for(tmp_path, comes, sat_out):
    def waits(learned, now):
        if now >= comes:
            world.offline = set()

    world = World(tmp_path, Policy(quorum=1, look=60.0), waits)
    world.config = world.config.replace(clients=2)
    world.offline = {101}
    for place in world.places:
        deliver(place, 1)

    world.service().step()

    planned = RunConfig.read(world.run / "config.toml", "run").scenario
    assert (planned.clients, planned.sat_out) == (2, sat_out)


@pytest.mark.run
def test_trainings_begin_no_more_often_than_the_schedule_says(tmp_path):
    begun = []

    def waits(learned, now):
        status = world.status()
        if learned and status.last_begun not in begun:
            begun.append(status.last_begun)
        if learned == 3:
            raise DoneError
        for place in world.places:
            deliver(place, learned + 1)

    world = World(tmp_path, Policy(every=500.0, look=10.0), waits)

    assert world.serve()

    assert [b - a for a, b in itertools.pairwise(begun)] == [500.0, 500.0]


@pytest.mark.run
def test_a_client_that_is_new_joins_with_its_first_task(tmp_path):
    def waits(learned, now):
        if learned == 0:
            world.offline = {102}
            deliver(world.places[0], 1)
            deliver(world.places[1], 1)
        elif learned == 1:
            world.offline = set()
            deliver(world.places[2], 1)
            deliver(world.places[0], 2)
            deliver(world.places[1], 2)
        else:
            raise DoneError

    world = World(tmp_path, Policy(quorum=1.0, look=10.0), waits, clients=3)
    world.offline = {102}

    assert world.serve()

    assert world.trained == [(0, 1, 0), (1, 1, 0), (0, 2, 1), (1, 2, 1), (2, 2, 0)]
    assert summary_of(world.run)["sat_out"] == {"2": [0]}


@pytest.mark.run
def test_a_client_that_was_away_for_a_whole_task_learns_it_the_next_time(
    tmp_path, monkeypatch
):
    def waits(learned, now):
        world.offline = set()
        if learned == 3:
            raise DoneError
        deliver(world.places[0], learned + 1)
        if learned < 2:
            deliver(world.places[1], learned + 1)

    def leaves(*given, **more):
        if more["tasks"] == 2:
            world.offline = {101}
        return changes.extend(*given, **more)

    monkeypatch.setattr(loop, "extend", leaves)
    policy = Policy(quorum=1.0, look=10.0)
    world = World(tmp_path, policy, waits, timeout=0.2)

    assert world.serve()

    assert world.trained == [(0, 1, 0), (1, 1, 0), (0, 2, 1), (0, 3, 2), (1, 3, 1)]
    summary = summary_of(world.run)
    assert summary["sat_out"] == {"1": [1]}
    assert summary["untrained_client_tasks"] == 0


@pytest.mark.run
def test_a_single_head_grows_with_the_tasks_that_come(tmp_path):
    def waits(learned, now):
        if learned == 2:
            raise DoneError
        first, second = world.places
        deliver(first, learned + 1, [f"c{learned}", "c3"])
        deliver(second, learned + 1, ["c3", "c4"])

    policy = Policy(quorum=1.0, look=10.0)
    head = {"model.head": "single", "places": 6, "classes_per_task": 0}
    world = World(tmp_path, policy, waits, **head)

    assert world.serve()

    config = RunConfig.read(world.run / "config.toml", "run")
    assert config.data.classes == ("c0", "c3", "c4", "c1")
    assert summary_of(world.run)["untrained_client_tasks"] == 0


@pytest.mark.run
@pytest.mark.parametrize("told", [3, [-1], "x", None])
def test_a_client_that_tells_nonsense_has_no_task_and_ends_nothing(tmp_path, told):
    def waits(learned, now):
        deliver(world.places[1], 1)
        if learned == 1:
            raise DoneError

    def lie(client, request, reply):
        if client == 0 and request.kind == f"query.{TASKS}":
            table = {} if told is None else {"samples": told}
            return Reply(request, Content(scalars={TASKS: table}))
        return reply

    world = World(tmp_path, Policy(quorum=1, look=10.0), waits)
    world.tamper = lie

    assert world.serve()

    assert world.trained == [(1, 1, 0)]
    assert world.status().clients.keys() == {1}
