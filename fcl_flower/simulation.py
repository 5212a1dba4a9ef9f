"""Many clients on one machine, through Flower's own simulation runtime.

A run gets a Flower app folder of its own, a SuperLink on a free port and a private
``FLWR_HOME``, all below its output folder, and then goes the public way: ``flwr run``.
Nothing outlives it, and it meets no other Flower on the machine.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from fcl_flower import __version__, assembly
from fcl_flower.config import RunConfig, toml
from fcl_flower.errors import RoundError
from fcl_flower.folders import CLIENTS, WORK

POLL_SECONDS = 0.2
STARTUP_SECONDS = 60.0
Progress = dict[str, Any]


def simulate(
    config: RunConfig,
    folder: Path,
    *,
    workers: int,
    gpus_per_client: float,
    watch: Callable[[Progress], None],
) -> dict[str, Any]:
    """Run ``config`` in Flower's simulation runtime; return its summary.

    Args:
        config: with a number of clients; with ``resume`` what clients remember stays.
        folder: for the results; exists and is writable.
        workers: clients that train at the same time, one CPU core each.
        gpus_per_client: share of a GPU that a client is given, 0 for none.
        watch: called with the contents of ``progress.json`` when they change.

    Raises:
        RoundError: the run failed; the message names the log with the reason.
    """
    work = folder / WORK
    for old_part in [work / "app", work / "home"] if config.resume else [work]:
        shutil.rmtree(old_part, ignore_errors=True)
    for old in ("summary.json", "progress.json"):
        (folder / old).unlink(missing_ok=True)
    app = work / "app"
    app.mkdir(parents=True)
    # Flower's processes need not run where the command was typed.
    config = config.with_values(
        output=str(folder.absolute()),
        memory=str((folder / CLIENTS).absolute()),
        data_root=str(assembly.data_root(config)),
    )
    (app / "pyproject.toml").write_text(_app_project(config))
    log = folder / "flower.log"
    with log.open("w") as sink, _superlink(work, sink) as environment:
        command = [
            _program("flwr"),
            *("run", str(app), "fcl", "--stream"),
            "--federation-config",
            f"num-supernodes={config.clients} client-resources-num-cpus=1 "
            f"client-resources-num-gpus={gpus_per_client} "
            f"init-args-num-cpus={workers}",
        ]
        run = subprocess.Popen(
            command, env=environment, stdout=sink, stderr=subprocess.STDOUT
        )
        try:
            state = _follow(run, folder / "progress.json", watch)
        finally:
            _stop(run)
    summary = folder / "summary.json"
    if state != "finished" or not summary.exists():
        raise RoundError(f"the run did not finish; the reason stands in {log}")
    shutil.rmtree(work)
    found: dict[str, Any] = json.loads(summary.read_text())
    return found


def _follow(
    run: subprocess.Popen[bytes], path: Path, watch: Callable[[Progress], None]
) -> str:
    """Report progress until the run ends; return the last state seen."""
    seen: Progress = {}
    ended = False
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


@contextlib.contextmanager
def _superlink(work: Path, sink: IO[str]) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations; yield the environment to reach it."""
    port, control = _free_port(), _free_port()
    home = work / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "fcl"\n\n[superlink.fcl]\n'
        f'address = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # clients are the work, not a background chore
        "PATH": os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        ),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    process = subprocess.Popen(
        [
            _program("flower-superlink"),
            *("--insecure", "--simulation", "--isolation", "subprocess"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--control-api-address", f"127.0.0.1:{control}"),
        ],
        env=environment,
        stdout=sink,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _await_port(process, port)
        yield environment
    finally:
        _stop(process)


def _app_project(config: RunConfig) -> str:
    """Return the project file of a Flower app that runs ``config``."""
    lines = "\n".join(f"{key} = {toml(value)}" for key, value in config.flat().items())
    return f"""[project]
name = "fcl-run"
version = "{__version__}"
description = "One run of fcl-flower"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fcl"

[tool.flwr.app.components]
serverapp = "fcl_flower.server_app:app"
clientapp = "fcl_flower.client_app:app"

[tool.flwr.app.config]
{lines}
"""


def _program(name: str) -> str:
    """Return the path of a program that was installed beside this interpreter."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=1),
        ):
            return
        time.sleep(0.05)
    raise RoundError("Flower's SuperLink did not start")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything that it started.

    A SuperLink starts the simulation in a session of its own, and Ray its workers
    below that: none of them would hear a signal to the SuperLink.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid)]
        family += family[0].children(recursive=True)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.terminate()
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            member.kill()
    process.wait()
