"""Our commands as processes, in a folder of their own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 240  # the machine may be busy


class Lab:
    """Starts our commands in a folder, each with a log, and ends them all."""

    def __init__(self, folder):
        self.folder = folder
        self.started = {}

    def start(self, name, *arguments):
        with (self.folder / f"{name}.log").open("w") as log:
            self.started[name] = subprocess.Popen(
                [sys.executable, "-m", "fcl_flower.cli.main", *map(str, arguments)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def code(self, name):
        """Wait for a command's end; return its exit code."""
        try:
            return self.started[name].wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return pytest.fail(f"{name} does not end\n{self.tails()}")

    def until(self, name, *patterns):
        """Wait until a command has said all of this."""
        deadline = time.monotonic() + PATIENCE
        while not all(re.search(pattern, self.said(name)) for pattern in patterns):
            if self.started[name].poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{name} did not say {patterns}\n{self.tails()}")
            time.sleep(0.2)

    def tails(self):
        return "\n".join(f"--- {n}\n{self.said(n)[-2000:]}" for n in self.started)

    def family(self, *names):
        """Return all processes that run now because of us, or of some commands."""
        own = [
            psutil.Process(process.pid)
            for name, process in self.started.items()
            if process.poll() is None and name in (names or self.started)
        ]
        return own + [c for one in own for c in one.children(recursive=True)]

    def kill(self, name):
        """Kill a command, which cannot say a word; return what outlives it."""
        family = self.family(name)
        assert len(family) > 2
        self.started[name].kill()
        return psutil.wait_procs(family, timeout=20)[1]

    def end(self):
        """Ask every command to end; return the processes that outlived it."""
        family = self.family()
        for process in self.started.values():
            process.send_signal(signal.SIGTERM)
        for process in self.started.values():
            process.wait(PATIENCE)
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        return alive


def copied(source, target, *names):
    """Copy what an operator would hand to a machine."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((source / name).read_bytes())
