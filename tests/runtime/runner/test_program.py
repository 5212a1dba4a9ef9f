"""What the runner keeps of Flower's runtime, with engines of our own in its place."""

import json
from pathlib import Path

import pytest
from fakes import tiny
from flwr.app import Message, RecordDict

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.flower import simulation
from fcl_flower.flower.simulation import KeptActors
from fcl_flower.runtime import runner
from fcl_flower.runtime.runner import FlowerRuns


@pytest.fixture
def started(monkeypatch):
    """Count engines that are started and closed; seed 2 leaves a client at work."""
    events = []

    class Engine:
        can_go_on = True

        def __init__(self, workers, gpus_per_client, app):
            events.append(f"start {workers} {gpus_per_client}")

        def run(self, run_server, clients, settings):
            config = RunConfig.of(settings)
            assert clients == config.scenario.clients
            events.append(f"run {config.run.seed}")
            self.can_go_on = config.run.seed != 2
            if config.run.seed == 3:
                raise ValueError("the server broke")
            (Path(config.run.output) / "summary.json").write_text("{}")

        def close(self):
            events.append("close")

    monkeypatch.setattr(simulation, "KeptActors", Engine)
    monkeypatch.setattr(runner, "_speak_to", lambda path: None)
    return events


def test_actors_are_kept_unless_one_may_still_be_at_work(started, tmp_path):
    run = FlowerRuns(workers=3, gpus_per_client=0.5)
    for number, seed in enumerate([1, 1, 2, 1]):
        (tmp_path / str(number)).mkdir()
        run(tiny("", seed=seed), tmp_path / str(number))

    start = "start 3 0.5"
    assert started == [start, "run 1", "run 1", "run 2", "close", start, "run 1"]
    assert not (tmp_path / "0" / ".flower").exists()


def test_a_run_that_fails_names_the_log_and_says_why_in_it(started, tmp_path, capsys):
    run = FlowerRuns(workers=1, gpus_per_client=0.0)
    with pytest.raises(RoundError, match=r"did not finish; .*/flower\.log"):
        run(tiny("", seed=3), tmp_path)
    assert "ValueError: the server broke" in capsys.readouterr().err


@pytest.mark.parametrize("unanswered", [True, False])
def test_a_message_without_an_answer_is_a_client_at_work(monkeypatch, unanswered):
    actors = KeptActors.__new__(KeptActors)
    actors.can_go_on, actors._engine = True, None
    seen = []

    def server(grid):
        nodes = list(grid.get_node_ids())
        if unanswered:
            grid.push_messages([Message(RecordDict(), nodes[0], "train")])
        seen.append(len(nodes))

    def engine(app_fn, backend_fn, nodes, states, contexts, over, metrics):
        assert backend_fn() is actors
        over.wait(60)
        clients = [c.run_infos[1].context.node_config for c in contexts.values()]
        seen.extend(client["partition-id"] for client in clients)

    monkeypatch.setattr(simulation, "run_api", engine)

    actors.run(server, 3, {})
    actors._engine.join()

    assert actors.can_go_on is not unanswered
    assert seen == [3, 0, 1, 2]


def test_what_the_runner_cannot_do_is_told_and_the_next_request_is_served():
    given = []

    def run(config, folder, local_data):
        given.append((folder, local_data))
        if config.run.seed:
            raise RoundError("no replies")

    asked = [
        {"config": tiny("", seed=seed).flat(), "folder": "x", "local_data": ["a", "b"]}
        for seed in (1, 0)
    ]
    assert [runner._answer(run, json.dumps(one)) for one in asked] == [
        {"error": "no replies", "kind": "RoundError"},
        {},
    ]
    assert given == [(Path("x"), [Path("a"), Path("b")])] * 2
