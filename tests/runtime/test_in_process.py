"""The backend without Ray: the files of a real run, and a process left as it was."""

import json

import fakes
import pytest
import torch
from fakes import rounds_of, summary_of, tiny
from flwr.app import Message, RecordDict
from flwr.common.logger import FLOWER_LOGGER
from flwr.supercore.task_identity import TaskIdentity

from fcl_flower.core.errors import RoundError
from fcl_flower.runtime.in_process import flower_identity, run_in_process


@pytest.fixture
def run(tmp_path):
    """Run a tiny configuration; return its folder and summary, and what was seen."""

    def start(name, **values):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        watch = values.pop("watch", lambda progress: None)
        verbose = values.pop("verbose", False)
        config = tiny(folder, **values)
        return folder, run_in_process(config, folder, watch=watch, verbose=verbose)

    return start


def test_it_leaves_a_complete_folder_and_returns_its_summary(run):
    folder, summary = run("run")
    assert {path.name for path in folder.iterdir()} == {
        *("accuracy.csv", "attention.json", "config.toml", "flower.log"),
        *("progress.json", "report.html", "rounds.jsonl", "scenario.json"),
        *("summary.json", "checkpoint", "journal.jsonl"),
    }
    assert summary == json.loads((folder / "summary.json").read_text())
    assert len(rounds_of(folder)) == 2


def test_where_clients_keep_their_state_changes_no_number(run, tmp_path):
    config = tiny(tmp_path / "context", strategy="fedweit")
    fakes.run_in_process(config)
    folder, _ = run("run", strategy="fedweit")
    assert summary_of(folder) == summary_of(tmp_path / "context")
    assert rounds_of(folder) == rounds_of(tmp_path / "context")


def test_each_reply_is_reported_with_the_round_it_belongs_to(run):
    seen = []
    run("run", clients=3, strategy="fedavg", watch=seen.append)
    training = [
        (progress["round"], progress["clients_done"], progress["clients"])
        for progress in seen
        if progress["state"] == "training"
    ]
    assert training == [  # each task is learned, then tested
        *((1, 1, 3), (1, 2, 3), (1, 3, 3)),
        *((1, 1, 3), (1, 2, 3), (1, 3, 3)),
        *((2, 1, 3), (2, 2, 3), (2, 3, 3)),
        *((2, 1, 3), (2, 2, 3), (2, 3, 3)),
    ]
    assert seen[-1]["state"] == "finished"


def test_flowers_log_goes_to_the_folder_unless_asked_for(run, capsys):
    before = list(FLOWER_LOGGER.handlers)
    folder, _ = run("quiet")
    assert "round 2 of 2" in (folder / "flower.log").read_text()
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")
    assert FLOWER_LOGGER.handlers == before


def test_a_verbose_run_keeps_flowers_own_log(run, monkeypatch):
    lines = []
    monkeypatch.setattr(FLOWER_LOGGER.handlers[0], "emit", lines.append)
    folder, _ = run("loud", verbose=True)
    assert any("round 2 of 2" in line.getMessage() for line in lines)
    assert not (folder / "flower.log").exists()


def test_the_process_is_left_as_it_was(run, monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    try:
        run("run")
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.random.get_rng_state(), state)
        assert TaskIdentity._run_id is None
    finally:
        torch.set_num_threads(threads)


def test_flower_builds_messages_only_where_there_is_an_identity(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", None)

    def build():
        return Message(RecordDict(), dst_node_id=5, message_type="query")

    with pytest.raises(RuntimeError):
        build()
    with flower_identity():
        assert build().metadata.dst_node_id == 5
    with pytest.raises(RuntimeError):
        build()


def test_an_interrupted_run_is_resumed_to_the_same_numbers(run):
    whole, _ = run("whole", clients=3, strategy="fedweit")

    def interrupt(progress):
        if (progress["round"], progress["clients_done"]) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("half", clients=3, strategy="fedweit", watch=interrupt)
    resumed, _ = run("half", clients=3, strategy="fedweit", resume=True)
    assert summary_of(resumed) == summary_of(whole)
    assert rounds_of(resumed) == rounds_of(whole)


def test_a_client_that_fails_is_named_with_its_reason(run, monkeypatch, tmp_path):
    from clients.fedavg import Sgd

    def broken(*_):
        raise ValueError("no gradient today")

    monkeypatch.setattr(Sgd, "train", broken)
    with pytest.raises(RoundError, match="no gradient today"):
        run("run", strategy="fedavg", max_attempts=1)
    log = (tmp_path / "run" / "flower.log").read_text()
    assert "in broken" in log  # the traceback, for who wrote the client
