"""Nothing outlives who started it, however that ends; with real processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from fcl_flower.runtime import processes

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}

FAMILY = """
import os, signal, subprocess, sys, time
note = open(sys.argv[1], "a")
if os.fork() == 0:                # one in a session of its own
    os.setsid()
    if os.fork() == 0:            # and one that has lost its parent
        print(os.getpid(), file=note, flush=True)
        time.sleep(600)
    print(os.getpid(), file=note, flush=True)
    os._exit(0)
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), file=note, flush=True)
    time.sleep(600)
os.wait()                         # the one whose child is an orphan now
print(os.getpid(), file=note, flush=True)
time.sleep(600)
"""


def await_true(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def alive(pids):
    """Return those that run; one that has ended, but is not waited for, does not."""
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def started(note, number=4):
    await_true(lambda: note.exists() and len(note.read_text().split()) == number)
    return [int(pid) for pid in note.read_text().split()]


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A guardian with less patience, as a copy of the package's file."""
    text = Path(processes.__file__).read_text()
    assert "GRACE = 10.0" in text
    (tmp_path / "short_guardian.py").write_text(
        text.replace("GRACE = 10.0", "GRACE = 0.5")
    )
    env = {**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    monkeypatch.setattr(processes, "__name__", "short_guardian")
    return env


def family(quick, note):
    """Start a program with an orphan, a deaf child, and one in its own session."""
    command = [sys.executable, "-c", FAMILY, str(note)]
    return processes.start_guarded(command, quick), started(note)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_all_end_with_the_process_that_wanted_them(quick, tmp_path, number):
    note = tmp_path / "pids"
    wants = textwrap.dedent(
        f"""
        import os, sys, time
        from fcl_flower.runtime import processes as guardian
        guardian.__name__ = "short_guardian"
        command = [sys.executable, "-c", {FAMILY!r}, {str(note)!r}]
        kept = guardian.start_guarded(command, os.environ)
        print(kept.pid, flush=True)
        time.sleep(600)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", wants], env=quick, stdout=subprocess.PIPE, text=True
    )
    with process.stdout as said:
        pids = [int(said.readline()), *started(note)]
        assert len(alive(pids)) == 4  # all but the one that left an orphan

        process.send_signal(number)
        process.wait()

    await_true(lambda: not alive(pids))


def test_all_end_when_they_are_released(quick, tmp_path):
    process, pids = family(quick, tmp_path / "pids")

    processes.stop_guarded(process)

    assert alive(pids) == []
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_scratch_folder_stays_behind_whoever_ends(tmp_path, number):
    note, scratch = tmp_path / "pids", tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "deep" / "file").touch()
    says = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
    wants = textwrap.dedent(
        f"""
        import os, sys, time
        from pathlib import Path
        from fcl_flower.runtime.processes import start_guarded
        command = [sys.executable, "-c", {says + "time.sleep(600)"!r}, {str(note)!r}]
        kept = start_guarded(command, os.environ, scratch=Path({str(scratch)!r}))
        time.sleep(600)
        """
    )
    with subprocess.Popen([sys.executable, "-c", wants], env=ENV) as process:
        (pid,) = started(note, 1)
        assert scratch.exists()
        process.send_signal(number)

    await_true(lambda: not alive([pid]) and not scratch.exists())


def test_a_scratch_folder_that_is_gone_is_no_error(tmp_path):
    scratch = tmp_path / "scratch"
    process = processes.start_guarded([sys.executable, "-c", ""], ENV, scratch=scratch)
    assert process.wait() == 0
    processes.stop_guarded(process)


def test_the_program_ends_with_its_guardian(tmp_path):
    note = tmp_path / "pids"
    says = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
    command = [sys.executable, "-c", says + "time.sleep(600)", str(note)]
    process = processes.start_guarded(command, ENV)
    (pid,) = started(note, 1)

    process.kill()
    process.wait()

    await_true(lambda: not alive([pid]))
    processes.stop_guarded(process)  # one that is gone is no error


def test_what_a_program_leaves_behind_ends_with_it(tmp_path):
    note = tmp_path / "pids"
    leaves = (
        "import os, sys, time\n"
        "if os.fork():\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    sys.exit(3)\n"
        "os.setsid(); note = open(sys.argv[1] + '.new', 'w')\n"
        "note.write(str(os.getpid())); note.close()\n"
        "os.rename(note.name, sys.argv[1]); time.sleep(600)"
    )
    process = processes.start_guarded([sys.executable, "-c", leaves, str(note)], ENV)

    assert process.wait(60) == 3
    assert alive(started(note, 1)) == []
    processes.stop_guarded(process)


def test_a_program_that_was_killed_says_so_by_its_code():
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    process = processes.start_guarded([sys.executable, "-c", dies], ENV)

    assert process.wait(60) == 128 + signal.SIGKILL
    processes.stop_guarded(process)
