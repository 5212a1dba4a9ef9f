"""Ends a program, and all that it has started, when who wanted it ends.

Whatever ends a process, SIGKILL too, closes its end of a pipe. This program stands
between the two: it starts the other, reads the pipe, and at its end, or at that of the
program, ends whatever is left. What has left its parent, or its session, comes back to
it where the system allows that (Linux: PR_SET_CHILD_SUBREAPER).
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

GRACE = 10.0
"""Seconds between the request to end and the end by force."""

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # of prctl(2)


def guarded(
    command: Sequence[str],
    env: Mapping[str, str],
    output: int | IO[str] | None = None,
    keep_open: Sequence[int] = (),
    scratch: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process does, or with `release`.

    Args:
        command: the program with its arguments.
        env: its environment, in which Python finds this package.
        output: of both its streams, as `subprocess.Popen` takes it.
        keep_open: descriptors that the program holds as long as it runs.
        scratch: a folder that is of no use to anybody after it; removed at its end.

    Returns:
        the guardian, which has the exit code of the program.
    """
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", __name__),
            *(",".join(map(str, keep_open)), str(scratch or ""), *command),
        ],
        env=env,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        pass_fds=keep_open,
        # A session of its own: an interrupt at the terminal is not for it.
        start_new_session=True,
    )


def release(guardian: subprocess.Popen[bytes]) -> None:
    """End what `guarded` started, and all that came of it; wait until it is gone."""
    assert guardian.stdin is not None  # it is a pipe
    guardian.stdin.close()
    guardian.wait()


def _guard(keep_open: Sequence[int], scratch: str, command: Sequence[str]) -> int:
    """Run a program until it ends, or is to end; return its exit code."""
    _prctl(_SUBREAPER, 1)
    code = None
    try:
        signal.signal(signal.SIGTERM, _leave)
        # By the main thread: a parent's death is in truth that of its thread.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=keep_open,
            preexec_fn=_end_with_guardian,
        )
        threading.Thread(target=_await_release, daemon=True).start()
        while code is None:
            ended, status = os.wait()  # those that have lost their parent, too
            if ended == program.pid:
                code = os.waitstatus_to_exitcode(status)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_family()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)  # it may be gone already
    return code if code >= 0 else 128 - code


def _await_release() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)


def _end_family() -> None:
    """End all that this process has started, and what that has, by force at last."""
    this, deadline = psutil.Process(), time.monotonic() + GRACE
    family = set[psutil.Process]()
    while True:
        _reap()
        new = set(this.children(recursive=True)) - family
        family = {one for one in family | new if one.is_running()}
        if not family:
            return
        if time.monotonic() > deadline:
            _tell(family, psutil.Process.kill)
        else:
            _tell(new, psutil.Process.terminate)
        time.sleep(0.02)


def _tell(processes: set[psutil.Process], to: Callable[[psutil.Process], None]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            to(process)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_with_guardian() -> None:
    _prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    _open = [int(number) for number in sys.argv[1].split(",") if number]
    sys.exit(_guard(_open, sys.argv[2], sys.argv[3:]))
