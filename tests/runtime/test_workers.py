"""Clients with workers that stay, in a federation over TLS, and what befalls them."""

import re
import signal
import time

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from local_federation import PATIENCE, LocalFederation

pytestmark = pytest.mark.deploy


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
    lab = LocalFederation(tmp_path_factory.mktemp("lab"))
    try:
        lab.certificates(clients=2)
        lab.server()
        for number in (0, 1):
            lab.client(number)
            lab.until(f"client-{number}", "SuperNode ID")
        # A worker is killed between two rounds.
        lab.run(*SIZE, "--strategy", "fedweit", "--output", "killed", name="killed")
        until_round(lab, "killed", 1)
        (worker,) = workers(lab, "client-1")
        worker.kill()
        assert lab.code("killed") == 0, lab.tails()
        # A run is interrupted, a client is killed, and both go on.
        lab.run(*SIZE, "--strategy", "fedavg", "--output", "resumed", name="first")
        until_round(lab, "resumed", 2)
        lab.started["first"].send_signal(signal.SIGINT)
        lab.code("first")
        assert len(lab.family("client-1")) > 2
        lab.left = lab.kill("client-1")
        lab.client(1, name="returning")
        lab.until("returning", "SuperNode ID")
        lab.run("--resume", "resumed", name="second")
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
