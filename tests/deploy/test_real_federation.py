"""A real federation on this machine: server, clients and strangers, over TLS."""

import re
from urllib.request import urlopen

import psutil
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from local_federation import LocalFederation
from memory import taken_by

from fcl_flower.core.processes import free_port

pytestmark = pytest.mark.deploy

KEY = "clients/client-{}.key"


def copied(source, target, *names):
    """Copy what an operator would hand to a machine."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((source / name).read_bytes())


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """All that happened from empty folders to the end of several runs; all is over."""
    lab = LocalFederation(tmp_path_factory.mktemp("lab"))
    lab.codes = {}
    try:
        begin(lab)
        lab.idle = taken_by(lab.family("client-0"))
        asynchronous_run(lab)
        last_run(lab)
        lab.busy = taken_by(lab.family("client-0"))
        lab.ports = {
            (at.laddr.ip, at.laddr.port)
            for member in lab.family()
            for at in member.net_connections("inet")
            if at.status == psutil.CONN_LISTEN
        }
    finally:
        lab.alive = lab.end()
    return lab


def begin(lab):
    """Start the server and two clients, and three that are not what they claim."""
    here = lab.folder
    lab.certificates(clients=3)
    lab.certificates(clients=2, name="other")
    lab.metrics = free_port()
    lab.server("--metrics-port", lab.metrics, "--", "--log-file", "superlink.log")
    for number in range(2):
        name = f"client-{number}"
        copied(here / "certs", here / f"of-{name}", "ca.crt", KEY.format(number))
        lab.client(number, certs=f"of-{name}")
    # The stranger knows the server, but has a key of another federation.
    copied(here / "certs", here / "of-stranger", "ca.crt")
    copied(here / "other", here / "of-stranger", KEY.format(1))
    lab.client(1, name="stranger", certs="of-stranger", state="of-stranger/state")
    # The deceived client meets a server of another federation.
    copied(here / "other", here / "of-deceived", "ca.crt")
    copied(here / "certs", here / "of-deceived", KEY.format(1))
    lab.client(1, name="deceived", certs="of-deceived", state="of-deceived/state")
    copied(here / "certs", here / "of-user", "ca.crt")
    # The liar has the key of client 2, and claims to be client 0.
    copied(here / "certs", here / "of-liar", "ca.crt")
    (here / "of-liar" / "clients").mkdir()
    key = (here / "certs" / KEY.format(2)).read_bytes()
    (here / "of-liar" / KEY.format(0)).write_bytes(key)
    lab.client(0, name="liar", certs="of-liar", state="of-liar/state")
    for name in ("client-0", "client-1", "liar"):
        lab.until(name, "SuperNode ID")
    # Each of its attempts starts a SuperNode.
    lab.until("stranger", "trying again every")
    lab.left = lab.end("stranger")


def asynchronous_run(lab):
    """No client waits for another."""
    lab.run(
        *("--strategy", "fedavg", "--classes-per-task", 2, "--asynchronous"),
        *("--clients", 2, "--tasks", 2, "--rounds", 1, "--seed", 7),
        *("--output", "asynchronous"),
        name="asynchronous",
        certs="of-user",
    )
    lab.codes["asynchronous"] = lab.code("asynchronous")


def last_run(lab):
    """Each round waits for all; then the metrics are read."""
    lab.run(
        *("--clients", 2, "--tasks", 2, "--rounds", 1),
        *("--classes-per-task", 2, "--seed", 7),
        *("--output", "run"),
        certs="of-user",
    )
    lab.codes |= {name: lab.code(name) for name in ("run", "deceived")}
    lab.programs = {
        name: {program for program, _ in lab.members(name)}
        for name in ("server", "client-0")
    }
    address = f"http://127.0.0.1:{lab.metrics}/metrics"
    with urlopen(address, timeout=10) as reply:
        lab.scraped = reply.read().decode().splitlines()


# ---- runs


def test_all_runs_end_well(lab):
    assert lab.codes.pop("deceived", 1) == 1
    ends = {name: lab.said(name) for name, code in lab.codes.items() if code}
    assert ends == {}, lab.tails()
    assert lab.left == lab.alive == []


def test_a_run_gives_what_an_undisturbed_one_gives_in_one_process(lab, tmp_path):
    run_in_process(tiny(tmp_path, seed=7))

    assert summary_of(lab.folder / "run") == summary_of(tmp_path)


def test_a_run_shows_its_command_its_log_and_how_far_it_is(lab):
    said = lab.said("run")
    assert re.match(r"\S*flwr run \S+ fcl --stream\n", said)
    assert "Successfully started run" in said
    assert "results and report.html" in said
    assert "task 1 of 0 to 1  round 2/2  accuracy so far" in said
    assert (lab.folder / "run" / "report.html").exists()


def test_a_server_has_metrics_of_its_runs_and_its_clients(lab):
    found = dict(line.rsplit(" ", 1) for line in lab.scraped if line[0] != "#")

    assert found["fcl_up"] == "1.0"
    assert found['fcl_runs{end="finished"}'] == "2.0"
    assert found["fcl_runs_going_on"] == found["fcl_run_failed"] == "0.0"
    assert [found[f'fcl_client_connected{{client="{n}"}}'] for n in range(3)] == [
        *("1.0", "1.0", "1.0"),
    ]
    last = summary_of(lab.folder / "run")
    assert float(found["fcl_accuracy"]) == pytest.approx(last["average_accuracy"])
    assert float(found['fcl_bytes_total{direction="up"}']) == last["bytes_up"]


def test_no_client_waits_for_another_in_an_asynchronous_run(lab):
    rows = rounds_of(lab.folder / "asynchronous")
    assert sorted(row["clients"][0] for row in rows) == [0, 0, 1, 1]
    found = summary_of(lab.folder / "asynchronous")["client_accuracy"]
    assert all(None not in matrix[1] for matrix in found)


def test_a_client_with_another_key_gets_no_number_and_the_run_goes_on(lab):
    why = "left out: has the key of client 2, but claims to be 0"
    assert why in lab.said("run")


# ---- who is let in


def test_a_client_with_an_unknown_key_is_not_let_in_and_told_why(lab):
    said = lab.said("stranger")
    assert "does not let client 1 in: either client-1.pub of this key is not in" in said
    assert "SuperNode ID" not in said
    told = "not let in: a call with an unknown key, from 127.0.0.1"
    assert told in lab.said("server")


def test_a_client_leaves_a_server_that_it_cannot_trust(lab):
    last = lab.said("deceived").splitlines()[-1]
    assert f" fcl: the server at localhost:{lab.port} has a certificate of an" in last
    assert "SuperNode ID" not in lab.said("deceived")


def test_no_client_was_registered_but_those_with_a_key(lab):
    taken = set(re.findall(r"Activated node_id=(\d+)", lab.said("server")))
    known = {
        re.search(r"SuperNode ID: (\d+)", lab.said(name))[1]
        for name in ("client-0", "client-1", "liar")
    }
    assert taken == known
    assert all(row["failed"] == [] for row in rounds_of(lab.folder / "run"))


def test_a_client_takes_little_memory_and_a_worker_that_of_torch(lab):
    """A fifth above what was measured: 120 and 397 MB, of which torch has 190."""
    assert 50 < lab.idle < 144
    assert lab.idle < lab.busy < 476


def test_only_the_reverse_proxy_is_reached_from_outside(lab):
    assert {("127.0.0.1", lab.port), ("127.0.0.1", lab.control)} <= lab.ports
    assert {ip for ip, _ in lab.ports} == {"127.0.0.1"}


# ---- processes and folders


def test_what_server_and_clients_keep_is_theirs_alone(lab):
    assert (lab.folder / "superlink.log").exists()  # as said after two dashes
    for name in ("state-server", "state-0", "state-1"):
        assert (lab.folder / name).stat().st_mode & 0o077 == 0


def test_the_programs_that_experiments_watch_and_kill_are_found_by_their_names(lab):
    assert "flower-superlink" in lab.programs["server"]
    assert {"flower-supernode", "worker.py"} <= lab.programs["client-0"]
