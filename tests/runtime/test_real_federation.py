"""A real federation on this machine: server, clients and strangers, over TLS."""

import contextlib
import re
import time
from urllib.request import urlopen

import psutil
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from local_federation import LocalFederation

from fcl_flower.runtime.processes import free_port

pytestmark = pytest.mark.deploy

KEY = "clients/client-{}.key"


def copied(source, target, *names):
    """Copy what an operator would hand to a machine."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((source / name).read_bytes())


def page_under_way(lab, port):
    """Return the page that the command "run" serves once there is a run to show."""
    lab.until("run", f"live: http://127.0.0.1:{port}/")
    while lab.started["run"].poll() is None:
        with contextlib.suppress(OSError):  # an error's status is one too
            return urlopen(f"http://127.0.0.1:{port}/", timeout=10).read().decode()
        time.sleep(0.1)
    return ""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """All that happened from empty folders to the end of a run; all is over."""
    lab = LocalFederation(tmp_path_factory.mktemp("lab"))
    here, page = lab.folder, free_port()
    try:
        lab.certificates(clients=3)
        lab.certificates(clients=2, name="other")
        lab.server("--", "--log-file", "superlink.log")
        for number in (0, 1):
            name = f"client-{number}"
            copied(here / "certs", here / f"of-{name}", "ca.crt", KEY.format(number))
            # One has a worker that stays, the other a process for each message.
            more = ["--no-resident"] if number else []
            lab.client(number, *more, certs=f"of-{name}")
        # Knows the server, but has the key of another federation.
        copied(here / "certs", here / "of-stranger", "ca.crt")
        copied(here / "other", here / "of-stranger", KEY.format(1))
        lab.client(1, name="stranger", certs="of-stranger", state="of-stranger/state")
        # A client of ours who meets a server that is not his.
        copied(here / "other", here / "of-deceived", "ca.crt")
        copied(here / "certs", here / "of-deceived", KEY.format(1))
        lab.client(1, name="deceived", certs="of-deceived", state="of-deceived/state")
        copied(here / "certs", here / "of-user", "ca.crt")
        for number in (0, 1):
            lab.until(f"client-{number}", "SuperNode ID")
        lab.run(
            *("--tasks", 2, "--rounds", 1, "--classes-per-task", 2, "--seed", 7),
            *("--output", "results", "--live", "--live-port", page),
            certs="of-user",
        )
        lab.page = page_under_way(lab, page)
        lab.codes = {n: lab.code(n) for n in ("run", "deceived")}
        lab.programs = {
            name: {program for program, _ in lab.members(name)}
            for name in ("server", "client-0", "client-1")
        }
        # A client that is killed, and returns at once.
        assert len(lab.family("client-1")) > 2
        lab.left = lab.kill("client-1")
        copied(here / "of-client-1", here / "of-returning", "ca.crt", KEY.format(1))
        lab.client(1, "--no-resident", name="returning", certs="of-returning")
        lab.until("returning", "SuperNode ID")
        lab.run(
            *("--strategy", "fedavg", "--asynchronous", "--tasks", 2),
            *("--rounds", 1, "--classes-per-task", 2, "--output", "second-results"),
            name="second",
            certs="of-user",
        )
        lab.codes["second"] = lab.code("second")
        # Has a key that the server knows, and says that it is somebody else.
        copied(here / "certs", here / "of-liar", "ca.crt")
        taken = here / "of-liar" / KEY.format(0)
        taken.parent.mkdir()
        taken.write_bytes((here / "certs" / KEY.format(2)).read_bytes())
        lab.client(0, name="liar", certs="of-liar", state="of-liar/state")
        lab.until("liar", "SuperNode ID")
        lab.run(
            *("--strategy", "fedavg", "--tasks", 1, "--rounds", 1),
            *("--classes-per-task", 2, "--output", "third-results"),
            name="third",
            certs="of-user",
        )
        lab.codes["third"] = lab.code("third")
        lab.ports = {
            (at.laddr.ip, at.laddr.port)
            for member in lab.family()
            for at in member.net_connections("inet")
            if at.status == psutil.CONN_LISTEN
        }
        assert len(lab.family("server")) > 2
        lab.left_by_server = lab.kill("server")
        lab.until("client-0", "no program listens at")
    finally:
        lab.alive = lab.end()
    return lab


def test_a_run_gives_what_the_same_run_gives_in_one_process(lab, tmp_path):
    assert lab.codes["run"] == 0, lab.tails()
    run_in_process(tiny(tmp_path, seed=7))
    found = summary_of(lab.folder / "results")
    assert found == summary_of(tmp_path)
    assert found["clients"] == 2


def test_a_run_shows_its_command_its_log_and_how_far_it_is(lab):
    said = lab.said("run")
    assert re.match(r"live: http://\S+/\n\S*flwr run \S+ fcl --stream\n", said)
    assert "Successfully started run" in said
    assert "results and report.html" in said
    assert "task 1 of 0 to 1  round 2/2  accuracy so far" in said
    assert (lab.folder / "results" / "report.html").exists()


def test_a_run_shows_its_page_while_it_goes_on(lab):
    assert "<title>fedweit, under way</title>" in lab.page
    assert 'id="live"' in lab.page


def test_no_client_waits_for_another_in_an_asynchronous_run(lab):
    assert lab.codes["second"] == 0, lab.tails()
    rows = rounds_of(lab.folder / "second-results")
    assert sorted(row["clients"][0] for row in rows) == [0, 0, 1, 1]
    found = summary_of(lab.folder / "second-results")["client_accuracy"]
    assert all(None not in matrix[1] for matrix in found)


def test_a_client_with_a_key_of_its_own_gets_no_other_number_and_the_run_goes_on(lab):
    assert lab.codes["third"] == 0, lab.tails()
    found = summary_of(lab.folder / "third-results")
    why = "has the key of client 2, but claims to be 0"
    assert found["left_out"] == {"2": why}
    assert [None in row for (row,) in found["client_accuracy"]] == [False, False, True]


def test_a_client_with_an_unknown_key_is_not_let_in_and_told_why(lab):
    said = lab.said("stranger")
    assert "does not let client 1 in: either client-1.pub of this key is not in" in said
    assert "SuperNode ID" not in said
    assert "not let in: a call with an unknown key, from 127.0.0.1" in lab.said(
        "server"
    )


def test_a_client_leaves_a_server_that_it_cannot_trust(lab):
    assert lab.codes["deceived"] == 1
    last = lab.said("deceived").splitlines()[-1]
    assert last.startswith(f"fcl: the server at localhost:{lab.port} has a certificate")
    assert "SuperNode ID" not in lab.said("deceived")


def test_a_killed_client_leaves_nothing_behind_and_returns_at_once(lab):
    assert lab.left == []
    assert "does not let client 1 in" not in lab.said("returning")


def test_a_killed_server_leaves_nothing_behind(lab):
    assert lab.left_by_server == []


def test_a_client_says_that_its_server_is_gone(lab):
    (line,) = [li for li in lab.said("client-0").splitlines() if "no program" in li]
    assert line == (
        f"fcl: no program listens at localhost:{lab.port}: start fcl server there, or "
        "correct --server; the client goes on when it is back"
    )
    assert lab.said("client-0").splitlines()[-1] == line


def test_no_client_was_registered_but_those_with_a_key(lab):
    taken = set(re.findall(r"Activated node_id=(\d+)", lab.said("server")))
    known = {
        re.search(r"SuperNode ID: (\d+)", lab.said(name))[1]
        for name in ("client-0", "client-1", "liar")
    }
    assert taken == known
    assert all(row["failed"] == [] for row in rounds_of(lab.folder / "results"))


def test_only_the_reverse_proxy_is_reached_from_outside(lab):
    assert ("127.0.0.1", lab.port) in lab.ports
    assert ("127.0.0.1", lab.control) in lab.ports
    assert {ip for ip, _ in lab.ports} == {"127.0.0.1"}


def test_the_commands_pass_on_what_follows_two_dashes(lab):
    assert (lab.folder / "superlink.log").exists()


def test_what_server_and_clients_need_for_a_restart_is_theirs_alone(lab):
    for name in ("state-server", "state-0", "state-1"):
        assert (lab.folder / name).stat().st_mode & 0o077 == 0


def test_the_programs_that_experiments_watch_and_kill_are_found_by_their_names(lab):
    assert "flower-superlink" in lab.programs["server"]
    assert {"flower-supernode", "worker.py"} <= lab.programs["client-0"]
    assert "flower-supernode" in lab.programs["client-1"]


def test_nothing_outlives_the_commands(lab):
    assert lab.alive == []
    assert lab.started["returning"].returncode == 143
    assert lab.started["client-0"].returncode == 143
