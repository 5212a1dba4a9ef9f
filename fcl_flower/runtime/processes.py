"""Other programs: find them, wait until they listen, follow what they do."""

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcl_flower.core.errors import RoundError, refuse
from fcl_flower.runtime.lifetime.guardian import guarded, release
from fcl_flower.storage.private import make_private_folder

STARTUP_SECONDS = 60.0
POLL_SECONDS = 0.2

Progress = dict[str, Any]
"""What ``progress.json`` holds."""


def program(name: str) -> str:
    """Return the path of a program that was installed beside this interpreter."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def free_port() -> int:
    """Return a port of this machine on which no program listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def refuse_used_port(port: int, key: str) -> None:
    """Check that no program listens on a port of this machine.

    Args:
        port: of 127.0.0.1.
        key: the setting that names it, for the message of an error.

    Raises:
        ConfigError: it cannot be listened at.
    """
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        expected = f"a port of this machine that no program uses ({error.strerror})"
        raise refuse(key, port, expected) from error


def await_port(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until a program listens on a port of this machine.

    Args:
        process: Flower's SuperLink, which should listen there.
        port: of 127.0.0.1.

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


def make_folder(folder: Path, key: str, *, private: bool = False) -> None:
    """Make a folder if it is not there.

    Args:
        folder: to be made, with those above it.
        key: the setting that names it, for the message of an error.
        private: nobody but its owner may look into it.

    Raises:
        ConfigError: it cannot be made, or cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private:
            make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise refuse(key, str(folder), expected) from error


@contextlib.contextmanager
def lasting_process(
    name: str,
    command: Sequence[str],
    env: Mapping[str, str],
    report: Callable[[str], None],
    *,
    keep_open: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for as long as the context lasts, which it is to outlive.

    Args:
        name: what an error calls it.
        command: the program with its arguments.
        env: its environment.
        report: called with the command line.
        keep_open: descriptors that the program holds as long as it runs.

    Raises:
        RoundError: it ended by itself: the context was left without an error.
    """
    report(shlex.join(command))
    process = guarded(command, env, keep_open=keep_open)
    try:
        yield process
    finally:
        release(process)
    raise RoundError(f"the {name} ended by itself, with code {process.returncode}")


def follow(
    run: subprocess.Popen[bytes], path: Path, watch: Callable[[Progress], None]
) -> str:
    """Report progress until the run ends; return the last state seen.

    Args:
        run: the command that runs it.
        path: of ``progress.json``, where a run says how far it is.
        watch: called with the file's contents when they change.
    """
    seen: Progress = {}
    while True:
        ended = run.poll() is not None
        if path.exists():
            now: Progress = json.loads(path.read_text())
            if now != seen:
                seen = now
                watch(now)
        if ended or seen.get("state") == "finished":
            return str(seen.get("state", ""))
        time.sleep(POLL_SECONDS)
