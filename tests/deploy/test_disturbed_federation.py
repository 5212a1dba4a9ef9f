"""A real federation whose workers, clients and runs are killed or stand still."""

import re
import signal
import time

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_PATIENCE
from local_federation import LocalFederation
from waiting import await_true

pytestmark = [pytest.mark.deploy, pytest.mark.soak]

FLOWERS_PATIENCE = HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL
"""Seconds."""
RUN = (
    *("--strategy", "fedavg", "--clients", 3, "--tasks", 1, "--rounds", 4),
    *("--classes-per-task", 2, "--seed", 7),
)
MASKS = ("--set", "federation.secure_aggregation=true")


def until_round(lab, name, number):
    """Wait until a run has finished so many rounds."""
    book = lab.folder / name / "rounds.jsonl"
    await_true(
        lambda: book.exists() and len(rounds_of(book.parent)) >= number, lab.tails
    )


def workers(lab, name):
    family = lab.family(name)
    return [one for one in family if any("worker.py" in w for w in one.cmdline())]


# Those that sleep stand still for longer than Flower's patience.
@pytest.fixture(scope="module", params=[False, True], ids=["awake", "sleeps"])
def lab(request, tmp_path_factory):
    """All that happened from empty folders to the end of two runs; all is over."""
    lab = LocalFederation(tmp_path_factory.mktemp("lab"))
    lab.sleeps = request.param
    lab.codes = {}
    try:
        lab.certificates(clients=3)
        lab.server()
        for number in range(3):
            lab.client(number)
        for number in range(3):
            lab.until(f"client-{number}", "SuperNode ID")
        killed_client(lab)
        killed_worker(lab)
        resumed_run(lab)
        assert len(lab.family("server")) > 2
        lab.left_by_server = lab.kill("server")
        lab.until("client-0", "no program listens at")
    finally:
        lab.alive = lab.end()
    return lab


def killed_client(lab):
    """A client is killed, and returns at once."""
    assert len(lab.family("client-1")) > 2
    lab.left = lab.kill("client-1")
    lab.client(1, name="returning")
    lab.until("returning", "SuperNode ID")


def killed_worker(lab):
    lab.run(*RUN, "--output", "killed", name="killed")
    until_round(lab, "killed", 1)
    (worker,) = workers(lab, "client-2")
    worker.kill()
    lab.codes["killed"] = lab.code("killed")


def stand_still(lab):
    """Let all stand still for longer than Flower waits for a sign of life."""
    family = lab.family()
    for process in family:
        process.suspend()
    time.sleep(FLOWERS_PATIENCE + 5)
    for process in family:
        process.resume()


def resumed_run(lab):
    """A run of masks is interrupted, a client killed; both go on."""
    lab.run(*RUN, *MASKS, "--output", "resumed", name="first")
    until_round(lab, "resumed", 2)
    lab.started["first"].send_signal(signal.SIGINT)
    lab.code("first")
    lab.left += lab.kill("client-2")
    lab.client(2, name="again")
    lab.until("again", "SuperNode ID")
    lab.run("--resume", "resumed", name="second")
    if lab.sleeps:
        lab.until("second", "resuming after round 2")
        stand_still(lab)
    lab.codes["second"] = lab.code("second")
    lab.workers = [len(workers(lab, name)) for name in ("client-0", "again")]


def test_all_runs_end_well(lab):
    ends = {name: lab.said(name) for name, code in lab.codes.items() if code}
    assert ends == {}, lab.tails()


def test_a_run_gives_what_an_undisturbed_one_gives_in_one_process(lab, tmp_path):
    size = {"clients": 3, "tasks": 1, "rounds": 4, "seed": 7}
    run_in_process(tiny(tmp_path, strategy="fedavg", secure_aggregation=True, **size))

    assert summary_of(lab.folder / "resumed") == summary_of(tmp_path)


def test_no_key_of_masks_was_ever_written_down(lab):
    for client in range(3):
        for file in (lab.folder / f"state-{client}").rglob("*"):
            assert not file.is_file() or b"PRIVATE KEY" not in file.read_bytes()


def test_a_killed_worker_is_a_failure_of_one_round_and_the_client_goes_on(lab):
    rows = rounds_of(lab.folder / "killed")

    (row,) = [row for row in rows if row["failed"]]
    assert row["failed"] == [2]
    assert re.search("the client's worker ended by SIGKILL", str(row["reasons"]))
    assert rows[-1]["clients"] == [0, 1, 2]


def test_a_client_says_that_its_server_is_gone(lab):
    (line,) = [li for li in lab.said("client-0").splitlines() if "no program" in li]
    assert re.fullmatch(
        rf"\S+T\S+ fcl: the link to the server at localhost:{lab.port} is cut since "
        rf"\S+: no program listens at localhost:{lab.port}; the client goes on when it "
        "is back",
        line,
    )
    assert lab.said("client-0").splitlines()[-1] == line
    assert "EXPERIMENTAL" not in lab.said("client-0")
    assert "\x1b" not in lab.said("client-0") + lab.said("server")


def test_nothing_outlives_the_commands_even_killed_and_who_returns_is_let_in(lab):
    assert lab.left == lab.left_by_server == lab.alive == []
    assert "does not let client 1 in" not in lab.said("returning")
    assert lab.workers == [1, 1]
    assert lab.started["returning"].returncode == 143
    assert lab.started["client-0"].returncode == 143
