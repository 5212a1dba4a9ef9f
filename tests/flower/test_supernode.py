"""The process of a SuperNode ends when the SuperNode does."""

import subprocess
import sys

import pytest

LISTENS = """
import sys, threading, time
threading.Thread(target=time.sleep, args=[600]).start()
print("up")
"""


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
    (tmp_path / "flower-supernode").write_text(LISTENS + end)
    module = ("-m", "fcl_flower.flower.supernode")
    command = [sys.executable, "-P", *module, "", str(tmp_path / "flower-supernode")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == code
    assert done.stdout == "up\n"
    assert said in done.stderr
