"""Other programs: find them, wait until they listen, end them with all they started."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fcl_flower.core.errors import RoundError

STARTUP_SECONDS = 60.0


def program(name: str) -> str:
    """Return the path of a program that was installed beside this interpreter."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until somebody listens on a port of this machine.

    Args:
        process: Flower's SuperLink, which is to listen there.
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


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started.

    A SuperLink starts the simulation in a session of its own, and Ray its workers
    below that: none of them would hear a signal to the SuperLink.
    """
    # One that has ended and was waited for: its number may be somebody else's by now.
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, alive = psutil.wait_procs(family, timeout=10)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


POLL_SECONDS = 0.2


Progress = dict[str, Any]


def follow(
    run: subprocess.Popen[bytes], path: Path, watch: Callable[[Progress], None]
) -> str:
    """Report progress until the run ends; return the last state seen.

    Args:
        run: the command that runs it.
        path: of ``progress.json``, where a run tells how far it is.
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
