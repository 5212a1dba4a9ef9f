"""A federation on machines of its own goes on, whatever happens to its links."""

import contextlib
import random
import signal
import subprocess
import sys

import psutil
import pytest
import situations
from local_federation import ROOT
from namespaces import NETWORK, PREFIX, Testbed, clean_up, ip
from relay import AGAIN, SEGMENT, Link


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    with situations.healthy(tmp_path_factory.mktemp("bed"), relayed=False) as made:
        yield made


@pytest.fixture
def empty_bed(tmp_path):
    with Testbed(tmp_path, 2) as made:
        yield made


# ---- the relay and the namespaces


def test_a_link_delays_limits_and_loses():
    link = Link(delay=0.1, rate=1000.0)
    rng = random.Random(0)

    assert link.due("up", 500, 10.0, rng) == pytest.approx(10.6)
    # The second waits for the first one, the other way for none.
    assert link.due("up", 500, 10.0, rng) == pytest.approx(11.1)
    assert link.due("down", 500, 10.0, rng) == pytest.approx(10.6)
    lossy = Link(loss=0.25)
    waits = [lossy.due("up", SEGMENT, 0.0, rng) for _ in range(20_000)]
    # Lost once, and again, with twice the wait: a quarter, of it a quarter.
    assert {round(w / AGAIN) for w in waits} >= {0, 1, 3, 7}
    assert sum(w > 0 for w in waits) / len(waits) == pytest.approx(0.25, abs=0.015)


EXCHANGE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
began = time.monotonic()
s.sendall(b"x" * 20000 + b"\\n")
data = s.makefile("rb").readline()
print(len(data), time.monotonic() - began, s.getsockname()[0])
"""
ECHO = """
import socketserver, sys
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.readline())
with socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Echo) as server:
    print("ready", flush=True)
    server.serve_forever()
"""


def exchange(bed):
    """Send 20 kB through client 0's link and back: bytes, seconds and own address."""
    host, port = bed.entrance(0).split(":")
    name = f"client-0 asks {len(bed.started)}"
    bed.start(name, [sys.executable, "-c", EXCHANGE, host, port])
    bed.finish(name)
    size, seconds, address = bed.said(name).split()
    return int(size), float(seconds), address


@pytest.mark.deploy
def test_what_goes_through_the_relay_is_late_limited_and_whole(empty_bed):
    bed = empty_bed
    bed.start("echo", [sys.executable, "-c", ECHO, bed.listens, bed.port])
    bed.until("echo", "ready")

    size, quick, address = exchange(bed)
    bed.link(0, delay=0.3, rate=40_000)
    slow_size, slow, _ = exchange(bed)
    bed.link(0, delay=0.0, rate=0.0)
    bed.move(0)

    assert size == slow_size == 20_001
    assert address == f"{NETWORK}.10"
    # 0.3 s and 0.5 s of sending, there and back again.
    assert slow > 1.6 > quick
    assert exchange(bed)[2] == f"{NETWORK}.110"


@pytest.mark.deploy
def test_nothing_is_left_behind_even_by_a_test_that_was_killed(tmp_path):
    code = f"""
import sys, time
sys.path.append({str(ROOT / "tests" / "support")!r})
from pathlib import Path
from namespaces import Testbed
bed = Testbed(Path({str(tmp_path)!r}), 1)
bed.start("client-0", ["sleep", "1000"])
print("up", bed.started["client-0"].pid, flush=True)
time.sleep(1000)
"""
    command = [sys.executable, "-c", code]
    dying = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    _, pid = dying.stdout.readline().split()
    mine = f"{PREFIX}-{dying.pid}-"
    assert ip("netns", "list").count(mine) == 4
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    dying.stdout.close()

    clean_up()

    assert mine not in ip("netns", "list")
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


# ---- situations: the numbers of a run in one process where nothing happens


@pytest.mark.soak
@pytest.mark.deploy
def test_no_number_changes_where_links_processes_and_keys_are_disturbed(bed):
    def disturb(bed):
        """A twin comes, a client moves; then a client stops."""
        bed.client(2, name="client-0 twin", state="state-twin")
        situations.moved(5)(bed)
        situations.until_round(bed, "disturbed", 2)
        situations.stopped("client-2", "flower-supernode", 5)(bed)
        bed.until("client-0 twin", "trying again every")
        return bed.said("client-0 twin")

    found = situations.disturbed(bed, "disturbed", disturb)

    assert bed.end("client-0 twin") == []
    (twin,) = found.happened
    assert "does not let client 2 in" in twin
    assert found.same
    assert bed.addresses("client-1") == {f"{NETWORK}.111"}


@pytest.mark.soak
@pytest.mark.deploy
def test_a_run_goes_on_when_its_server_is_back(bed):
    found = situations.disturbed(bed, "away", situations.server_away(5))

    assert found.happened[0] == "fcl server"
    assert "goes on with this run" in found.happened[1]
    assert found.happened[2] == "fcl run --resume"
    assert found.same
