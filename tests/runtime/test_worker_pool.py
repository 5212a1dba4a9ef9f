"""Clients in a pool of processes: the numbers of one process, and what dies of it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from descendants import MARK, marked, vanished
from fakes import rounds_of, summary_of, tiny
from flwr.app import Message, RecordDict

from fcl_flower.federation.mailbox import Mailbox, ask, wait_for_all
from fcl_flower.federation.messages import can_alias
from fcl_flower.privacy.mechanism import is_simulated
from fcl_flower.runtime.in_process import (
    DIED,
    PREFETCH,
    PooledGrid,
    run_in_process,
)

ROOT = Path(__file__).parents[2]


def numbers(folder):
    files = ("accuracy.csv", "scenario.json")
    texts = [(folder / name).read_text() for name in files]
    return summary_of(folder), rounds_of(folder), texts


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
    assert numbers(tmp_path / "2") == numbers(tmp_path / "1")


class Waited(Future):
    """Done as soon as somebody waits for it."""

    waited = False

    def done(self):
        return self.waited

    def result(self, timeout=None):
        self.waited = True
        return super().result(timeout)


class Pretended(PooledGrid):
    """Two processes in whose place a test answers, or dies."""

    def __init__(self, nodes, *more):
        flat = tiny("", clients=len(nodes)).flat()
        super().__init__(2, None, nodes, flat, (), *more)
        self.begun, self.dies = [], {}

    def _submit(self, message, context):
        self.begun.append((context.node_id, context.state))
        future = Waited()
        if context.node_id in self.dies:
            future.set_exception(self.dies[context.node_id])
        else:
            reply = Message(RecordDict(), reply_to=message)
            future.set_result((reply, f"state {len(self.begun)}"))
        return future

    def nodes_begun(self):
        return [node for node, _ in self.begun]


def questions(grid, nodes=None, kind="train"):
    return [
        Message(RecordDict(), dst_node_id=node, message_type=kind)
        for node in nodes or grid.get_node_ids()
    ]


def test_a_few_messages_are_begun_ahead_and_replies_come_in_order():
    nodes = list(range(10, 20))
    grid = Pretended(nodes)
    seen = [
        (reply.metadata.src_node_id, len(grid.begun))
        for reply in ask(Mailbox(grid, timeout=5), questions(grid), wait_for_all)
    ]
    ahead = PREFETCH * 2
    assert seen == [(node, min(n + ahead, 10)) for n, node in enumerate(nodes)]
    assert grid.nodes_begun() == nodes


def test_a_nodes_second_message_waits_for_the_state_after_the_first():
    grid = Pretended([7, 8])
    names = grid.push_messages(questions(grid, [7, 8, 7]))
    grid.pull_messages([names[2]])
    grid.pull_messages(names[:2])
    # The one that is asked for first is begun first; the other of its node follows.
    assert grid.nodes_begun() == [7, 7, 8]
    assert grid.begun[1][1] == "state 1"


def test_who_is_at_work_is_told():
    told = []
    grid = Pretended([7, 8, 9], lambda *turn: told.append(turn))
    grid.pull_messages(grid.push_messages(questions(grid)))
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
    grid = Pretended([7, 8, 9])
    grid.dies = {8: error}
    replies = grid.pull_messages(grid.push_messages(questions(grid)))
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert replies[1].error.reason == reason
    grid.dies = {}
    (reply,) = grid.pull_messages(grid.push_messages(questions(grid, [8])))
    assert not reply.has_error()
    assert grid.nodes_begun() == [7, 8, 9, 8]


@pytest.mark.process
def test_a_process_logs_goes_on_after_an_interrupt_and_is_replaced_when_it_dies(
    tmp_path,
):
    log = tmp_path / "log"
    log.write_text("INFO before\n")
    with closing(PooledGrid(1, log, [7, 8], tiny(tmp_path).flat())) as grid:
        submit = grid._processes.submit
        worker = submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        (reply,) = grid.pull_messages(grid.push_messages(questions(grid, [7])))
        assert submit(os.getpid).result() == worker
        assert submit(is_simulated).result()
        assert submit(can_alias, np.ones(3)).result()
        with pytest.raises(BrokenProcessPool):
            submit(os._exit, 1).result()
        asked = questions(grid, kind="query")
        replies = grid.pull_messages(grid.push_messages(asked))
    assert reply.has_error()  # the call says nothing
    before, said, *_ = log.read_text().splitlines()
    assert (before, said[:6]) == ("INFO before", "ERROR ")
    assert [reply.content["who"]["partition"] for reply in replies] == [0, 1]


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
    deadline = time.monotonic() + 300
    while not (folder / "rounds.jsonl").exists() or len(rounds_of(folder)) < 2:
        assert command.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pool = [one for one in marked(tmp_path) if "forkserver" in " ".join(one.cmdline())]
    assert len(pool) == 3  # of which one only makes the others

    command.kill()
    command.wait()

    assert vanished(tmp_path, seconds=60)
