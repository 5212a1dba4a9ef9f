"""Nodes without a number of their own: the server gives each one, for good."""

import json
import time
from pathlib import Path

import pytest
from fakes import InProcessTransport, asked_in, rounds_of, summary_of, tiny
from resuming import PulledPlugError

from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.formats import FormatError
from fcl_flower.rounds import clients
from fcl_flower.rounds.clients import (
    NUMBERS_FILE,
    ClientNumbers,
    ClientRegistry,
    GivenNumbers,
)
from fcl_flower.rounds.place import NUMBER_FILE, Place
from fcl_flower.service.loop import TaskCounts
from fcl_flower.simulation.in_process import run_simulated

# ---- by hand


def test_numbers_are_the_lowest_that_are_free():
    numbers = GivenNumbers()
    assert [numbers.give(node, (), 3) for node in (50, 7, 90)] == [0, 1, 2]
    assert GivenNumbers().give(50, (0, 2), 4) == 1


def test_a_node_that_comes_back_has_its_number_again():
    numbers = GivenNumbers()
    for node in (50, 7):
        numbers.give(node, (), 3)
    assert numbers.give(7, (0,), 3) == 1
    assert numbers.give(50, (1,), 3) == 0


def test_a_new_node_takes_a_number_of_one_that_is_gone_only_where_none_is_free():
    numbers = GivenNumbers()
    for node in (50, 7):
        numbers.give(node, (), 3)
    assert numbers.give(8, (0,), 3) == 2, "7 may come back"
    assert numbers.give(9, (0, 2), 3) == 1
    assert numbers.give(7, (0, 2), 3) == 1, "9 is gone in its turn"
    assert numbers.give(9, (0, 1, 2), 3) is None


def test_where_any_number_of_clients_may_come_each_node_has_a_number():
    numbers = GivenNumbers()
    assert [numbers.give(node, (), 0) for node in range(40, 46)] == [*range(6)]
    assert numbers.give(99, (3, 7, 8), 0) == 6


def test_numbers_are_kept_in_a_file_from_which_another_server_goes_on(tmp_path):
    file = tmp_path / NUMBERS_FILE
    numbers = GivenNumbers(file)
    numbers.give(50, (), 2)
    assert not file.exists(), "before a run has a folder"
    numbers.keep(file)
    numbers.give(7, (), 2)
    assert json.loads(file.read_text()) == {"format": 1, "nodes": {"50": 0, "7": 1}}

    again = GivenNumbers(file)

    assert [again.give(node, (), 2) for node in (7, 50)] == [1, 0]


def test_a_new_run_in_a_folder_knows_nothing_of_the_one_before(tmp_path):
    file = tmp_path / NUMBERS_FILE
    earlier = GivenNumbers()
    earlier.keep(file)
    earlier.give(50, (), 2)

    GivenNumbers().keep(file)

    assert not file.exists()


def test_a_file_of_another_format_is_refused(tmp_path):
    file = tmp_path / NUMBERS_FILE
    file.write_text('{"format": 99, "nodes": {}}')
    with pytest.raises(FormatError, match="got format 99"):
        GivenNumbers(file)


# ---- at the node


@pytest.mark.parametrize("kept", ["memory", "folder"])
def test_a_place_keeps_its_number_for_the_run(tmp_path, kept):
    def place(state=None):
        path = str(tmp_path) if kept == "folder" else ""
        made = Place("mine", NodeConfig.of({"state-path": path}))
        made.state = state or made.state
        return made

    first = place()
    assert first.known_number is None
    with pytest.raises(ConfigError, match="no server has given this client a number"):
        _ = first.number

    first.keep_number(4)

    again = place(first.state)
    assert (again.number, again.known_number) == (4, 4)
    other = Place("other", again.node)
    assert other.known_number is None
    if kept == "folder":
        assert again.folder == tmp_path / "mine" / "client-4"
        file = tmp_path / "mine" / NUMBER_FILE
        assert json.loads(file.read_text()) == {"format": 1, "client": 4}
        assert file.stat().st_mode & 0o077 == 0
        file.write_text(file.read_text().replace("1,", "99,"))
        with pytest.raises(FormatError, match="got format 99"):
            _ = again.number


def test_a_number_of_its_own_is_the_nodes_whatever_the_server_gives(tmp_path):
    for path in ("", str(tmp_path)):
        place = Place("mine", NodeConfig.of({"partition-id": 3, "state-path": path}))
        place.keep_number(4)
        assert place.number == 3
    assert not [*tmp_path.iterdir()]


# ---- who is met


class Numberless(InProcessTransport):
    """Nodes without a number, some of which are there; all know ``places``."""

    def __init__(self, nodes, config=None, places=None, **behaviour):
        super().__init__([], config or RunConfig(), **behaviour)
        for node in nodes:
            self.comes(node, **(places or {}).get(node, {}))

    def comes(self, node, **node_config):
        self.places[node] = Place("mine", NodeConfig.of(node_config))

    def goes(self, node):
        del self.places[node]

    def client(self, request):
        return self.places[request.node].known_number


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.0)


def settled(registry, times=3):
    """Let who is there be asked, numbered and asked again; return node by client."""
    for _ in range(times):
        registry.refresh()
    return {client: registry.node(client) for client in registry.clients}


def test_nodes_that_are_met_together_are_numbered_by_their_ids():
    transport = Numberless([31, 12, 2**63])
    registry = ClientRegistry(transport, 3)

    assert settled(registry) == {0: 12, 1: 31, 2: 2**63}
    assert [transport.places[n].number for n in (12, 31, 2**63)] == [0, 1, 2]
    assert [request.node for _, request in transport.asked] == [12, 31, 2**63] * 2


def test_a_node_that_has_a_number_of_its_own_keeps_it():
    transport = Numberless([12, 31, 40], places={31: {"partition-id": 0}})
    registry = ClientRegistry(transport, 3)
    assert settled(registry) == {0: 31, 1: 12, 2: 40}


@pytest.mark.parametrize("forgets", [False, True])
def test_a_node_that_returns_has_its_number_again(forgets):
    transport = Numberless([12, 31])
    registry = ClientRegistry(transport, 3)
    assert settled(registry) == {0: 12, 1: 31}
    place = transport.places[31]
    transport.goes(31)
    transport.comes(5)
    assert settled(registry) == {0: 12, 2: 5}

    transport.comes(31)
    if not forgets:
        transport.places[31] = place

    assert settled(registry) == {0: 12, 1: 31, 2: 5}
    assert transport.places[31].number == 1


def test_a_node_that_has_restarted_with_another_id_takes_the_place_of_the_one_gone():
    transport = Numberless([12, 31])
    registry = ClientRegistry(transport, 2)
    settled(registry)

    transport.goes(12)
    transport.comes(77)

    assert settled(registry) == {0: 77, 1: 31}


def test_a_node_too_many_is_refused_with_a_sentence_until_there_is_room(
    impatient, caplog
):
    transport = Numberless([12, 31, 77])
    registry = ClientRegistry(transport, 2)

    assert settled(registry) == {0: 12, 1: 31}
    why = "has no number: all 2 clients of the run are here"
    assert f"a client without a key, node 77, is left out: {why}" in caplog.messages
    assert transport.places[77].known_number is None

    transport.goes(31)

    assert settled(registry) == {0: 12, 1: 77}


class Deaf(Numberless):
    """Node 12 says that it has no number, whatever it is given."""

    def honest_answer(self, request, place):
        honest = super().honest_answer(request, place)
        if request.node == 12:
            honest.scalars["who"].pop("partition", None)
        return honest


def test_who_does_not_take_its_number_is_refused_and_holds_up_no_run(caplog):
    transport = Deaf([12, 31])
    registry = ClientRegistry(transport)
    began = time.monotonic()

    registry.wait_for_clients(1, 60)

    assert time.monotonic() - began < 30
    why = "does not take the number that it is given"
    assert f"a client without a key, node 12, is left out: {why}" in caplog.messages
    assert settled(registry) == {1: 31}
    assert [request.node for _, request in transport.asked] == [12, 31] * 2


def test_without_a_number_of_clients_all_that_come_are_numbered():
    transport = Numberless([12, 31, 77])
    registry = ClientRegistry(transport)
    registry.wait_for_clients(1, 20)
    assert settled(registry, 1) == {0: 12, 1: 31, 2: 77}


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Keys of clients 0 and 1, at nodes 31 and 12."""
    numbers = ClientNumbers(tmp_path / "client-numbers.json")
    for node, client in ((31, 0), (12, 1)):
        numbers.bind(node, Path(f"client-{client}.pub"))
    monkeypatch.setenv(clients.VARIABLE, str(tmp_path / "client-numbers.json"))


def test_a_node_with_a_key_has_the_keys_number(keys):
    registry = ClientRegistry(Numberless([12, 31]), 2)
    assert settled(registry) == {0: 31, 1: 12}


@pytest.mark.parametrize("here", [[5, 12, 31], [5]])
def test_a_node_without_a_key_has_a_number_that_is_no_keys(keys, impatient, here):
    transport = Numberless(here)
    registry = ClientRegistry(transport, 3)

    found = settled(registry)

    assert found[2] == 5
    assert {0: 31, 1: 12, 2: 5}.items() >= found.items()
    for node in {12, 31}.difference(here):
        transport.comes(node)
    assert settled(registry) == {0: 31, 1: 12, 2: 5}


def test_where_all_numbers_are_keys_a_node_without_one_is_refused(keys, caplog):
    registry = ClientRegistry(Numberless([5, 12]), 2)
    assert settled(registry) == {1: 12}
    why = "has no number: all 2 clients of the run are here or have keys"
    assert f"a client without a key, node 5, is left out: {why}" in caplog.messages


def test_a_number_that_is_anothers_key_is_refused(keys, caplog):
    """It has kept that of an earlier run's server, which had no keys."""
    transport = Numberless([5])
    transport.places[5].keep_number(0)
    registry = ClientRegistry(transport, 3)
    assert settled(registry) == {}
    assert "claims to be client 0, whose key it has not" in caplog.text


def test_a_service_that_starts_anew_gives_each_node_its_number_again(tmp_path):
    def counts(transport):
        return TaskCounts(transport, 10.0, time.monotonic, tmp_path)

    def settle(counts):
        for _ in range(4):
            counts.refresh()
        return counts.connected

    first = Numberless([31])
    waiting = counts(first)
    assert settle(waiting) == (0,)
    first.comes(12)
    assert settle(waiting) == (0, 1)

    again = Numberless([12, 31])  # they have kept nothing
    assert settle(counts(again)) == (0, 1)
    assert {node: p.number for node, p in again.places.items()} == {31: 0, 12: 1}


# ---- whole runs


def run(transport, config):
    run_simulated(transport, config)
    return summary_of(Path(config.run.output)), rounds_of(Path(config.run.output))


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_run_has_the_numbers_of_one_whose_nodes_have_their_own(tmp_path, strategy):
    given = tiny(tmp_path / "given", strategy=strategy)
    own = tiny(tmp_path / "own", strategy=strategy)

    found = run(Numberless([31, 12], given), given)

    assert found == run(InProcessTransport([12, 31], own), own)
    nodes = json.loads((tmp_path / "given" / NUMBERS_FILE).read_text())["nodes"]
    assert nodes == {"12": 0, "31": 1}
    assert not (tmp_path / "own" / NUMBERS_FILE).exists()


@pytest.mark.run
@pytest.mark.parametrize("kept", ["folder", "memory"])
def test_a_run_that_is_resumed_gives_each_node_its_number_again(tmp_path, kept):
    """Its nodes come in another order, and in memory they have kept nothing."""

    def states(name):
        return {
            node: {"state-path": str(tmp_path / name / str(node))}
            for node in ([12, 31] if kept == "folder" else [])
        }

    def pull(client, request, reply):
        if asked_in(request, 3):
            raise PulledPlugError
        return reply

    shape = {"strategy": "fedavg", "rounds": 2}
    whole = tiny(tmp_path / "whole", **shape)
    expected = run(Numberless([12, 31], whole, states("a")), whole)
    config = tiny(tmp_path / "run", **shape)
    with pytest.raises(PulledPlugError):
        run_simulated(Numberless([12, 31], config, states("b"), tamper=pull), config)

    resumed = Numberless([31], config.replace(resume=True), states("b"))
    listed = resumed.nodes

    def nodes():  # the other one comes when this one has answered
        if resumed.asked and 12 not in resumed.places:
            resumed.comes(12, **states("b").get(12, {}))
        return listed()

    resumed.nodes = nodes
    found = run(resumed, config.replace(resume=True))

    assert {node: p.number for node, p in resumed.places.items()} == {31: 1, 12: 0}
    for node in (12, 31) if kept == "folder" else ():
        states_of_run, number = tmp_path / "b" / str(node) / "mine", int(node == 31)
        told = json.loads((states_of_run / NUMBER_FILE).read_text())
        assert told["client"] == number
        assert (states_of_run / f"client-{number}").is_dir()
    if kept == "folder":
        assert found == expected
    assert summary_of(tmp_path / "run")["left_out"] == {}


@pytest.mark.run
def test_who_restarts_in_the_midst_of_a_run_goes_on_as_the_same_client(tmp_path):
    config = tiny(tmp_path, strategy="fedavg", rounds=3, grace=0)
    restarted = []

    def restart(client, request, reply):
        if client == 1 and asked_in(request, 2):
            transport.comes(99)
            restarted.append(request.node)
        return reply

    transport = Numberless([12, 31], config, tamper=restart)
    listed = transport.nodes
    transport.nodes = lambda: [n for n in listed() if n not in restarted]
    run_simulated(transport, config)

    assert restarted == [31]
    assert transport.places[99].number == 1
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows[:2]] == [[0, 1], [0, 1]]
    assert rows[-1]["clients"] == [0, 1]
    nodes = json.loads((tmp_path / NUMBERS_FILE).read_text())["nodes"]
    assert nodes == {"12": 0, "99": 1}
