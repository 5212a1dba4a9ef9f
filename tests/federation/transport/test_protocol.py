"""Client and server compare versions when they meet, and a run says who had no part."""

import pytest
from fakes import InProcessGrid, failure, run_in_process, summary_of, tiny
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from fcl_flower import __version__
from fcl_flower.cli import main
from fcl_flower.federation import clients
from fcl_flower.federation.clients import ClientRegistry


class Grid(InProcessGrid):
    """Its client 1 says something else of its version."""

    def __init__(self, said):
        super().__init__([100, 101], {})
        self.said = said

    def answer(self, message, context):
        if self.client(message) == 1:
            who = ConfigRecord({"partition": 1, **self.said})
            return Message(RecordDict({"who": who}), reply_to=message)
        return super().answer(message, context)


def connected(said):
    registry = ClientRegistry(Grid(said), 2)
    registry.refresh()
    return registry.clients


def test_a_client_of_another_protocol_is_refused_by_name(caplog):
    assert connected({"version": "9.9", "protocol": 99}) == (0,)
    assert (
        "client 1 runs fcl-flower 9.9 with protocol 99, expected protocol "
        f"{clients.PROTOCOL} as in the server's {__version__}: install the same "
        "version there"
    ) in caplog.text


def test_a_client_that_does_not_know_of_protocols_is_refused(caplog):
    assert connected({}) == (0,)
    assert "client 1 runs fcl-flower of an earlier version with protocol 0" in (
        caplog.text
    )


def test_a_client_of_another_version_of_the_same_protocol_is_let_in():
    assert connected({"version": "9.9", "protocol": clients.PROTOCOL}) == (0, 1)


def without_client_1(client, message, reply):
    query = message.metadata.message_type == MessageType.QUERY
    if client == 1 and not query:
        return failure(message, "no [bold] data")
    return reply


def test_a_run_says_at_its_end_who_took_part_in_no_round(tmp_path, caplog):
    run_in_process(tiny(tmp_path), tamper=without_client_1)

    why = "the client failed: no [bold] data"
    assert summary_of(tmp_path)["left_out"] == {"1": why}
    last = caplog.messages[-1]
    assert last == f"client 1 took part in no round: {why}"


def test_the_command_shows_who_took_part_in_no_round(tmp_path, monkeypatch, capsys):
    from fcl_flower.runtime import progress

    summary = {
        **{"average_accuracy": 0.5, "forgetting": 0.0, "honest_accuracy": None},
        **{"left_out": {"1": "[why]"}, "remarks": {}},
    }
    monkeypatch.setattr(main.signal, "signal", lambda *handler: None)
    monkeypatch.setattr(
        progress,
        "run_all",
        lambda place, jobs, *more: (job for job in [(jobs[0], summary)]),
    )
    monkeypatch.setattr(
        "sys.argv",
        ["fcl", "simulate", "--clients", "2", "--output", str(tmp_path / "x")],
    )
    with pytest.raises(SystemExit):
        main.main()

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "client 1 took part in no round: [why]"
