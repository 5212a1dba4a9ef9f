"""The backend without Ray: the files of a real run, and a process left as it was."""

import gc
import json
import weakref

import pytest
import torch
from fakes import rounds_of, tiny
from resuming import outcome
from threadpoolctl import threadpool_info, threadpool_limits

from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.core.errors import RoundError
from fcl_flower.core.log import LOGGER
from fcl_flower.privacy.mechanism import is_simulated
from fcl_flower.rounds.transport import Content, Request
from fcl_flower.simulation.in_process import InProcessTransport, run_in_process
from strategies.fedavg import FedAvg


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


@pytest.mark.run
def test_it_leaves_a_complete_folder_and_returns_its_summary(run):
    folder, summary = run("run")
    assert {path.name for path in folder.iterdir()} == {
        *("accuracy.csv", "config.toml", "diagnostics.json", "flower.log"),
        *("progress.json", "report.html", "rounds.jsonl", "scenario.json"),
        *("summary.json", "checkpoint", "journal.jsonl", ".flower"),
    }
    assert summary == json.loads((folder / "summary.json").read_text())
    assert len(rounds_of(folder)) == 2


@pytest.mark.run
def test_who_trains_is_reported_and_each_reply_with_the_round_it_belongs_to(run):
    seen = []
    run("run", clients=3, strategy="fedavg", watch=seen.append)
    training = [
        (progress["round"], progress["working"], progress["clients_done"])
        for progress in seen
        if progress["state"] == "training"
    ]
    assert training == [
        (number, working, done)
        for number in (1, 2)
        for _ in ("learned", "tested")
        for client in range(3)
        for working, done in (([client], client), ([], client + 1))
    ]
    assert {progress["clients"] for progress in seen} == {0, 3}
    assert seen[-1]["state"] == "finished"


@pytest.mark.run
def test_the_log_goes_to_the_folder_unless_asked_for(run, capsys):
    before = list(LOGGER.handlers)
    folder, _ = run("quiet")
    assert "round 2 of 2" in (folder / "flower.log").read_text()
    assert capsys.readouterr() == ("", "")
    assert LOGGER.handlers == before

    folder, _ = run("loud", verbose=True)
    assert "round 2 of 2" in capsys.readouterr().err
    assert not (folder / "flower.log").exists()
    assert LOGGER.handlers == before


@pytest.mark.run
def test_the_process_is_left_as_it_was(run):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    try:
        run("run")
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.random.get_rng_state(), state)
        assert not is_simulated()
    finally:
        torch.set_num_threads(threads)


def pools():
    """Return how many threads each library has, by its file; torch sets its own."""
    return {
        pool["filepath"]: pool["num_threads"]
        for pool in threadpool_info()
        if "/torch/" not in pool["filepath"]
    }


@pytest.mark.run
def test_no_library_takes_more_threads_than_the_run_has(run, monkeypatch):
    seen = []
    for side, method in ((LocalTraining, "train"), (FedAvg, "combine")):
        honest = getattr(side, method)

        def watched(self, *given, honest=honest):
            seen.append(pools())
            return honest(self, *given)

        monkeypatch.setattr(side, method, watched)
    for threads in (1, 2):
        with threadpool_limits(3):
            before = pools()
            run(f"run{threads}", strategy="fedavg", tasks=1, threads=threads)
            assert pools().items() >= before.items()
        assert len(seen) == 3  # two clients and a server
        assert {count for found in seen for count in found.values()} == {threads}
        seen.clear()


@pytest.mark.run
def test_an_interrupted_run_is_resumed_to_the_same_numbers(run):
    whole, _ = run("whole", clients=3, strategy="fedweit")

    def interrupt(progress):
        if (progress["round"], progress["clients_done"]) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("half", clients=3, strategy="fedweit", watch=interrupt)
    resumed, _ = run("half", clients=3, strategy="fedweit", resume=True)
    assert outcome(resumed) == outcome(whole)


@pytest.mark.run
def test_a_client_that_fails_is_named_with_its_reason(run, monkeypatch, tmp_path):
    def broken(*_):
        raise ValueError("no gradient today")

    monkeypatch.setattr(LocalTraining, "train", broken)
    with pytest.raises(RoundError, match="no gradient today"):
        run("run", strategy="fedavg", max_attempts=1)
    log = (tmp_path / "run" / "flower.log").read_text()
    assert "in broken" in log  # the traceback, for who wrote the client


@pytest.mark.run
def test_a_watch_that_fails_ends_the_run_and_blames_no_client(run, tmp_path):
    def broken(progress):
        if progress["clients_done"] == 1:
            raise BrokenPipeError("nobody looks any longer")

    with pytest.raises(BrokenPipeError, match="nobody looks"):
        run("run", clients=3, strategy="fedavg", watch=broken)
    assert "left out" not in (tmp_path / "run" / "flower.log").read_text()


# ---- a client answers when its reply is asked for, and not before


class Listening(InProcessTransport):
    """Its nodes answer nothing, and note who was asked."""

    def __init__(self, nodes):
        super().__init__(nodes, tiny("", clients=len(nodes)))
        self.asked = []

    def answer(self, request, place):
        self.asked.append(request.node)
        return Content()


class Held(Content):
    """A content of which it can be told whether somebody holds it."""


def test_each_request_is_answered_when_its_reply_is_asked_for_and_then_forgotten():
    transport = Listening([7, 8, 9])
    asked = [Request(node, "train", Held()) for node in transport.nodes()]
    contents = [weakref.ref(request.content) for request in asked]
    names = transport.send(asked, 60)
    del asked
    assert transport.asked == []

    reply = transport.receive(names[1], Request(8, "train"))
    gc.collect()

    assert transport.asked == [8]
    assert reply.node == 8
    assert reply.content == Content()
    assert [content() is None for content in contents] == [False, True, False]
    transport.receive(names[2], Request(9, "train"))
    transport.receive(names[0], Request(7, "train"))
    assert transport.asked == [8, 9, 7]
