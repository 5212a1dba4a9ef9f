"""The process of a SuperNode ends when the SuperNode does, and outlasts pauses."""

import subprocess
import sys

import pytest

LISTENS = """
import sys, threading, time
threading.Thread(target=time.sleep, args=[600]).start()
print("up")
"""

PATIENT = """
from flwr.supercore.corestate import in_memory_corestate
from flwr.supernode.nodestate import in_memory_nodestate
print([one.now.__module__ for one in (in_memory_corestate, in_memory_nodestate)])
"""


def run_program(folder, text):
    (folder / "flower-supernode").write_text(text)
    module = ("-m", "fcl_flower.deploy.speedups.supernode")
    command = [
        sys.executable,
        "-P",
        *module,
        "pauses",
        "",
        str(folder / "flower-supernode"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('the key cannot be read')", 1, "the key cannot be read"),
        ("raise OSError('certificate has expired')", 1, "certificate has expired"),
    ],
)
def test_a_thread_that_listens_does_not_keep_it(tmp_path, end, code, said):
    done = run_program(tmp_path, LISTENS + end)

    assert done.returncode == code
    assert done.stdout == "up\n"
    assert said in done.stderr


@pytest.mark.process
def test_what_it_knows_expires_by_a_patient_clock(tmp_path):
    done = run_program(tmp_path, PATIENT)

    assert done.stdout == f"{['fcl_flower.deploy.speedups.pauses'] * 2}\n"


@pytest.mark.process
def test_flower_alone_loads_a_database():
    program = "import sys, flwr.supernode.start_client_internal; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "sqlalchemy" in done.stdout.split()
