"""A run is told to its clients when they meet the server, and again when it is lost."""

import pytest
from fakes import InProcessTransport, asked_in, run_in_process, tiny

from fcl_flower.core.errors import ConfigError
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import QUERY, Content
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_simulated


class Forgetful(InProcessTransport):
    """Client 1 restarts, without what it has kept, before it trains in round 2."""

    restarted = False

    def honest_answer(self, request, place):
        if not self.restarted and place.number == 1 and asked_in(request, 2):
            self.restarted = True
            place.state = Content()
        return super().honest_answer(request, place)


def greetings(transport, client):
    return [
        messages.told_run(request.content)
        for who, request in transport.asked
        if who == client and request.kind == QUERY
    ]


@pytest.mark.run
@pytest.mark.parametrize("in_folder", [False, True])
def test_who_has_lost_the_run_is_told_it_again(tmp_path, in_folder):
    place = {"state-path": str(tmp_path / "states")} if in_folder else {}
    config = tiny(tmp_path / "run", strategy="fedavg", rounds=2, tasks=1, min_updates=2)
    transport = Forgetful([100, 101], config, places=[place, place])
    run_simulated(transport, config)

    assert transport.restarted
    times = [len(greetings(transport, client)) for client in (0, 1)]
    assert times == ([1, 1] if in_folder else [1, 2])
    assert len({*greetings(transport, 0), *greetings(transport, 1)}) == 1
    trained = [who for who, request in transport.asked if asked_in(request, 2)]
    assert trained == ([0, 1] if in_folder else [0, 1, 0, 1])


@pytest.mark.run
def test_a_run_without_a_number_of_clients_is_told_when_they_are_counted(tmp_path):
    config = tiny(tmp_path, clients=0)
    transport = run_in_process(config, nodes=[7, 8, 9])

    first, second = greetings(transport, 2)
    assert first == ""
    assert second == resolve(config, clients=3).to_json()


def test_outside_of_a_simulation_the_server_refuses_an_attack_at_once(tmp_path):
    config = tiny(tmp_path, attack="noise", attackers=1)
    with pytest.raises(ConfigError, match="only a simulation in one process"):
        run_in_process(config, delay=lambda client: 0)
