"""Clients in a pool of processes: the numbers of one process, and what dies of it."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

import pytest
from descendants import MARK, marked, vanished
from fakes import rounds_of, tiny
from resuming import outcome
from waiting import await_true

from fcl_flower.core.failures import FAILED
from fcl_flower.privacy.mechanism import is_simulated
from fcl_flower.rounds.mailbox import Mailbox, ask, wait_for_all
from fcl_flower.rounds.transport import Content, Problem, Request
from fcl_flower.simulation.in_process import (
    DIED,
    PREFETCH,
    PooledTransport,
    run_in_process,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "scaffold", "wire_dtype": "int8"},
        {"strategy": "fedavg", "clients": 3, "secure_aggregation": True},
        {"strategy": "fedavg", "clients": 3, "attack": "noise", "attackers": 1},
        {"strategy": "fedweit", "asynchronous": True, "clients": 3},
        {"strategy": "fedavg", "augment": "flip,crop", "normalise": "data"},
    ],
    ids=str,
)
def test_the_numbers_are_those_of_one_process(tmp_path, settings):
    for workers in (1, 2):
        folder = tmp_path / f"{workers}"
        folder.mkdir()
        run_in_process(tiny(folder, **settings), folder, workers=workers)
    assert outcome(tmp_path / "2") == outcome(tmp_path / "1")


class Waited(Future):
    """Done as soon as somebody waits for it."""

    waited = False

    def done(self):
        return self.waited

    def result(self, timeout=None):
        self.waited = True
        return super().result(timeout)


class Pretended(PooledTransport):
    """Two processes in whose place a test answers, or dies."""

    def __init__(self, nodes, *more):
        super().__init__(2, None, nodes, tiny("", clients=len(nodes)), (), *more)
        self.begun, self.dies = [], {}

    def _submit(self, request, place):
        self.begun.append((request.node, place.state))
        future = Waited()
        if request.node in self.dies:
            future.set_exception(self.dies[request.node])
        else:
            future.set_result((Content(), f"state {len(self.begun)}"))
        return future

    def nodes_begun(self):
        return [node for node, _ in self.begun]


def questions(transport, nodes=None, kind="train"):
    return [Request(node, kind) for node in nodes or transport.nodes()]


def replies_to(transport, asked):
    names = transport.send(asked, 60)
    return [transport.receive(*one) for one in zip(names, asked, strict=True)]


def test_a_few_messages_are_begun_ahead_and_replies_come_in_order():
    nodes = list(range(10, 20))
    pool = Pretended(nodes)
    seen = [
        (reply.node, len(pool.begun))
        for reply in ask(Mailbox(pool, timeout=5), questions(pool), wait_for_all)
    ]
    ahead = PREFETCH * 2
    assert seen == [(node, min(n + ahead, 10)) for n, node in enumerate(nodes)]
    assert pool.nodes_begun() == nodes


def test_a_nodes_second_message_waits_for_the_state_after_the_first():
    pool = Pretended([7, 8])
    asked = questions(pool, [7, 8, 7])
    names = pool.send(asked, 60)
    for number in (2, 0, 1):
        pool.receive(names[number], asked[number])
    # The one that is asked for first is begun first; the other of its node follows.
    assert pool.nodes_begun() == [7, 7, 8]
    assert pool.begun[1][1] == "state 1"


def test_who_is_at_work_is_told():
    told = []
    pool = Pretended([7, 8, 9], lambda *turn: told.append(turn))
    replies_to(pool, questions(pool))
    assert told == [
        *[([0, 1, 2], 0, 3), ([1, 2], 1, 3), ([1, 2], 1, 3)],
        *[([2], 2, 3), ([2], 2, 3), ([], 3, 3)],
    ]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokenProcessPool("gone"), DIED),
        (ValueError("cannot be sent"), "ValueError: cannot be sent"),
    ],
)
def test_a_client_whose_process_died_is_answered_for_by_an_error(error, reason):
    pool = Pretended([7, 8, 9])
    pool.dies = {8: error}
    replies = replies_to(pool, questions(pool))
    failed = Problem(f"{FAILED}: {reason}")
    assert [reply.problem for reply in replies] == [None, failed, None]
    pool.dies = {}
    (reply,) = replies_to(pool, questions(pool, [8]))
    assert reply.problem is None
    assert pool.nodes_begun() == [7, 8, 9, 8]


@pytest.mark.process
def test_a_process_logs_goes_on_after_an_interrupt_and_is_replaced_when_it_dies(
    tmp_path,
):
    log = tmp_path / "log"
    log.write_text("INFO before\n")
    with closing(PooledTransport(1, log, [7, 8], tiny(tmp_path))) as pool:
        submit = pool._processes.submit
        worker = submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        (reply,) = replies_to(pool, questions(pool, [7]))
        assert submit(os.getpid).result() == worker
        assert submit(is_simulated).result()
        with pytest.raises(BrokenProcessPool):
            submit(os._exit, 1).result()
        replies = replies_to(pool, questions(pool, kind="query"))
    assert reply.problem  # the call says nothing
    before, said, *_ = log.read_text().splitlines()
    assert (before, said[:6]) == ("INFO before", "ERROR ")
    assert [reply.content.scalars["who"]["partition"] for reply in replies] == [0, 1]


@pytest.mark.process
def test_two_processes_are_at_work_and_none_outlives_a_command_that_is_killed(tmp_path):
    folder = tmp_path / "run"
    shape = ("--clients", "4", "--tasks", "2", "--classes-per-task", "2")
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "fcl_flower.cli.main", "simulate", *shape),
            *("--rounds", "2000", "--workers", "2", "--output", folder),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), MARK: str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    await_true(
        lambda: (folder / "rounds.jsonl").exists() and len(rounds_of(folder)) >= 2,
        ended=lambda: command.poll() is not None,
    )
    pool = [one for one in marked(tmp_path) if "forkserver" in " ".join(one.cmdline())]
    assert len(pool) == 3  # of which one only makes the others

    command.kill()
    command.wait()

    assert vanished(tmp_path, seconds=60)
