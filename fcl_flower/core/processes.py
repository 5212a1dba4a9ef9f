"""Other programs: start and end them, wait for their ports, follow their progress."""

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
"""The seconds between the request to end and the end by force."""
PATIENCE = GRACE + 5.0
"""The seconds that `lock_states` waits for an earlier program to end."""
STARTUP_SECONDS = 60.0
POLL_SECONDS = 0.2

PROBE_BYTES = 2**20
"""The free space that a folder must have before a program is started."""
STATES_LOCK = "in-use.lock"

Progress = dict[str, Any]
"""The content of ``progress.json``."""


def start_guarded(
    command: Sequence[str],
    env: Mapping[str, str],
    output: int | IO[str] | None = None,
    keep_open: Sequence[int] = (),
    scratch: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process does, or with `stop_guarded`.

    Args:
        command: the program and its arguments.
        env: the environment, in which Python must find this package.
        output: the file of the program's standard output and error; None for those of
            this process.
        keep_open: the descriptors that the program inherits.
        scratch: a folder that is removed when the program ends.

    Returns:
        the guardian, a process that ends with the program's exit code.
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
        # An interrupt at the terminal must not reach the program.
        start_new_session=True,
    )


def stop_guarded(guardian: subprocess.Popen[bytes]) -> None:
    """End a program of `start_guarded` with all its child processes, and wait."""
    assert guardian.stdin is not None  # it is a pipe
    guardian.stdin.close()
    guardian.wait()


class ProgressFile:
    """A run's ``progress.json``, read for changes."""

    def __init__(self, folder: Path) -> None:
        """Take the content that an earlier run has left as old."""
        self._path = folder / "progress.json"
        self._seen: Progress = {}
        self.news()

    def news(self) -> Progress | None:
        """Read the run's progress; None if it has not changed since the last call."""
        if not self._path.exists():
            return None
        current: Progress = json.loads(self._path.read_text())
        changed, self._seen = current != self._seen, current
        return current if changed else None


# ---- ports of this machine


def free_port() -> int:
    """Find a port of this machine on which no program listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_used_port(port: int, key: str) -> None:
    """Check that no program listens on the port that a setting names.

    Raises:
        ConfigError: the port is in use, or this user may not listen on it.
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


def exit_status(process: int) -> str:
    """Say how a process has ended that its parent has not asked for; else empty.

    Linux keeps such a process, a zombie, with its exit status.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    if state != "Z":
        return ""
    code = os.waitstatus_to_exitcode(int(fields[-1]))
    if code < 0:
        return f"by signal {-code} ({signal.strsignal(-code)})"
    return f"with code {code}"


# ---- folders


def make_folder(folder: Path, key: str, *, private: bool = False) -> None:
    """Make the folder that the setting ``key`` names, and check that it is writable.

    Args:
        folder: the folder, which may exist.
        key: the setting, for the error's message.
        private: only the owner can read the folder.

    Raises:
        ConfigError: the folder cannot be made, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private:
            make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))  # a full disk still takes an empty file
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise config_error(key, str(folder), expected) from error


@contextlib.contextmanager
def lock_states(folder: Path, report: Callable[[str], None]) -> Iterator[int]:
    """Lock a folder of clients' states for this process and the programs it starts.

    A program that inherits the yielded descriptor holds the lock, too. The system frees
    the folder when the last holder has ended. While another program that may be ending
    holds the lock, this function reports one line and waits.

    Yields:
        the descriptor of the lock.

    Raises:
        ConfigError: another program keeps the lock; the message names the program.
    """
    path = folder / STATES_LOCK
    descriptor = opener(str(path), os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + PATIENCE
        reported = False
        while not take(descriptor):
            if time.monotonic() > deadline:
                raise config_error(
                    "state",
                    str(folder),
                    f"a folder that no other program works in: {_holder(path)} does; "
                    "end it, or name another folder",
                )
            if not reported:
                report(f"waiting for {_holder(path)} in {folder} to end")
                reported = True
            time.sleep(POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    import psutil  # imported late, since most processes never need it

    for process in sorted(psutil.process_iter(), key=lambda each: each.pid):
        try:
            opened = {Path(file.path) for file in process.open_files()}
            if process.pid != os.getpid() and path.resolve() in opened:
                # The program's name, without the interpreter and its options.
                words = [Path(word).name for word in process.cmdline()[:4]]
                programs = (w for w in words if w.startswith(("fcl", "flower", "flwr")))
                return f"process {process.pid} ({next(programs, process.name())})"
        except psutil.Error:  # the process has ended, or is another user's
            continue
    return "a process of another user"


# ---- the guardian process

_SUBREAPER, _PARENT_DEATH_SIGNAL = 36, 1  # of prctl(2)


def _guard(keep_open: Sequence[int], scratch: str, command: Sequence[str]) -> int:
    _prctl(_SUBREAPER, 1)
    code = None
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        # The main thread starts the program, since the kernel sends the signal of the
        # parent's death when the starting thread ends.
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=keep_open,
            preexec_fn=partial(_prctl, _PARENT_DEATH_SIGNAL, signal.SIGTERM),
        )
        threading.Thread(target=_await_release, daemon=True).start()
        while code is None:
            ended, status = os.wait()  # also for adopted grandchildren
            if ended == program.pid:
                code = os.waitstatus_to_exitcode(status)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_family()
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)  # the program may remove it
    return code if code >= 0 else 128 - code


def _await_release() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _end_family() -> None:
    """End all descendants of this process, after `GRACE` seconds by force."""
    import psutil

    guardian, deadline = psutil.Process(), time.monotonic() + GRACE
    family, terminated = set["psutil.Process"](), set["psutil.Process"]()
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        family.update(guardian.children(recursive=True))
        family = {member for member in family if member.is_running()}
        if not family:
            return
        late = time.monotonic() > deadline
        for process in family if late else family - terminated:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        terminated |= family
        time.sleep(0.02)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes  # imported late, since only guardians need it

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    _open = [int(number) for number in sys.argv[1].split(",") if number]
    sys.exit(_guard(_open, sys.argv[2], sys.argv[3:]))
