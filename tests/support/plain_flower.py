"""Flower's own programs as any of its users starts them, without TLS or speed-ups."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import flwr
import psutil
from waiting import PATIENCE, await_true

from fcl_flower.core.processes import await_port, free_port

ROOT = Path(__file__).parents[2]
NAME = "mine"
"""Of the federation in Flower's configuration."""
REMOTE = """[superlink]
default = "mine"
[superlink.mine]
address = "127.0.0.1:{}"
insecure = true
"""
RELEASE = tuple(map(int, flwr.__version__.split(".")[:2]))
HERE = "127.0.0.1:"
FLEET, HTTP = ("--fleet-api-address", HERE), ("--port", "")
"""Options for addresses, and what stands before the port."""
SUPERLINK, SUPERNODE = [HTTP], HTTP
"""Those of a SuperLink, for SuperNodes first, for ``flwr run`` last; a SuperNode's."""
if RELEASE < (1, 40):
    SUPERLINK = [FLEET, HTTP]
if RELEASE < (1, 37):
    SUPERLINK.append(("--control-api-address", HERE))
if RELEASE < (1, 35):
    SUPERLINK[1] = ("--serverappio-api-address", HERE)
    SUPERNODE = ("--clientappio-api-address", HERE)


def place(program):
    """Find a program of the Flower that is installed."""
    return Path(sys.executable).with_name(program)


class PlainFlower:
    """A folder with a log for each process, and with Flower's own folder."""

    def __init__(self, folder):
        self.folder = folder
        self.started = {}
        home = folder / "flower"
        home.mkdir(parents=True)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("FLWR_")},
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONPATH": str(ROOT),
            # Flower's programs find each other, and its app finds this Python.
            "PATH": f"{place('flwr').parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def start(self, name, program, *arguments):
        with self.log(name).open("ab") as log:
            self.started[name] = subprocess.Popen(
                [place(program), *map(str, arguments)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name):
        return self.folder / f"{name}.log"

    def said(self, name):
        return self.log(name).read_text(errors="replace")

    def superlink(self, *more):
        """Start a SuperLink; wait until it listens."""
        ports = [free_port() for _ in SUPERLINK]
        words = [
            word
            for (option, host), port in zip(SUPERLINK, ports, strict=True)
            for word in (option, f"{host}{port}")
        ]
        self.start("superlink", "flower-superlink", "--insecure", *words, *more)
        self.fleet, control = ports[0], ports[-1]
        config = self.folder / "flower" / "config.toml"
        config.write_text(REMOTE.format(control))
        # An older SuperLink that simulates lets no SuperNode in.
        alone = "--simulation" in more and len(ports) > 1
        for port in ports[alone:]:
            await_port(self.started["superlink"], port)

    def supernode(self, name, config=""):
        """Start a SuperNode; what it is configured with is text of Flower's."""
        option, host = SUPERNODE
        self.start(
            name,
            *("flower-supernode", "--insecure", option, f"{host}{free_port()}"),
            *("--superlink", f"127.0.0.1:{self.fleet}"),
            *(["--node-config", config] if config else []),
        )

    def submit(self, name, settings, *more):
        """Begin a run by ``flwr run``, whose output is the log of that name."""
        text = " ".join(f"{key}={toml(value)}" for key, value in settings.items())
        words = ("run", ".", NAME, "--stream", "--run-config", text)
        self.start(name, "flwr", *words, *more)

    def code(self, name):
        """Return a program's exit code; it ends by itself."""
        try:
            return self.started[name].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} goes on: {self.tail(name)}") from None

    def until(self, name, words):
        await_true(
            lambda: words in self.said(name),
            lambda: f"{words}: {self.tail(name)}",
            lambda: self.started[name].poll() is not None,
        )

    def tail(self, name):
        return "\n".join(self.said(name).splitlines()[-40:])

    def family(self, *names):
        """Return the processes of programs, all by default, and what they started."""
        found = []
        for name in names or self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(self.started[name].pid)
                found += [process, *process.children(recursive=True)]
        return found

    def kill(self, name):
        """End a program by force, and what it started: nobody is told."""
        for process in self.family(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.started.pop(name).wait(PATIENCE)

    def end(self):
        for name in list(self.started):
            self.kill(name)


def toml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str | Path) else repr(value)
