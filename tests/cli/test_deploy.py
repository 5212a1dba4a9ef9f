"""The commands of a federation, with programs of our own in the place of Flower's."""

import contextlib
import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import fakes
import psutil
import pytest
from fakes import tiny
from flwr.cli.utils import SUPERLINK_UNAVAILABLE_MESSAGE
from flwr.common.config import parse_config_args
from hypothesis import example, given
from hypothesis import strategies as st
from waiting import PATIENCE, await_true

from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.core.processes import free_port
from fcl_flower.deploy import client, client_setup, commands, diagnosis, proxy, watch
from fcl_flower.deploy import server as server_process
from fcl_flower.deploy.certificates import Certificates, make_certificates
from fcl_flower.deploy.commands import START_RUN, node_config
from fcl_flower.deploy.diagnosis import Obstacle
from fcl_flower.deploy.server import Addresses, run_superlink
from fcl_flower.deploy.speedups import choose
from fcl_flower.deploy.submission import RunLostError, SuperLink

NOTE = """
import json, os, pathlib, sys, time
place = pathlib.Path(PLACE)
call = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
# In one piece, as other programs write here and a test reads meanwhile.
with (place / "calls.jsonl").open("ab", buffering=0) as file:
    file.write(json.dumps([call, dict(os.environ)]).encode() + b"\\n")
"""
LISTENS = """
import socket
port = int(sys.argv[sys.argv.index("--port") + 1])
server = socket.create_server(("127.0.0.1", port))
END = place / "end"
while not END.exists():
    time.sleep(0.05)
"""
STAYS = f"time.sleep({PATIENCE + 100})"
REGISTERS = """
if sys.argv[3].endswith("client-1.pub"):
    sys.exit("Public key already in use.")
if sys.argv[3].endswith("client-2.pub"):
    sys.exit("no public key")
print(json.dumps({"success": True, "node-id": 2**63 + int(sys.argv[3][-5])}))
"""


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """Install programs by name; returns how, and what they were called with."""
    places = {}

    class Flower:
        folder = tmp_path

        def install(self, **bodies):
            for name, body in bodies.items():
                path = tmp_path / "bin" / name.replace("_", "-")
                path.parent.mkdir(exist_ok=True)
                note = NOTE.replace("PLACE", repr(str(tmp_path)))
                path.write_text(f"#!{sys.executable}\n{note}\n{body}\n")
                path.chmod(0o755)
                places[path.name] = str(path)

        def calls(self, name):
            file = tmp_path / "calls.jsonl"
            lines = file.read_text().splitlines() if file.exists() else []
            found = map(json.loads, lines)
            return [(call[1:], env) for call, env in found if call[0] == name]

    monkeypatch.setattr(commands, "program", lambda name: places[name])
    # A pool of another test may go on.
    before = set(psutil.Process().children(recursive=True))
    yield Flower()
    assert set(psutil.Process().children(recursive=True)) <= before


@contextlib.contextmanager
def meanwhile(task, end=None):
    """Run the task in a thread, and make the file at its end; raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(task)
        if end is not None:
            done.add_done_callback(lambda done: end.touch())
        yield
        done.result()


@pytest.fixture
def once(monkeypatch):
    """Nothing that ends is started again."""
    monkeypatch.setattr(watch, "RESTARTS", 0)


def certificates(folder, clients=1):
    make_certificates(folder, ["localhost"], clients, 1, overwrite=False)
    return Certificates(folder)


# ---- the node config


NASTY = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30)


@given(NASTY)
@example('/a b/it\'s/"quoted"/\\')
@example("\\\"'='\\")
@example("x=\"1\" y='2'")
@example("\n\t\x7f\x85\u2028=")
def test_flower_reads_the_node_config_as_it_was_meant(text):
    values = {"partition-id": 3, "data-path": text, "device": "cpu"}

    assert parse_config_args([node_config(values)]) == values


# ---- fcl server


@pytest.mark.process
def test_a_server_starts_a_superlink_for_this_machine_alone(flower, tmp_path, once):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS, flwr=REGISTERS)
    said = []
    ports = Addresses("127.0.0.1", free_port(), free_port())
    files = certificates(tmp_path / "certs", clients=3)

    def later():
        await_true(lambda: len(flower.calls("flwr")) == 3)
        make_certificates(tmp_path / "certs", [], 4, 1, overwrite=False)
        await_true(lambda: len(flower.calls("flwr")) == 4)

    why = r"^flower-superlink ended by itself, with code 0; its"
    with meanwhile(later, tmp_path / "end"), pytest.raises(RoundError, match=why):
        run_superlink(
            files,
            tmp_path / "state",
            ports,
            ["--log-file", "x"],
            said.append,
            speedups=choose("auto", "server"),
        )

    ((arguments, env),) = flower.calls("flower-superlink")
    assert arguments == [
        *("--host", "127.0.0.1", "--port", str(ports.control_port)),
        *("--database", str(tmp_path / "state" / "superlink.db")),
        *("--ssl-ca-certfile", str(files.authority)),
        *("--ssl-certfile", str(files.server)),
        *("--ssl-keyfile", str(files.server_key)),
        *("--enable-supernode-auth", "--log-file", "x", "--isolation", "process"),
    ]
    ((executor, its_env),) = flower.calls("flower-superexec")
    assert executor == [
        *("--root-certificates", str(files.authority)),
        *("--runtime-api-address", ports.control),
    ]
    assert its_env.items() >= {n: env[n] for n in ("FLWR_HOME", "no_proxy")}.items()
    assert env["FLWR_HOME"] == str(tmp_path / "state" / "flower")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    written = (tmp_path / "state" / "flower" / "config.toml").read_text()
    assert f'address = "127.0.0.1:{ports.control_port}"' in written
    assert str(files.authority) in written
    _, *around, program = shlex.split(said[1])[:7]
    objects = str(tmp_path / "state" / "objects")
    names = ",".join(choose("auto", "server").names)
    module = "fcl_flower.deploy.speedups.superlink"
    assert around == ["-P", "-m", module, names, objects]
    assert Path(program).name == "flower-superlink"
    assert shlex.split(said[1])[7:] == arguments
    bound = json.loads((tmp_path / "state" / "client-numbers.json").read_text())
    assert bound == {str(2**63): 0, str(2**63 + 3): 3}
    assert env["FCL_CLIENT_NUMBERS"] == str(tmp_path / "state" / "client-numbers.json")
    # Each key once; one that is there later, too; a bad one ends nothing.
    keys = [call[2] for call, _ in flower.calls("flwr")]
    assert [Path(key).name for key in keys] == [f"client-{n}.pub" for n in range(4)]
    assert [line for line in said if "regist" in line] == [
        "registered client-0.pub",
        "registered client-1.pub before, but for no client's number",
        "could not register client-2.pub: no public key",
        "registered client-3.pub",
    ]


@pytest.mark.process
def test_a_server_without_descriptors_goes_on_watching(
    flower, tmp_path, monkeypatch, once
):
    """Registering a key needs some: it is tried again, and nothing ends by it."""
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS, flwr=REGISTERS)
    monkeypatch.setattr(server_process, "LOOK_SECONDS", 0.05)
    look, looks, said = server_process._KeyFolder.look, [], []

    def without(folder):
        looks.append(folder)
        if 1 < len(looks) < 5:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if len(looks) == 8:
            (tmp_path / "end").touch()
        return look(folder)

    monkeypatch.setattr(server_process._KeyFolder, "look", without)
    files = certificates(tmp_path / "certs")
    ports = Addresses("127.0.0.1", free_port(), free_port())
    with pytest.raises(
        RoundError, match=r"^flower-superlink ended by itself, with code 0; its"
    ):
        run_superlink(files, tmp_path / "state", ports, [], said.append)

    cannot = "could not read or register clients' keys: [Errno 24] Too many open files"
    assert said.count(cannot) == 3
    assert len(looks) >= 8


@pytest.mark.process
def test_a_reverse_proxy_that_ends_again_and_again_takes_the_server_with_it(
    flower, tmp_path, monkeypatch
):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS, flwr=REGISTERS)
    over, begun, said = threading.Thread(target=lambda: None), [], []

    @contextlib.contextmanager
    def ended(*given):
        begun.append(given)
        yield over

    monkeypatch.setattr(proxy, "run_proxy", ended)
    monkeypatch.setattr(watch, "RESTARTS", 2)
    monkeypatch.setattr(server_process, "LOOK_SECONDS", 0.05)
    files = certificates(tmp_path / "certs")
    ports = Addresses("127.0.0.1", free_port(), free_port())

    why = r"^the reverse proxy ended by itself after 2 restarts, by the error above$"
    with pytest.raises(RoundError, match=why):
        run_superlink(files, tmp_path / "state", ports, [], said.append)

    assert len(begun) == 3
    again = "the reverse proxy ended by itself, by the error above; it is started again"
    assert [line for line in said if line.startswith(again)] == [
        f"{again} ({n} of 2 times in 10 minutes)" for n in (1, 2)
    ]


@pytest.mark.process
def test_a_server_without_certificates_authenticates_no_client(flower, tmp_path, once):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS)
    (tmp_path / "end").touch()
    ports = Addresses("127.0.0.1", free_port(), free_port())

    with pytest.raises(RoundError):
        run_superlink(None, tmp_path / "state", ports, [], lambda line: None)

    ((arguments, _),) = flower.calls("flower-superlink")
    assert arguments[-3:] == ["--insecure", "--isolation", "process"]
    assert arguments[:2] == ["--host", "127.0.0.1"]


@pytest.mark.process
def test_a_server_keeps_no_app_that_a_full_disk_may_have_cut(flower, tmp_path, once):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS)
    (tmp_path / "end").touch()
    (tmp_path / "state" / "flower" / "apps" / "fcl.fcl-run").mkdir(parents=True)
    ports = Addresses("127.0.0.1", free_port(), free_port())

    with pytest.raises(RoundError):
        run_superlink(None, tmp_path / "state", ports, [], print)

    assert not (tmp_path / "state" / "flower" / "apps").exists()


@pytest.mark.process
def test_a_server_has_metrics_while_it_is_up(flower, tmp_path, monkeypatch, once):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS, flwr=REGISTERS)
    monkeypatch.setattr(diagnosis, "PROBE_SECONDS", 0.2)  # what listens says nothing
    ports = Addresses("127.0.0.1", free_port(), free_port())
    port, found, said = free_port(), [], []
    address = f"http://127.0.0.1:{port}/metrics"

    def later():
        await_true(lambda: flower.calls("flwr"))
        with urlopen(address, timeout=10) as reply:
            found.append(reply.read().decode())

    known = certificates(tmp_path / "certs"), tmp_path / "state", ports, []
    why = "flower-superlink ended by itself"
    with meanwhile(later, tmp_path / "end"), pytest.raises(RoundError, match=why):
        run_superlink(*known, said.append, port)

    assert f"metrics: {address}" in said
    lines = found[0].splitlines()
    assert {"fcl_up 0.0", 'fcl_client_connected{client="0"} 0.0'} <= {*lines}
    days = next(line for line in lines if line.startswith("fcl_certificate_days"))
    assert 0.9 < float(days.split()[1]) <= 1
    with pytest.raises(URLError):
        urlopen(address, timeout=10)


def test_a_port_of_metrics_that_is_taken_is_refused_at_once(flower, tmp_path):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS)
    ports = Addresses("127.0.0.1", free_port(), free_port())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        expected = f"^metrics-port: got {port}, expected a free port of 127.0.0.1"
        with pytest.raises(ConfigError, match=expected):
            run_superlink(None, tmp_path / "state", ports, [], print, port)

    assert flower.calls("flower-superlink") == []


DIES = """
number = len([1 for l in (place / "calls.jsonl").open() if "flower-superexec" in l])
print(chr(27) + f"[91mreason {number}" + chr(27) + "[0m", flush=True)
print(flush=True)
print("the last line", flush=True)
os._exit(7)
"""


@pytest.mark.process
def test_a_program_that_dies_is_started_again_three_times_and_then_ends_the_server(
    flower, tmp_path, monkeypatch
):
    flower.install(flower_superlink=LISTENS, flower_superexec=DIES)
    monkeypatch.setattr(server_process, "LOOK_SECONDS", 0.05)
    ports = Addresses("127.0.0.1", free_port(), free_port())
    said, shown = [], []

    with pytest.raises(RoundError) as ended:
        run_superlink(None, tmp_path / "s", ports, [], said.append, show=shown.append)

    how = "with code 7; its last lines: reason {} | the last line"
    assert str(ended.value) == (
        f"flower-superexec ended by itself after 3 restarts, {how.format(4)}"
    )
    assert [line for line in said if "superexec ended" in line] == [
        f"flower-superexec ended by itself, {how.format(n)}; it is started again ({n} "
        "of 3 times in 10 minutes)"
        for n in (1, 2, 3)
    ]
    assert shown.count("the last line") == 4
    assert len(flower.calls("flower-superlink")) == 1


def test_a_part_that_dies_now_and_then_is_started_again_each_time(monkeypatch):
    clock, ends, starts = [0.0], [], []
    monkeypatch.setattr(watch.time, "monotonic", lambda: clock[0])

    class Part:
        name = "it"

        def start(self):
            starts.append(clock[0])

        def ended(self):
            return ends.pop() if ends else ""

        def stop(self):
            pass

    with watch.Watch(lambda line: None) as parts:
        parts.start(Part())
        for _ in range(9):
            clock[0] += 201.0  # three of these are within ten minutes, four are not
            ends.append("at once")
            parts.look()
        clock[0] += 1.0
        ends.append("at once")
        with pytest.raises(RoundError, match="it ended by itself after 3 restarts, at"):
            parts.look()

    assert len(starts) == 10


@pytest.mark.process
def test_a_program_that_does_not_start_is_told_by_its_last_lines(flower, tmp_path):
    flower.install(
        flower_superlink="sys.exit('no room on the disk')", flower_superexec=STAYS
    )
    ports = Addresses("127.0.0.1", free_port(), free_port())

    why = "^Flower's SuperLink did not start; its last lines: no room on the disk$"
    with pytest.raises(RoundError, match=why):
        run_superlink(None, tmp_path / "state", ports, [], print)


@pytest.mark.parametrize("option", ["--isolation", "--superexec-auth-secret-file"])
def test_a_server_has_its_own_superexec(flower, tmp_path, option):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS)
    ports = Addresses("127.0.0.1", free_port(), free_port())

    with pytest.raises(ConfigError, match=f"{option}: got 'x', expected none: fcl ser"):
        run_superlink(None, tmp_path / "state", ports, [option, "x"], print)


@pytest.mark.parametrize(
    ("days", "hours", "warnings"), [(29, [0, 23, 25, 30, 50], 3), (31, [0, 23], 0)]
)
def test_a_server_warns_once_a_day_before_its_certificate_ends(
    tmp_path, monkeypatch, days, hours, warnings
):
    make_certificates(tmp_path, ["localhost"], 0, days, overwrite=False)
    begun, said = server_process.now(), []
    expiry = server_process._Expiry(Certificates(tmp_path), said.append)
    for hour in hours:
        later = begun + timedelta(hours=hour)
        monkeypatch.setattr(server_process, "now", lambda later=later: later)
        expiry.look()

    assert len(said) == warnings
    ends = Certificates(tmp_path).ends().astimezone().isoformat()
    for line in said:
        assert line.startswith(f"the server's certificate ends at {ends}, and no clie")


def test_a_server_does_not_take_another_for_its_own_superlink(flower, tmp_path):
    flower.install(flower_superlink=LISTENS, flower_superexec=STAYS)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ports = Addresses("127.0.0.1", free_port(), port)

        with pytest.raises(ConfigError, match=f"control-port: got {port}, expected a"):
            run_superlink(None, tmp_path / "state", ports, [], print)

    assert flower.calls("flower-superlink") == []


@pytest.mark.parametrize("missing", ["ca.crt", "server.crt", "server.key"])
def test_a_server_without_one_of_its_files_is_refused(flower, tmp_path, missing):
    files = certificates(tmp_path)
    (tmp_path / missing).unlink()

    with pytest.raises(ConfigError, match=f"certs: .* folder with {missing}"):
        run_superlink(
            files, tmp_path / "state", Addresses("127.0.0.1", 1, 2), [], print
        )


# ---- fcl client


def run_supernode(server, files, node, state, more, report):
    """Do what the command does, but in this process."""
    parts = server, files, node, state, more
    client.run_supernode(client_setup.set_up(*parts, speedups=()), report)


HOLDS_LOCK = """
held = {os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")}
sys.exit(3 if str(place / "state" / "in-use.lock") in held else 4)
"""


@pytest.fixture
def reachable(monkeypatch):
    monkeypatch.setattr(client, "diagnose_server", lambda server, authority: None)


@pytest.mark.process
def test_a_client_starts_a_supernode_with_its_key_data_and_device(
    flower, tmp_path, reachable
):
    flower.install(flower_supernode=HOLDS_LOCK)
    files = certificates(tmp_path / "certs")
    said = []

    for _ in range(2):
        with pytest.raises(RoundError, match="ended by itself, with code 3"):
            run_supernode(
                "fl.example.org:9092",
                files,
                {"partition-id": 0, "data-path": "/a b", "device": "cuda"},
                tmp_path / "state",
                ["--max-retries", "1"],
                said.append,
            )

    (arguments, env), (again, _) = flower.calls("flower-supernode")
    port = arguments[11]
    assert arguments == [
        *("--superlink", "fl.example.org:9092"),
        *("--root-certificates", str(files.authority)),
        *("--auth-supernode-private-key", str(files.client_key(0))),
        "--node-config",
        'partition-id=0 data-path="/a b" device="cuda" '
        f'state-path="{tmp_path}/state/memory"',
        *("--host", "127.0.0.1", "--port", port, "--max-retries", "1"),
    ]
    assert again[11] != port
    assert env["FLWR_HOME"] == str(tmp_path / "state" / "flower")
    assert (tmp_path / "state" / "memory").is_dir()
    assert shlex.split(said[0])[1:] == arguments


REFUSED = """
if len((place / "calls.jsonl").read_text().splitlines()) < 3:
    print("Exit Code: 305" + chr(10) + "[code: 2004] Failed to activate SuperNode.")
    sys.exit(1)
print("SuperNode ID: 7", flush=True)
print("working", flush=True)
sys.exit(4)
"""


@pytest.mark.process
def test_a_client_tries_until_it_is_let_in_and_says_once_why(
    flower, tmp_path, reachable, monkeypatch, capsys
):
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    flower.install(flower_supernode=REFUSED)
    files, said = certificates(tmp_path / "certs"), []

    with pytest.raises(RoundError, match="SuperNode ended by itself, with code 4"):
        run_supernode("a:1", files, {"partition-id": 0}, tmp_path, [], said.append)

    assert len(flower.calls("flower-supernode")) == 3
    (sentence,) = said[1:]
    assert sentence.startswith(
        "the server at a:1 does not let client 0 in: either client-0.pub of this key "
    )
    # What Flower says of a refusal says less.
    assert capsys.readouterr().out.splitlines() == ["SuperNode ID: 7", "working"]


@pytest.mark.process
def test_a_client_without_a_key_is_told_that_it_needs_one(
    flower, tmp_path, reachable, monkeypatch
):
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    flower.install(flower_supernode=REFUSED)
    said = []

    with pytest.raises(RoundError):
        run_supernode("a:1", None, {"partition-id": 0}, tmp_path, [], said.append)

    assert "takes clients with a key alone: give --certs" in said[1]


CUT_OFF = """
print("SuperNode ID: 7", flush=True)
for _ in range(3):
    print("WARNING: Connection attempt failed, retrying in 1.00 seconds", flush=True)
print("Connection successful after 3 s", flush=True)
print("Connection attempt failed, retrying in 1.00 seconds", flush=True)
sys.exit(4)
"""


@pytest.mark.process
def test_a_client_whose_server_goes_says_so_each_time_it_goes(
    flower, tmp_path, reachable, monkeypatch, capsys
):
    flower.install(flower_supernode=CUT_OFF)
    found = iter([None, *[Obstacle("nobody is there", "correct it", True)] * 4])
    monkeypatch.setattr(client, "diagnose_server", lambda *server: next(found, None))
    said = []

    with pytest.raises(RoundError):
        run_supernode("a:1", None, {"partition-id": 0}, tmp_path, [], said.append)

    assert len(said[1:]) == 2
    for sentence in said[1:]:
        assert re.fullmatch(
            r"the link to the server at a:1 is cut since \d\d:\d\d:\d\d: nobody is "
            "there; the client goes on when it is back",
            sentence,
        )
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["SuperNode ID: 7", "Connection successful after 3 s"]


def test_a_client_waits_for_its_server_but_not_for_another(
    flower, tmp_path, monkeypatch
):
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.0)
    flower.install(flower_supernode=STAYS)
    obstacles = [Obstacle("not yet", "wait", True)] * 2 + [
        Obstacle("an impostor", "leave", False)
    ]
    found = iter(obstacles)
    monkeypatch.setattr(client, "diagnose_server", lambda *server: next(found))
    said = []

    with pytest.raises(RoundError, match=r"^an impostor: leave$"):
        run_supernode("a:1", None, {"partition-id": 0}, tmp_path, [], said.append)

    assert said[1:] == ["not yet: wait; trying again every 0 s"]
    assert flower.calls("flower-supernode") == []


FAILS = """
print("SuperNode ID: 7", flush=True)
for _ in range(2):
    print("ERROR : this client could not answer: no data", flush=True)
    print("Sending: train message", flush=True)
    print("Sent successfully", flush=True)
print("Sent successfully", flush=True)
sys.exit(4)
"""


@pytest.mark.process
def test_why_a_client_could_not_answer_is_said_last_each_time(
    flower, tmp_path, reachable, capsys
):
    flower.install(flower_supernode=FAILS)

    with pytest.raises(RoundError):
        run_supernode("a:1", None, {"partition-id": 0}, tmp_path, [], print)

    said = capsys.readouterr().out.splitlines()[1:]
    failed = [
        "ERROR : this client could not answer: no data",
        "Sending: train message",
        "Sent successfully",
        "this client could not answer: no data; the client waits for the next message",
    ]
    assert said == ["SuperNode ID: 7", *failed, *failed, "Sent successfully"]


@pytest.mark.parametrize("content", [b"", b"junk"])
def test_a_client_whose_key_cannot_be_read_is_refused(flower, tmp_path, content):
    files = certificates(tmp_path)
    files.client_key(0).write_bytes(content)

    with pytest.raises(ConfigError, match=r"certs: got .*0\.key', expected a private"):
        run_supernode(
            *("a:1", files, {"partition-id": 0}, tmp_path / "state", [], print)
        )


@pytest.mark.parametrize("missing", ["ca.crt", "clients/client-0.key"])
def test_a_client_without_one_of_its_files_is_refused(flower, tmp_path, missing):
    files = certificates(tmp_path)
    (tmp_path / missing).unlink()

    with pytest.raises(ConfigError, match=f"certs: .* folder with {missing}"):
        run_supernode("a:1", files, {"partition-id": 0}, tmp_path / "state", [], print)


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code", "last"),
    [
        (
            signal.SIGINT,
            130,
            "fcl: interrupted; the same command goes on from what is in ",
        ),
        (signal.SIGTERM, 143, "fcl: no program listens at 127.0.0.1:"),
    ],
)
def test_a_client_is_one_process_that_says_how_to_go_on(tmp_path, number, code, last):
    """Of the command that was typed nothing is left, but its process."""
    server = f"127.0.0.1:{free_port()}"
    command = ["client", "--server", server, "--number", "0", "--insecure"]
    fcl = subprocess.Popen(
        [sys.executable, "-m", "fcl_flower.cli.main", *command, "--state", tmp_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    with fcl.stdout as said:
        # The speed-ups, the command, and the server that is not there.
        lines = [next(said) for _ in range(3)]
        loaded = {Path(m.path).name for m in psutil.Process(fcl.pid).memory_maps()}
        fcl.send_signal(number)
        lines += said

    assert fcl.wait() == code
    assert lines[-1].partition(" ")[2].startswith(last)  # after its time
    assert not [name for name in loaded if name.startswith("_pydantic_core")]


# ---- fcl run

FLWR = """
if sys.argv[1] == "run":
    app = pathlib.Path(sys.argv[2])
    (place / "pyproject.toml").write_text((app / "pyproject.toml").read_text())
    print("Successfully started run 123", flush=True)
    RUN
elif sys.argv[1] == "list":
    print('Loading\\n{"success": true, "runs": [{"status": "STATUS"}]}')
elif sys.argv[1:3] == ["supernode", "list"]:
    print('{"success": true, "nodes": [{"status": "online"}, {"status": "offline"}]}')
"""


def flwr(run="", status="finished:completed"):
    return FLWR.replace("RUN", run).replace("STATUS", status)


@pytest.fixture
def submit(flower, tmp_path):
    def run(**behaviour):
        flower.install(flwr=flwr(**behaviour))
        said, seen = [], []
        config = tiny(tmp_path / "results")
        superlink = SuperLink("127.0.0.1:9093", tmp_path / "ca.crt")
        superlink.run(config, report=said.append, watch=seen.append)
        return said, seen

    return run


PROGRESS = """
    folder = place / "results"
    folder.mkdir()
    (folder / "progress.json").write_text('{"state": "finished"}')
    print("the last line", flush=True)
"""


@pytest.mark.process
def test_a_run_is_submitted_and_followed_to_its_end(submit, flower, tmp_path):
    said, seen = submit(run=PROGRESS.strip())

    (arguments, env), (asked, _) = flower.calls("flwr")
    assert arguments[0] == "run"
    assert arguments[2:] == ["fcl", "--stream"]
    assert asked == ["list", "--run-id", "123", "--format", "json"]
    assert shlex.split(said[0])[1:] == arguments
    assert said[1:] == ["Successfully started run 123", "the last line"]
    assert seen == [{"state": "finished"}]
    assert not Path(env["FLWR_HOME"]).parent.exists()
    assert str(tmp_path / "results") in (tmp_path / "pyproject.toml").read_text()


@pytest.mark.process
@pytest.mark.parametrize("status", ["finished:failed", "finished:stopped", "running"])
def test_a_run_that_did_not_finish_is_an_error(submit, status):
    with pytest.raises(RoundError, match=f"ended as {status}"):
        submit(status=status)


@pytest.mark.process
def test_a_run_that_does_not_start_is_an_error(flower, submit, tmp_path):
    flower.install(flwr="sys.exit('refused')")
    said = []
    superlink = SuperLink("127.0.0.1:9093", None)
    with pytest.raises(RoundError, match="could not be started"):
        superlink.run(tiny(tmp_path), report=said.append, watch=print)
    assert said[-1] == "refused"


ENDS_BADLY = """
    print("fcl_flower.core.errors.ConfigError: a warning of before")
    print("fcl_flower.core.errors.RoundError: too few; left out: client 1: no data")
    print("WARNING: fcl_flower.core.errors.RoundError: what a client says")
    print("Exit Code: 201", flush=True)
"""


@pytest.mark.process
def test_a_run_that_did_not_finish_says_last_what_ended_it(submit):
    with pytest.raises(RoundError) as caught:
        submit(run=ENDS_BADLY.strip(), status="finished:failed")
    assert str(caught.value) == (
        "the run did not finish, but ended as finished:failed: too few; left out: "
        "client 1: no data"
    )


FULL = """
    print("Traceback (most recent call last):")
    print("OSError: [Errno 28] No space left on device: '/runs/a'")
    print("Exit Code: 201", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (FULL.strip(), r"OSError: \[Errno 28\] No space left on device: '/runs/a'"),
        ("", "its log has no reason, so that a process of the server was ended from"),
    ],
    ids=["a full disk", "nothing was said"],
)
def test_what_ended_a_run_is_said_last(submit, run, reason):
    with pytest.raises(RoundError, match=f"ended as finished:failed: {reason}"):
        submit(run=run, status="finished:failed")


WAITS = """
    print("INFO :      waiting for clients 1 (is not connected); here: 0", flush=True)
    time.sleep(600)
"""
BEGINS_LATE = """
    print("all are here that the run waits for: clients 0, 1", flush=True)
    time.sleep(2.5)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (WAITS, r"waiting for clients 1 \(is not connected\); here: 0$"),
        ("time.sleep(600)", "its server app has not begun, and is pending; the log of"),
        (BEGINS_LATE, None),
    ],
    ids=["a client is missing", "no server app", "it has begun"],
)
def test_a_run_that_does_not_begin_in_time_is_stopped_and_says_who_is_missing(
    flower, tmp_path, run, reason
):
    status = "pending" if reason else "finished:completed"
    flower.install(flwr=flwr(run=run.strip(), status=status))
    given = {"report": print, "watch": print, "start_seconds": 2.0}
    link = SuperLink("127.0.0.1:1", None)

    if reason is None:
        link.run(tiny(tmp_path / "results"), **given)
        return
    with pytest.raises(RoundError, match=f"^the run has not begun in 2 s: {reason}"):
        link.run(tiny(tmp_path / "results"), **given)

    assert ["stop", "123", "--format", "json"] in [c for c, _ in flower.calls("flwr")]


@pytest.mark.process
def test_a_server_that_does_not_answer_is_an_error(flower):
    flower.install(flwr="sys.exit('Connection refused')")

    reason = r"127.0.0.1:1 does not answer as expected: .*refused"
    with pytest.raises(RoundError, match=reason):
        SuperLink("127.0.0.1:1", None).connected()


@pytest.mark.process
def test_a_server_that_is_gone_is_said_to_be_gone(flower):
    error = {"success": False, "error-message": SUPERLINK_UNAVAILABLE_MESSAGE}
    flower.install(flwr=f"sys.exit(print(json.dumps({error})) or 1)")

    reason = r"^the server at 127.0.0.1:1 cannot be reached now: see that fcl server"
    with pytest.raises(RoundError, match=reason):
        SuperLink("127.0.0.1:1", None).connected()


@pytest.mark.process
def test_the_clients_that_are_connected_are_counted(flower):
    flower.install(flwr=flwr())

    assert SuperLink("127.0.0.1:1", None).connected() == 1
    ((_, env),) = flower.calls("flwr")
    assert not Path(env["FLWR_HOME"]).parent.exists()


@pytest.mark.process
def test_an_interrupt_stops_the_run(flower, tmp_path):
    flower.install(flwr=flwr(run="time.sleep(600)"))
    main = threading.get_ident()

    def interrupt():
        await_true(lambda: (tmp_path / "pyproject.toml").exists())
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)

    said = []
    with meanwhile(interrupt), pytest.raises(KeyboardInterrupt):
        SuperLink("127.0.0.1:1", None).run(
            tiny(tmp_path), report=said.append, watch=print
        )

    assert said[-1] == "stopping run 123"
    assert flower.calls("flwr")[-1][0] == ["stop", "123", "--format", "json"]


SUBMITS = """
import sys
from pathlib import Path
from fcl_flower.deploy import submission
from fakes import tiny
program, results = sys.argv[1:]
submission.commands.program = lambda name: program
submission.SuperLink("127.0.0.1:1", None).run(
    tiny(Path(results)), report=print, watch=print
)
"""


@pytest.mark.process
def test_a_killed_run_leaves_no_folder_of_its_own_and_takes_no_others(flower, tmp_path):
    flower.install(flwr=flwr(run="time.sleep(600)"))
    place = tmp_path / "temporary"
    living = place / "fcl-run-living"
    living.mkdir(parents=True)
    path = os.pathsep.join([str(Path(fakes.__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", SUBMITS, tmp_path / "bin" / "flwr", tmp_path / "run"],
        env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": path},
    )
    await_true(lambda: (tmp_path / "pyproject.toml").exists())
    ((_, env),) = flower.calls("flwr")
    assert Path(env["FLWR_HOME"]).parent.parent == place

    process.kill()
    process.wait()

    await_true(lambda: list(place.iterdir()) == [living])


# ---- the command line


@pytest.fixture
def superlink(monkeypatch):
    """A SuperLink to which two clients are connected, and what it was given."""
    ran = []
    monkeypatch.setattr(diagnosis, "diagnose_server", lambda *server: None)
    monkeypatch.setattr(SuperLink, "connected", lambda self: 2)
    monkeypatch.setattr(SuperLink, "run", lambda self, config, **_: ran.append(config))
    return ran


def test_all_that_are_connected_take_part(fcl, superlink, tmp_path):
    code, out, err = fcl("run", "--insecure", "--strategy", "fedavg", "--tasks", "2")

    assert (code, err) == (0, "")
    (config,) = superlink
    assert (config.scenario.clients, config.strategy.name, config.scenario.tasks) == (
        2,
        "fedavg",
        2,
    )
    folder = tmp_path / "runs" / "fedavg-overlapped-digits-seed0"
    assert config.run.output == str(folder)
    assert out.splitlines() == [f"results and report.html on the server: {folder}"]
    assert not folder.exists()  # the server makes it, on its machine


def test_the_folder_for_the_results_may_be_a_setting(fcl, superlink, tmp_path):
    assert fcl("run", "--insecure", "--set", "run.output=mine")[0] == 0

    assert superlink[0].run.output == str(tmp_path / "mine")


def test_a_run_may_wait_for_more_clients_than_are_connected(fcl, superlink):
    fcl("run", "--insecure", "--clients", "3", "--output", "here")

    assert superlink[0].scenario.clients == 3


def test_clients_without_data_of_the_servers_take_part(fcl, superlink):
    code, _, err = fcl(
        *("run", "--insecure", "--scenario", "local-data", "--model", "mlp"),
        *("--set", "model.num_features=4", "--classes-per-task", "2"),
    )

    assert (code, err) == (0, "")
    scenario = superlink[0].scenario
    assert (scenario.name, scenario.clients) == ("local-data", 2)


def test_what_clients_remember_of_a_run_has_a_name_that_no_other_has(fcl, superlink):
    for _ in range(2):
        fcl("run", "--insecure", "--output", "here")

    one, other = (config.run.id for config in superlink)
    assert one.startswith("here-")
    assert one != other


def test_a_run_that_was_ended_goes_on_under_its_name(fcl, superlink, tmp_path):
    folder = tmp_path / "here"
    (folder / "checkpoint").mkdir(parents=True)
    config = tiny(folder, clients=3, id="here-1f", seed=5)
    (folder / "config.toml").write_text(config.to_file())

    assert fcl("run", "--insecure", "--resume", "here")[0] == 0

    (again,) = superlink
    found = (again.run.resume, again.run.id, again.run.seed, again.scenario.clients)
    assert found == (True, "here-1f", 5, 3)
    assert again.run.output == str(folder)


@pytest.mark.parametrize(("options", "runs"), [([], 2), (["--restarts", "2"], 3)])
def test_a_run_whose_server_app_is_killed_goes_on_by_itself(
    fcl, superlink, monkeypatch, options, runs
):
    def killed(self, config, **_):
        superlink.append(config)
        if len(superlink) < runs:
            raise RunLostError("ended without a word")

    monkeypatch.setattr(SuperLink, "run", killed)

    code, out, _ = fcl("run", "--insecure", *options)

    assert code == 0
    assert [config.run.resume for config in superlink] == [False, *[True] * (runs - 1)]
    assert len({config.run.id for config in superlink}) == 1
    assert out.count("ended without a word; it goes on by itself") == runs - 1


def test_a_run_whose_server_app_is_killed_again_and_again_ends(
    fcl, superlink, monkeypatch
):
    def killed(self, config, **_):
        superlink.append(config)
        raise RunLostError("ended without a word")

    monkeypatch.setattr(SuperLink, "run", killed)

    code, _, err = fcl("run", "--insecure")

    assert (code, len(superlink)) == (1, 2)
    assert "fcl: ended without a word; then" in err


def test_a_run_at_a_server_that_is_not_there_is_one_sentence(fcl):
    server = f"127.0.0.1:{free_port()}"

    code, out, err = fcl("run", "--insecure", "--server", server)

    assert (code, out) == (1, "")
    assert err == (
        f"fcl: no program listens at {server}: start fcl server there, or correct "
        "--server\n"
    )


def test_a_run_is_not_started_where_clients_come_in(fcl, superlink, monkeypatch):
    asked = []
    obstacle = Obstacle("no runs", "go elsewhere", False)
    monkeypatch.setattr(
        diagnosis, "diagnose_server", lambda *server: asked.append(server) or obstacle
    )

    assert (
        fcl("run", "--insecure", "--server", "a:1")[2] == "fcl: no runs: go elsewhere\n"
    )
    assert asked == [("a:1", None, START_RUN)]
    assert superlink == []


AGAIN = "fcl run --server 127.0.0.1:9093 --insecure --resume {0} goes on with this run"
ANEW = (
    "the same command starts it anew, as this machine has no finished round of it in "
    "{0}"
)


@pytest.mark.parametrize("step", [AGAIN, ANEW])
@pytest.mark.parametrize("gone", [True, False])
def test_a_run_that_ends_says_why_and_how_to_go_on(
    fcl, superlink, monkeypatch, tmp_path, step, gone
):
    def lost(self, config, **_):
        raise RoundError("too few clients")

    if step == AGAIN:
        (tmp_path / "here" / "checkpoint").mkdir(parents=True)
    monkeypatch.setattr(SuperLink, "run", lost)
    found = [None, Obstacle("the server is gone", "wait", True) if gone else None]
    monkeypatch.setattr(diagnosis, "diagnose_server", lambda *server: found.pop(0))

    code, _, err = fcl("run", "--insecure", "--output", "here")

    assert code == 1
    reason = "the server is gone: wait" if gone else "too few clients"
    assert err == f"fcl: {reason}; then {step.format(tmp_path / 'here')}\n"


@pytest.mark.parametrize("step", [AGAIN, ANEW])
def test_an_interrupted_run_promises_no_more_than_there_is(
    fcl, superlink, monkeypatch, tmp_path, step
):
    def interrupted(self, config, **_):
        raise KeyboardInterrupt

    if step == AGAIN:
        (tmp_path / "here" / "checkpoint").mkdir(parents=True)
    monkeypatch.setattr(SuperLink, "run", interrupted)

    code, _, err = fcl("run", "--insecure", "--output", "here")

    assert code == 130
    assert err.strip() == f"interrupted; {step.format(tmp_path / 'here')}"


def test_an_interrupted_server_says_how_to_go_on(fcl, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(server_process, "run_superlink", interrupted)

    code, out, _ = fcl("server", "--insecure")

    assert code == 130
    time, _, line = out.partition(" ")
    assert datetime.fromisoformat(time).tzinfo is not None
    assert (
        line == "fcl: interrupted; the same command goes on from what is in --state\n"
    )
