"""A run is told to its clients when they meet the server, and again when it is lost."""

import pytest
from fakes import InProcessGrid, asked_in, run_in_process, tiny
from flwr.app import MessageType, RecordDict

from fcl_flower.core.errors import ConfigError
from fcl_flower.federation import messages
from fcl_flower.runtime.in_process import run_apps
from fcl_flower.setup.resolve import resolve


class Forgetful(InProcessGrid):
    """Client 1 restarts, without its context, before it trains in round 2."""

    restarted = False

    def answer(self, message, context):
        if not self.restarted and self.client(message) == 1 and asked_in(message, 2):
            self.restarted = True
            context.state = RecordDict()
        return super().answer(message, context)


def ran(folder, places=(), **values):
    config = tiny(folder, strategy="fedavg", rounds=2, tasks=1, **values)
    grid = Forgetful([100, 101], config.flat(), places=places)
    run_apps(grid, config)
    return grid


def greetings(grid, client):
    return [
        messages.told_run(message.content)
        for who, message in grid.asked
        if who == client and message.metadata.message_type == MessageType.QUERY
    ]


def test_who_has_lost_its_state_is_told_the_run_again(tmp_path):
    grid = ran(tmp_path, min_updates=2)

    assert grid.restarted
    assert [len(greetings(grid, client)) for client in (0, 1)] == [1, 2]
    assert len({*greetings(grid, 0), *greetings(grid, 1)}) == 1
    trained = [who for who, message in grid.asked if asked_in(message, 2)]
    assert trained == [0, 1, 0, 1]  # as after any loss of a state


def test_who_keeps_its_state_in_a_folder_knows_the_run_after_a_restart(tmp_path):
    places = [{"state-path": str(tmp_path / "states")} for _ in range(2)]
    grid = ran(tmp_path / "run", places, min_updates=2)

    assert grid.restarted
    assert [len(greetings(grid, client)) for client in (0, 1)] == [1, 1]
    trained = [who for who, message in grid.asked if asked_in(message, 2)]
    assert trained == [0, 1]


def test_a_run_without_a_number_of_clients_is_told_when_they_are_counted(tmp_path):
    config = tiny(tmp_path, clients=0)
    grid = run_in_process(config, nodes=[7, 8, 9])

    first, second = greetings(grid, 2)
    assert first == ""
    assert second == resolve(config, clients=3).to_json()


def test_outside_of_a_simulation_the_server_refuses_an_attack_at_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fcl_flower.federation.prepare.is_simulated", lambda: False)
    config = tiny(tmp_path, attack="noise", attackers=1)
    with pytest.raises(ConfigError, match="only a simulation in one process"):
        run_in_process(config)
