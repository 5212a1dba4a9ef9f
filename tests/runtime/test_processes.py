import socket
import subprocess
import sys

import pytest

from fcl_flower.flower import commands
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
    assert commands.program("flwr") == str(tmp_path / "flwr")
    assert commands.program("flower-superlink") == "flower-superlink"


@pytest.mark.process
def test_a_process_is_ended_even_where_no_file_can_be_opened():
    program = """
import os, resource, sys
from fcl_flower.runtime.processes import start_guarded, stop_guarded
command = [sys.executable, "-c", "import time; time.sleep(600)"]
process = start_guarded(command, os.environ)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    pass
stop_guarded(process)
print(process.returncode > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
