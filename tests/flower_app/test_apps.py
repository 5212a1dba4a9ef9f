"""Our apps: what a client keeps of a run, and how a run ends that fails."""

import sys

import pytest
from fakes import tiny
from flwr.app import Context, Message, RecordDict

from fcl_flower.core.errors import RoundError
from fcl_flower.core.types import Assignment, TaskStage
from fcl_flower.flower_app import server_app
from fcl_flower.flower_app.client_app import app
from fcl_flower.flower_app.records import RecordMaker, content_of
from fcl_flower.results.known_runs import known_runs
from fcl_flower.rounds import messages
from fcl_flower.rounds.clients import VARIABLE
from fcl_flower.rounds.transport import Content
from fcl_flower.setup.resolve import resolve


def asked(context, kind="query", content=None):
    records = RecordMaker().records(content or Content())
    return app(Message(records, dst_node_id=7, message_type=kind), context)


def context_of(node_config, run_config=None):
    return Context(5, 7, node_config, RecordDict(), run_config or {})


def told(folder, number=None):
    return messages.greeting(resolve(tiny(folder)).to_json(), number)


def test_a_client_says_who_it_is_and_keeps_the_run_in_its_context(tmp_path):
    context = context_of({"partition-id": 3})

    reply = asked(context, content=told(tmp_path))

    assert content_of(reply.content).scalars["who"]["partition"] == 3
    assert messages.told_run(content_of(context.state))


def test_a_client_keeps_the_number_that_it_is_given_in_its_context(tmp_path):
    context = context_of({})
    assert "partition" not in content_of(asked(context).content).scalars["who"]

    asked(context, content=told(tmp_path, 4))

    reply = asked(context)
    assert content_of(reply.content).scalars["who"]["partition"] == 4
    assert messages.told_run(content_of(context.state))


def test_a_message_that_changes_nothing_leaves_the_context_alone(tmp_path):
    context = context_of({"partition-id": 3})
    asked(context, content=told(tmp_path))
    before = context.state

    asked(context)

    assert context.state is before


@pytest.mark.parametrize(
    ("run_config", "name"), [({}, "5"), ({"run.id": ""}, "5"), ({"run.id": "a"}, "a")]
)
def test_a_clients_folder_has_the_name_of_its_run(tmp_path, run_config, name):
    node_config = {"partition-id": 3, "state-path": str(tmp_path / "states")}
    asked(context_of(node_config, run_config), content=told(tmp_path / "run"))
    assert (tmp_path / "states" / name / "client-3" / "run.json").is_file()


def test_an_error_is_answered_for_by_its_sentence():
    reply = asked(context_of({"partition-id": 3}), "query.nothing")
    assert reply.error.reason.startswith("message: got the kind 'query.nothing'")


def test_settings_of_a_node_that_are_wrong_are_a_sentence():
    reply = asked(context_of({"partition-id": "x"}))
    assert "partition-id" in reply.error.reason


def test_a_run_that_is_not_known_is_asked_for():
    context = context_of({"partition-id": 3})
    stage = TaskStage(1, 0, starts_task=True, ends_task=True)
    question = messages.MessageEncoder().encode_request({}, Assignment(stage))
    reply = asked(context, "train", question)
    assert messages.RUN_UNKNOWN in content_of(reply.content).scalars


@pytest.mark.parametrize(
    ("error", "lines"),
    [(RoundError("too few replies"), 0), (KeyError("nobody has foreseen it"), 100)],
)
def test_only_a_failure_that_was_foreseen_has_no_traceback(
    tmp_path, monkeypatch, error, lines
):
    def fail(config, transport):
        raise error

    monkeypatch.setattr(sys, "tracebacklimit", 100, raising=False)
    monkeypatch.setattr(server_app, "run_federation", fail)
    context = Context(1, 0, {}, RecordDict(), tiny(tmp_path / "out").flat())

    with pytest.raises(type(error)):
        server_app.main(None, context)

    assert sys.tracebacklimit == lines


def test_speedups_are_taken_up_where_the_environment_names_them(tmp_path, monkeypatch):
    (tmp_path / "swift.py").write_text("taken = []\ndef take_up(): taken.append(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(server_app.SPEEDUPS, "swift")
    done = []
    context = Context(1, 0, {}, RecordDict(), tiny(tmp_path / "out").flat())

    server_app.run_with(lambda config, transport: done.append(config), None, context)

    assert sys.modules["swift"].taken == [1]
    assert done == [tiny(tmp_path / "out")]


def test_a_run_of_a_server_is_noted_beside_its_state(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "state" / "client-numbers.json"))
    runs = tmp_path / "state" / "runs"
    with server_app.noted_run(tiny(tmp_path / "out")):
        assert not runs.exists(), "it has no name"
    with server_app.noted_run(tiny(tmp_path / "out", id="mine")):
        (run,) = known_runs(runs)
        assert (run.name, run.standing) == ("mine", "goes on")
        assert run.folder == tmp_path / "out"
    assert [run.standing for run in known_runs(runs)] == ["finished"]


def test_a_simulation_notes_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with server_app.noted_run(tiny(tmp_path / "out", id="mine")):
        assert [*tmp_path.iterdir()] == []
