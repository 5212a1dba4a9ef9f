"""Clients with workers that stay, in a federation over TLS, and what befalls them."""

import re
import signal
import time

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from labs import PATIENCE, Lab

from fcl_flower.runtime.processes import free_port


def join(lab, name, number):
    lab.start(
        name,
        *("client", "--server", f"localhost:{lab.port}", "--number", number),
        *("--certs", "certs", "--state", f"state-{number}"),
    )
    lab.until(name, "SuperNode ID")


def begin(lab, name, *more):
    lab.start(
        name,
        *("run", "--server", f"127.0.0.1:{lab.control}", "--certs", "certs", *more),
    )


def until_round(lab, name, number):
    """Wait until a run has finished so many rounds."""
    book = lab.folder / name / "rounds.jsonl"
    deadline = time.monotonic() + PATIENCE
    while not book.exists() or len(rounds_of(book.parent)) < number:
        assert time.monotonic() < deadline, lab.tails()
        time.sleep(0.05)


def workers(lab, name):
    """Return the workers of a client."""
    return [
        one for one in lab.family(name) if any("worker.py" in w for w in one.cmdline())
    ]


SIZE = ("--tasks", 1, "--rounds", 4, "--classes-per-task", 2, "--seed", 7)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """All that happened; all is over."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.port, lab.control = free_port(), free_port()
    try:
        lab.start("certs", "certs", "certs", "--host", "localhost", "--clients", 2)
        assert lab.code("certs") == 0, lab.tails()
        lab.start(
            "server",
            *("server", "--certs", "certs", "--host", "127.0.0.1"),
            *("--port", lab.port, "--control-port", lab.control),
        )
        lab.until("server", "registered client-0.pub", "registered client-1.pub")
        for number in (0, 1):
            join(lab, f"client-{number}", number)
        # A worker is killed between two rounds.
        begin(lab, "killed", *SIZE, "--strategy", "fedweit", "--output", "killed")
        until_round(lab, "killed", 1)
        (worker,) = workers(lab, "client-1")
        worker.kill()
        assert lab.code("killed") == 0, lab.tails()
        # A run is interrupted, a client is killed, and both go on.
        begin(lab, "first", *SIZE, "--strategy", "fedavg", "--output", "resumed")
        until_round(lab, "resumed", 2)
        lab.started["first"].send_signal(signal.SIGINT)
        lab.code("first")
        lab.left = lab.kill("client-1")
        join(lab, "returning", 1)
        begin(lab, "second", "--resume", "resumed")
        assert lab.code("second") == 0, lab.tails()
        lab.workers = [len(workers(lab, name)) for name in ("client-0", "returning")]
    finally:
        lab.alive = lab.end()
    return lab


def test_a_killed_worker_is_a_failure_of_one_round_and_the_client_goes_on(lab):
    rows = rounds_of(lab.folder / "killed")

    (row,) = [row for row in rows if row["failed"]]
    assert row["failed"] == [1]
    assert re.search("the client's worker ended by SIGKILL", str(row["reasons"]))
    assert rows[-1]["clients"] == [0, 1]


def test_a_resumed_run_gives_what_an_undisturbed_one_gives_in_one_process(
    lab, tmp_path
):
    undisturbed = tiny(tmp_path, strategy="fedavg", tasks=1, rounds=4, seed=7)
    run_in_process(undisturbed)

    assert summary_of(lab.folder / "resumed") == summary_of(tmp_path)


def test_a_client_keeps_one_worker_and_leaves_none_behind(lab):
    assert lab.workers == [1, 1]
    assert lab.left == []
    assert lab.alive == []


def test_what_is_meant_to_be_so_is_no_news(lab):
    assert "EXPERIMENTAL" not in lab.said("client-0")
