"""The command that lists clients, and what it reads on the server's machine."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fakes import InProcessTransport, tiny

from fcl_flower.core.errors import RoundError
from fcl_flower.deploy import commands
from fcl_flower.rounds import clients
from fcl_flower.rounds.clients import ClientNumbers, ClientRegistry
from fcl_flower.rounds.roll import FILE, read_roll
from fcl_flower.rounds.transport import Content
from fcl_flower.service.members import membership, write_keys

NODES = {9011: 0, 9012: 1, 9013: 2, 9014: 3}


class Telling(InProcessTransport):
    """Nodes that say their number, a version and how many tasks they have."""

    def __init__(self, here, **more):
        super().__init__(list(NODES), tiny("", clients=len(NODES)))
        self.here, self.more = here, more

    def nodes(self):
        return self.here

    def answer(self, request, place):
        node = request.node
        who = {
            "partition": NODES[node],
            **clients.own(),
            "tasks": node % 10,
            **self.more,
        }
        return Content(scalars={"who": who})


@pytest.fixture
def state(tmp_path, monkeypatch):
    """A server's folder, with keys of clients 0 to 3."""
    folder, keys = tmp_path / "server", tmp_path / "clients"
    (folder / "flower").mkdir(parents=True)
    (folder / "flower" / "config.toml").touch()
    keys.mkdir()
    numbers = ClientNumbers(folder / "client-numbers.json")
    for node, client in NODES.items():
        names = ["ward 1", "ward 2", "", "client-3"]
        public = keys / f"client-{client}.pub"
        public.write_text(f"ecdsa-sha2-nistp384 AAAA {names[client]}\n")
        numbers.bind(node, public)
    write_keys(folder, keys)
    monkeypatch.setenv(clients.VARIABLE, str(folder / "client-numbers.json"))
    return folder


@pytest.fixture
def listed():
    """What the SuperLink tells of nodes."""
    return [
        {"node-id": str(node), "status": "online", "offline-at": ""} for node in NODES
    ]


def registry(transport, wanted):
    found = ClientRegistry(transport, wanted)
    found.refresh()
    found.refresh()
    return found


def test_each_client_is_told_by_number_name_state_version_and_tasks(state, listed):
    registry(Telling([9011, 9012, 9014]), 3)
    listed[2] |= {"status": "offline", "offline-at": "2026-01-02 03:04:05Z"}
    rows = membership(state, listed)
    assert [(row.number, row.name) for row in rows] == [
        (0, "ward 1"),
        (1, "ward 2"),
        (2, "client-2"),
        (3, "client-3"),
    ]
    assert [row.state for row in rows[:3]] == [
        "connected",
        "connected",
        "away",
    ]
    assert rows[2].seen == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert rows[3].state.startswith("refused: the run has 3 clients; --resume")
    assert [row.tasks for row in rows] == [1, 2, None, 4]
    assert rows[0].version == clients.own()["version"]
    assert rows[2].version == ""


def test_who_is_refused_for_its_version_is_told_so_until_it_is_taken_in(state, listed):
    registry(Telling([9011], protocol=1), 2)
    assert "refused: client 0 runs fcl-flower" in membership(state, listed)[0].state
    registry(Telling([9011]), 2)
    assert membership(state, listed)[0].state == "connected"


def test_a_client_has_left_whose_key_is_gone(state, listed, tmp_path):
    registry(Telling([9011, 9012]), 2)
    (tmp_path / "clients" / "client-1.pub").unlink()
    write_keys(state, tmp_path / "clients")
    rows = membership(state, listed)
    assert [row.state for row in rows][:2] == ["connected", "left: its key is gone"]


def test_without_a_server_the_last_that_was_known_is_told(state):
    registry(Telling([9011]), 2)
    rows = membership(state, ())
    assert [row.state for row in rows][:2] == ["away", "never seen"]
    assert abs(rows[0].seen - datetime.now(UTC)) < timedelta(minutes=1)


def test_what_a_client_says_cannot_break_the_table(state):
    registry(Telling([9011], version="\x1b[31m" + "x" * 1000), 2)
    member = read_roll(state)[0]
    assert len(member.version) <= 200
    assert member.version.isprintable()
    (state / FILE).write_text("{")
    assert read_roll(state) == {}


def test_a_simulation_keeps_no_roll(state, monkeypatch):
    monkeypatch.delenv(clients.VARIABLE)
    registry(Telling([9011]), 2)
    assert not (state / FILE).exists()


def test_the_command_shows_a_table_without_ids(state, listed, fcl, monkeypatch):
    def flwr(home, *arguments):
        assert arguments[:2] == ("supernode", "list")
        if not listed:
            raise RoundError("nobody answers")
        return {"nodes": listed}

    monkeypatch.setattr(commands, "flwr", flwr)
    registry(Telling([9011, 9012]), 2)
    listed[2] |= {"status": "offline", "offline-at": "2026-01-02 03:04:05Z"}
    answer = fcl("clients", "--state", state)
    assert answer.code == 0, answer.err
    assert "ward 1" in answer.out
    assert "2026-01-02 03:04:05 UTC" in " ".join(answer.out.split())
    assert not any(str(node) in answer.out for node in NODES)
    assert "its last list" not in answer.out
    listed.clear()
    assert "its last list" in fcl("clients", "--state", state).out
    refused = fcl("clients", "--state", Path("elsewhere"))
    refused.is_refusal("state: got 'elsewhere', expected the --state folder")
