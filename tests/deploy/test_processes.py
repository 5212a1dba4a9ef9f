"""Nothing outlives who started it, and one program works in a folder."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from waiting import await_true

from fcl_flower.core import processes
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.processes import lock_states, start_guarded, stop_guarded
from fcl_flower.deploy import commands

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
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


def python(text, *arguments):
    return [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)]


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


def started(note, number):
    await_true(lambda: note.exists() and len(note.read_text().split()) == number)
    return [int(pid) for pid in note.read_text().split()]


@pytest.fixture
def note(tmp_path):
    return tmp_path / "pids"


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A guardian with less patience, as a copy of the package's file."""
    text = Path(processes.__file__).read_text()
    assert "GRACE = 10.0" in text
    short = text.replace("GRACE = 10.0", "GRACE = 0.5")
    (tmp_path / "short_guardian.py").write_text(short)
    monkeypatch.setattr(processes, "__name__", "short_guardian")
    return {**ENV, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_all_end_with_the_process_that_wanted_them(quick, tmp_path, note, number):
    scratch = tmp_path / "scratch"
    (scratch / "deep").mkdir(parents=True)
    (scratch / "deep" / "file").touch()
    wants = f"""
        import os, sys, time
        from pathlib import Path
        from fcl_flower.core import processes as guardian
        guardian.__name__ = "short_guardian"
        command = [sys.executable, "-c", {FAMILY!r}, {str(note)!r}]
        scratch = Path({str(scratch)!r})
        kept = guardian.start_guarded(command, os.environ, scratch=scratch)
        print(kept.pid, flush=True)
        time.sleep(600)
        """
    process = subprocess.Popen(
        python(wants), env=quick, stdout=subprocess.PIPE, text=True
    )
    with process.stdout as said:
        pids = [int(said.readline()), *started(note, 4)]
        assert len(alive(pids)) == 4  # all but the one that left an orphan
        assert scratch.exists()

        process.send_signal(number)
        process.wait()

    await_true(lambda: not alive(pids) and not scratch.exists())


def test_all_end_when_they_are_released(quick, note):
    process, pids = start_guarded(python(FAMILY, note), quick), started(note, 4)

    stop_guarded(process)

    assert alive(pids) == []
    assert process.returncode == 128 + signal.SIGTERM


def test_the_program_ends_with_its_guardian(note):
    says = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); "
    process = start_guarded(python(says + "time.sleep(600)", note), ENV)
    (pid,) = started(note, 1)

    process.kill()
    process.wait()

    await_true(lambda: not alive([pid]))
    stop_guarded(process)  # one that is gone is no error


def test_what_a_program_leaves_behind_ends_with_it(note):
    leaves = """
        import os, sys, time
        if os.fork():
            while not os.path.exists(sys.argv[1]): time.sleep(0.01)
            sys.exit(3)
        os.setsid(); note = open(sys.argv[1] + '.new', 'w')
        note.write(str(os.getpid())); note.close()
        os.rename(note.name, sys.argv[1]); time.sleep(600)
        """
    process = start_guarded(python(leaves, note), ENV)

    assert process.wait(60) == 3
    assert alive(started(note, 1)) == []
    stop_guarded(process)


@pytest.mark.parametrize(
    ("does", "code"), [("", 0), ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL)]
)
def test_the_code_says_how_a_program_ended_and_a_scratch_folder_may_be_gone(
    tmp_path, does, code
):
    command = python(f"import os; {does}")
    process = start_guarded(command, ENV, scratch=tmp_path / "gone")

    assert process.wait(60) == code
    stop_guarded(process)


def test_a_process_is_ended_even_where_no_file_can_be_opened():
    program = """
        import os, resource, sys
        from fcl_flower.core.processes import start_guarded, stop_guarded
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
    done = subprocess.run(python(program), capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_programs_beside_the_interpreter_come_first(tmp_path, monkeypatch):
    (tmp_path / "python").touch()
    (tmp_path / "flwr").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert commands.program("flwr") == str(tmp_path / "flwr")
    assert commands.program("flower-superlink") == "flower-superlink"


# ---- folders of states

HOLDS = """
import pathlib, subprocess, sys
from fcl_flower.core.processes import lock_states
with lock_states(pathlib.Path(sys.argv[1]), print) as lock:
    if len(sys.argv) > 2:  # leave another behind that holds it
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        left = subprocess.Popen(child, pass_fds=[lock], stdout=subprocess.DEVNULL)
        print(left.pid, flush=True)
    else:
        print("in", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Start a process that works in the folder; returns it and what it has said."""
    monkeypatch.setattr(processes, "PATIENCE", 3.0)
    begun = []

    def start(*more):
        process = subprocess.Popen(
            python(HOLDS, tmp_path, *more),
            env=ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in begun:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def test_a_second_program_is_refused_and_told_who_is_there(hold, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    (other, _), said = hold(), []

    with (
        pytest.raises(ConfigError, match=rf"process {other.pid} \(python") as refused,
        lock_states(tmp_path, said.append),
    ):
        pytest.fail("two programs in one folder")

    assert str(refused.value).startswith(f"state: got '{tmp_path}', expected a folder")
    (line,) = said
    assert f"waiting for process {other.pid} " in line


def test_a_program_that_is_ending_is_waited_for_and_a_killed_one_not(hold, tmp_path):
    other, _ = hold()
    with lock_states(tmp_path, lambda line: other.stdin.close()):
        assert other.wait(60) == 0
    other, _ = hold()
    other.kill()
    other.wait()

    with lock_states(tmp_path, pytest.fail):
        pass


def test_a_leftover_that_was_given_the_lock_keeps_it_and_is_named(hold, tmp_path):
    parent, left = hold("and leave one")
    parent.wait(60)
    try:
        with (
            pytest.raises(ConfigError, match=f"process {left} "),
            lock_states(tmp_path, lambda line: None),
        ):
            pytest.fail("two programs in one folder")
    finally:
        os.kill(int(left), 9)
