"""Other programs: find them, wait until they listen, follow what they do."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fcl_flower.core.errors import RoundError, config_error
from fcl_flower.core.files import make_private_folder, opener, take

if TYPE_CHECKING:
    import psutil

GRACE = 10.0
"""Seconds between the request to end and the end by force."""
PATIENCE = GRACE + 5.0
"""What an earlier program may take to end, after the process that wanted it."""
STARTUP_SECONDS = 60.0
POLL_SECONDS = 0.2

PROBE_BYTES = 2**20
"""What a folder must have room for before anything is started."""
STATES_LOCK = "in-use.lock"

Progress = dict[str, Any]
"""What ``progress.json`` holds."""


def start_guarded(
    command: Sequence[str],
    env: Mapping[str, str],
    output: int | IO[str] | None = None,
    keep_open: Sequence[int] = (),
    scratch: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process does, or with `stop_guarded`.

    Its environment finds this package, ``output`` is of both its streams, and it holds
    the descriptors ``keep_open``. The folder ``scratch`` is removed at its end.

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


def stop_guarded(guardian: subprocess.Popen[bytes]) -> None:
    """End what `start_guarded` started with all that came of it; wait for the end."""
    assert guardian.stdin is not None  # it is a pipe
    guardian.stdin.close()
    guardian.wait()


class ProgressFile:
    """A run's ``progress.json``, of which only changes are news."""

    def __init__(self, folder: Path) -> None:
        """Take what an earlier run has left for old."""
        self._path = folder / "progress.json"
        self._seen: Progress = {}
        self.news()

    def news(self) -> Progress | None:
        """Read how far the run is, if that has changed."""
        if not self._path.exists():
            return None
        now: Progress = json.loads(self._path.read_text())
        changed, self._seen = now != self._seen, now
        return now if changed else None


# ---- ports of this machine


def free_port() -> int:
    """Find a port on which no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_used_port(port: int, key: str) -> None:
    """Check that no program listens on the port that a setting names.

    Raises:
        ConfigError: it cannot be listened at.
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        expected = f"a port of this machine that no program uses ({error.strerror})"
        raise config_error(key, port, expected) from error


def await_port(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until Flower's SuperLink listens on a port.

    Raises:
        RoundError: the process ended, or did not listen in time.
    """
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=1),
        ):
            return
        time.sleep(0.05)
    raise RoundError("Flower's SuperLink did not start")


# ---- folders


def make_folder(folder: Path, key: str, *, private: bool = False) -> None:
    """Make the folder that a setting names, if need be for its owner alone.

    Raises:
        ConfigError: it cannot be made, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private:
            make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))  # a full disk takes a name, but no content
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise config_error(key, str(folder), expected) from error


@contextlib.contextmanager
def lock_states(folder: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Keep a folder of states for this process, and for those that get the descriptor.

    The system gives the folder back when the last of them has ended, however it did.
    Where another program is there, and may be ending, a line is reported.

    Yields:
        the descriptor; a program that holds it keeps the folder, too.

    Raises:
        ConfigError: another program stays there; the message names it.
    """
    path = folder / STATES_LOCK
    lock = opener(str(path), os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + PATIENCE
        told = False
        while not take(lock):
            if time.monotonic() > deadline:
                raise config_error(
                    "state",
                    str(folder),
                    f"a folder that no other program works in: {_holder(path)} does; "
                    "end it, or name another folder",
                )
            if not told:
                report(f"waiting for {_holder(path)} in {folder} to end")
                told = True
            time.sleep(POLL_SECONDS)
        yield lock
    finally:
        os.close(lock)


def _holder(path: Path) -> str:
    import psutil  # here and below only: most that wait never come here

    for process in sorted(psutil.process_iter(), key=lambda found: found.pid):
        try:
            opened = {Path(file.path) for file in process.open_files()}
            if process.pid != os.getpid() and path.resolve() in opened:
                # What was started, without the interpreter and its options.
                words = [Path(word).name for word in process.cmdline()[:4]]
                ours = (w for w in words if w.startswith(("fcl", "flower", "flwr")))
                return f"process {process.pid} ({next(ours, process.name())})"
        except psutil.Error:  # it has ended, or is another user's
            continue
    return "a process of another user"


# ---- the guardian, a process of its own

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # of prctl(2)


def _guard(keep_open: Sequence[int], scratch: str, command: Sequence[str]) -> int:
    _prctl(_SUBREAPER, 1)
    code = None
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        # By the main thread: a parent's death is in truth that of its thread.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=keep_open,
            preexec_fn=partial(_prctl, _PARENT_DEATH_SIGNAL, signal.SIGTERM),
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


def _end_family() -> None:
    """End all that this process has started, and what that has, by force at last."""
    import psutil

    this, deadline = psutil.Process(), time.monotonic() + GRACE
    family, asked = set["psutil.Process"](), set["psutil.Process"]()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        family.update(this.children(recursive=True))
        family = {one for one in family if one.is_running()}
        if not family:
            return
        late = time.monotonic() > deadline
        for process in family if late else family - asked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        asked |= family
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # in guardians alone

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    _open = [int(number) for number in sys.argv[1].split(",") if number]
    sys.exit(_guard(_open, sys.argv[2], sys.argv[3:]))
