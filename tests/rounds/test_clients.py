"""Who is refused a number, why, and for how long."""

import threading
import time
from pathlib import Path

import pytest
from fakes import InProcessTransport, failure, run_in_process, summary_of, tiny
from waiting import await_true

from fcl_flower import __version__
from fcl_flower.cli import main
from fcl_flower.config.run_config import RunConfig
from fcl_flower.rounds import clients
from fcl_flower.rounds.clients import ClientNumbers, ClientRegistry
from fcl_flower.rounds.transport import QUERY, Content

TAKEN = "claims to be client 0, which another is already"


class Claiming(InProcessTransport):
    """Nodes that say what a test wants, and of which some are there."""

    def __init__(self, **said):
        nodes = [int(name[1:]) for name in said]
        super().__init__(nodes, RunConfig())
        self.said = dict(zip(nodes, said.values(), strict=True))
        self.here = nodes

    def nodes(self):
        return self.here

    def honest_answer(self, request, place):
        said = self.said[request.node]
        return Content(scalars={"who": {"partition": said, **clients.own()}})


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Keys of clients 0 and 1, at nodes 11 and 12."""
    numbers = ClientNumbers(tmp_path / "client-numbers.json")
    for client in (0, 1):
        numbers.bind(11 + client, Path(f"client-{client}.pub"))
    monkeypatch.setenv("FCL_CLIENT_NUMBERS", str(tmp_path / "client-numbers.json"))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(clients, "RETRY_SECONDS", 0.0)


def connected(transport):
    registry = ClientRegistry(transport, 2)
    registry.refresh()
    return registry


def test_a_number_goes_on_when_who_had_it_is_gone(impatient, caplog):
    transport = Claiming(n11=0, n12=0)
    registry = connected(transport)
    assert (registry.clients, registry.node(0)) == ((0,), 11)
    assert f"node 12, is left out: {TAKEN}" in caplog.text

    transport.here = [12]
    registry.refresh()

    assert (registry.clients, registry.node(0)) == ((0,), 12)


def test_who_was_refused_is_not_asked_again_at_once():
    transport = Claiming(n11=0, n12=0)
    registry = connected(transport)

    registry.refresh()

    assert [m.node for _, m in transport.asked] == [11, 12]


def test_a_claim_is_the_reason_while_its_node_is_there(keys):
    transport = Claiming(n11=0, n12=0)
    registry = connected(transport)
    assert registry.why_absent(1) == "has the key of client 1, but claims to be 0"

    transport.here = [11]
    registry.refresh()

    assert registry.why_absent(1) == "is not connected"


def test_a_claim_that_was_mended_is_forgotten(keys, impatient):
    transport = Claiming(n11=0, n12=0)
    registry = connected(transport)
    transport.said[12] = 1
    registry.refresh()
    assert registry.clients == (0, 1)

    registry.mark_gone(12)

    assert registry.why_absent(1) == "is not connected"


def test_a_node_without_a_sign_of_life_is_asked_later_and_keeps_its_number(monkeypatch):
    transport = Claiming(n11=0, n12=1)
    registry = connected(transport)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)

    registry.mark_gone(12)
    registry.refresh()

    assert registry.clients == (0,)
    assert [m.node for _, m in transport.asked] == [11, 12]
    now += clients.RETURN_SECONDS
    registry.refresh()
    assert (registry.clients, registry.node(1)) == ((0, 1), 12)


def test_a_run_does_not_wait_for_who_claims_another_number(keys):
    registry = ClientRegistry(Claiming(n11=0, n12=0), 2)
    began = time.monotonic()

    registry.wait_for_clients(1, 20)

    assert time.monotonic() - began < 15
    assert registry.clients == (0,)
    assert registry.why_absent(1) == "has the key of client 1, but claims to be 0"


@pytest.mark.parametrize(
    ("least", "here"),
    [
        (2, [11, 12]),  # too few without the liar, who may mend its ways
        (1, [11]),  # client 1 has not come yet
        (1, [11, 99]),  # a stranger keeps nobody from coming
    ],
)
def test_who_may_still_come_is_waited_for(keys, least, here, impatient):
    transport = Claiming(n11=0, n12=0, n99=0)
    transport.here = here
    registry = ClientRegistry(transport, 2)
    began = time.monotonic()

    def comes():
        time.sleep(0.3)
        transport.said[12] = 1
        transport.here = [11, 12]

    thread = threading.Thread(target=comes)
    thread.start()
    registry.wait_for_clients(least, 60)
    thread.join()

    assert registry.clients == (0, 1)
    assert 0.3 < time.monotonic() - began < 30


def test_a_liar_that_fails_may_still_come(keys, impatient):
    transport = Claiming(n11=0, n12=0)
    registry = connected(transport)
    assert registry._awaited() == set()

    transport.tamper = lambda who, request, reply: failure(request, "no memory")
    registry.refresh()

    assert registry._awaited() == {1}


def test_a_failure_is_no_lie(keys, impatient):
    transport = Claiming(n11=0, n12=1)
    times = []

    def breaks(who, request, reply):
        times.append(who)
        first = request.node == 12 and len(times) < 4
        return failure(request, "no memory") if first else reply

    transport.tamper = breaks
    registry = ClientRegistry(transport, 2)

    registry.wait_for_clients(1, 60)

    assert registry.clients == (0, 1)


def test_where_a_network_does_not_answer_the_last_list_stands(monkeypatch):
    """Flower's call retries without end; the rounds need not wait for it."""
    monkeypatch.setattr(clients.mailbox, "POLL_TIMEOUT", 0.1)
    answers = threading.Event()
    answers.set()

    class Network(Claiming):
        blocking = True

        def nodes(self):
            said = super().nodes()
            assert answers.wait(30)
            return said

    transport = Network(n11=0, n12=1)
    registry = ClientRegistry(transport, 2)
    registry.wait_for_clients(2, 30)

    answers.clear()
    transport.here = [11]
    for _ in range(3):
        registry.refresh()
    assert registry.clients == (0, 1)

    answers.set()
    await_true(lambda: registry.refresh() == (0,))


@pytest.mark.parametrize("blocking", [True, False])
def test_what_the_transport_refuses_is_not_hidden(blocking):
    transport = Claiming(n11=0)
    transport.blocking = blocking
    transport.nodes = lambda: [][0]
    with pytest.raises(IndexError):
        ClientRegistry(transport, 1).wait_for_clients(1, 30)


# ---- client and server compare versions when they meet, and a run says who had no part


class Versions(InProcessTransport):
    """Its client 1 says something else of its version."""

    def __init__(self, said):
        super().__init__([100, 101], RunConfig())
        self.said = said

    def honest_answer(self, request, place):
        if place.number == 1:
            return Content(scalars={"who": {"partition": 1, **self.said}})
        return super().honest_answer(request, place)


def let_in(said):
    registry = ClientRegistry(Versions(said), 2)
    registry.refresh()
    return registry.clients


EXPECTED = (
    f"expected protocol {clients.PROTOCOL} as in the server's {__version__}: install "
    "the same version there"
)


@pytest.mark.parametrize(
    ("said", "here", "why"),
    [
        ({"version": "9.9", "protocol": 99}, (0,), f"9.9 with protocol 99, {EXPECTED}"),
        ({}, (0,), f"of an earlier version with protocol 0, {EXPECTED}"),
        ({"version": "9.9", "protocol": clients.PROTOCOL}, (0, 1), ""),
    ],
    ids=["another protocol", "no protocol", "another version"],
)
def test_a_client_of_another_protocol_is_refused_by_name(said, here, why, caplog):
    assert let_in(said) == here
    assert (f"client 1 runs fcl-flower {why}" in caplog.text) == bool(why)


def without_client_1(client, request, reply):
    query = request.kind == QUERY
    if client == 1 and not query:
        return failure(request, "no [bold] data")
    return reply


@pytest.mark.run
def test_a_run_says_at_its_end_who_took_part_in_no_round(tmp_path, caplog):
    run_in_process(tiny(tmp_path), tamper=without_client_1)

    why = "the client failed: no [bold] data"
    assert summary_of(tmp_path)["left_out"] == {"1": why}
    last = caplog.messages[-1]
    assert last == f"client 1 took part in no round: {why}"


def test_the_command_shows_who_took_part_in_no_round(tmp_path, monkeypatch, capsys):
    from fcl_flower.simulation import progress

    summary = {
        **{"average_accuracy": 0.5, "forgetting": 0.0, "honest_accuracy": None},
        **{"remarks": {}, "left_out": {"1": "[why]"}},
    }
    monkeypatch.setattr(main.signal, "signal", lambda *handler: None)
    monkeypatch.setattr(
        progress, "run_all", lambda place, jobs, *more: (yield jobs[0], summary)
    )
    monkeypatch.setattr(
        "sys.argv",
        ["fcl", "simulate", "--clients", "2", "--output", str(tmp_path / "x")],
    )
    with pytest.raises(SystemExit):
        main.main()

    lines = capsys.readouterr().out.splitlines()
    assert "client 1 took part in no round: [why]" in lines


def test_who_is_missing_before_the_first_round_is_said(monkeypatch, caplog):
    monkeypatch.setattr(clients, "NOTICE_SECONDS", 0.05)
    caplog.set_level("INFO")

    ClientRegistry(Claiming(n11=0), 2).wait_for_clients(1, 0.4)

    assert "waiting for clients 1 (is not connected); here: 0" in caplog.messages
    last = "all are here that the run waits for: clients 0"
    assert caplog.messages[-1] == last
