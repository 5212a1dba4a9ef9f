import signal
import socket
import subprocess
import sys

import psutil

from fcl_flower.runtime import processes


def test_each_call_finds_a_port_of_its_own():
    ports = set()
    for _ in range(5):
        port = processes.free_port()
        with socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    assert all(1024 < port < 65536 for port in ports)


def test_programs_beside_the_interpreter_come_first(tmp_path, monkeypatch):
    (tmp_path / "python").touch()
    (tmp_path / "flwr").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert processes.program("flwr") == str(tmp_path / "flwr")
    assert processes.program("flower-superlink") == "flower-superlink"


def test_a_stubborn_process_is_killed(monkeypatch):
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", stubborn], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    wait = psutil.wait_procs
    monkeypatch.setattr(psutil, "wait_procs", lambda all_, timeout: wait(all_, 0.2))
    processes.stop(process)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()
    processes.stop(process)  # one that is gone is no error


def test_a_process_is_ended_even_where_no_file_can_be_opened():
    program = """
import os, resource, subprocess, sys
from fcl_flower.runtime.processes import stop
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
try:
    stop(process)
except OSError as error:
    print(error.strerror)
print(process.returncode)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"Too many open files\n{-signal.SIGKILL}\n"
