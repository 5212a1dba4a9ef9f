"""A server and its clients as processes of this machine, over TLS, in one folder."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
from waiting import PATIENCE, await_true

from fcl_flower.core.processes import free_port

ROOT = Path(__file__).parents[2]
MENDED = "fcl_flower.deploy.speedups.supernode", "fcl_flower.deploy.speedups.superlink"
"""Run Flower's programs, whose command line follows them and two arguments."""


class LocalFederation:
    """Our commands, each with a log of its own, from certificates to the end of all.

    ``certs`` is a folder of certificates everywhere; empty for no protection at all.
    """

    def __init__(
        self,
        folder: Path,
        *,
        algorithm: str = "",
        model: str = "",
        beside: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the folder; start nothing.

        Args:
            folder: made if there is none.
            algorithm: one that is not ours, as ``module:NAME``: it is known to all
                commands by the module's name.
            model: likewise.
            beside: the folder that holds its module.
            variables: of the environment, besides this process's.
        """
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self.control = free_port(), free_port()
        self.hosts, self.listens = ["localhost"], "127.0.0.1"
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self._offsets: dict[str, int] = {}
        places = [ROOT]
        for group, name in (("algorithms", algorithm), ("models", model)):
            if not name:
                continue
            module = name.partition(":")[0]
            installed = self.folder / "installed" / f"{module}-1.dist-info"
            installed.mkdir(parents=True)
            (installed / "METADATA").write_text(f"Name: {module}\nVersion: 1\n")
            (installed / "entry_points.txt").write_text(
                f"[fcl_flower.{group}]\n{module} = {name}\n"
            )
            places.append(installed.parent)
        if beside is not None:
            places.append(beside.absolute())
        path = os.pathsep.join(map(str, places))
        self.environment = {**os.environ, "PYTHONPATH": path, **(variables or {})}

    def place(self, name: str) -> tuple[str, ...]:
        """Give what a command begins with, by the name of its process."""
        return ()

    def entrance(self, number: int) -> str:
        """Give the address at which a client finds the server."""
        return f"{self.hosts[0]}:{self.port}"

    def start(
        self,
        name: str,
        command: Sequence[object],
        *,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start a program whose output goes to the end of ``NAME.log``.

        Args:
            name: of the process from now on; an earlier one of that name has ended.
            command: the program and its arguments.
            environment: in place of that of our commands.
            prepare: called in the new process, such as to limit it.
        """
        path = self.folder / f"{name}.log"
        with path.open("ab") as log:
            self._offsets[name] = log.tell()
            self.started[name] = subprocess.Popen(
                [*self.place(name), *map(str, command)],
                cwd=self.folder,
                env=environment or self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=prepare,
            )

    def fcl(
        self,
        name: str,
        *arguments: object,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start a command of ours."""
        command = (sys.executable, "-m", "fcl_flower.cli.main", *arguments)
        self.start(name, command, prepare=prepare)

    def certificates(self, clients: int, name: str = "certs") -> None:
        """Make certificates and keys in a folder of that name."""
        hosts = [word for host in self.hosts for word in ("--host", host)]
        self.fcl(name, "certs", name, *hosts, "--clients", clients)
        self.finish(name)

    def server(
        self,
        *more: object,
        certs: str = "certs",
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start the server, which keeps its state; wait until clients can join."""
        keys = [key.name for key in (self.folder / certs / "clients").glob("*.pub")]
        if (self.folder / "state-server").exists():
            keys = []  # they are known
        self.fcl(
            "server",
            *("server", *_trust(certs), "--host", self.listens),
            *("--port", self.port, "--control-port", self.control),
            *("--state", "state-server", *more),
            prepare=prepare,
        )
        registered = [f"registered {key}" for key in keys]
        self.until("server", "clients reach this server", *registered)

    def client(
        self,
        number: int,
        *more: object,
        name: str = "",
        certs: str = "certs",
        state: str = "",
    ) -> None:
        """Start a client, whose state is that of its number if nothing else is said."""
        self.fcl(
            name or f"client-{number}",
            *("client", "--server", self.entrance(number), "--number", number),
            *(*_trust(certs), "--state", state or f"state-{number}", *more),
        )

    def run(self, *more: object, name: str = "run", certs: str = "certs") -> None:
        """Start a run, or go on with one."""
        address = f"127.0.0.1:{self.control}"
        self.fcl(name, "run", "--server", address, *_trust(certs), *more)

    def log(self, name: str) -> str:
        """Return all that the processes of a name have said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, name: str) -> str:
        """Return what the last process of a name has said so far."""
        with (self.folder / f"{name}.log").open("rb") as log:
            log.seek(self._offsets[name])
            return log.read().decode(errors="replace")

    def tails(self) -> str:
        """Return the ends of all logs, for the message of an error."""
        return "\n".join(f"--- {n}\n{self.said(n)[-2000:]}" for n in self.started)

    def ended(self, name: str) -> bool:
        """Return whether a process has ended."""
        return self.started[name].poll() is not None

    def until(self, name: str, *patterns: str) -> None:
        """Wait until a process has said all of this.

        Raises:
            RuntimeError: it has ended before, or says nothing of the kind.
        """
        await_true(
            lambda: all(re.search(words, self.said(name)) for words in patterns),
            lambda: f"{name} did not say {patterns}\n{self.tails()}",
            lambda: self.ended(name),
        )

    def code(self, name: str, patience: float = PATIENCE) -> int:
        """Wait for a process's end; return its exit code.

        Raises:
            RuntimeError: it does not end.
        """
        try:
            return self.started[name].wait(patience)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} does not end\n{self.tails()}") from None

    def finish(self, name: str, patience: float = PATIENCE) -> None:
        """Wait until a process has ended well.

        Raises:
            RuntimeError: it has not.
        """
        if code := self.code(name, patience):
            raise RuntimeError(f"{name} ended with {code}\n{self.tails()}")

    def family(self, *names: str) -> list[psutil.Process]:
        """Return all processes that run now because of us, or of some commands."""
        found = []
        for name in names or self.started:
            with contextlib.suppress(psutil.Error):
                if not self.ended(name):
                    mother = psutil.Process(self.started[name].pid)
                    found += [mother, *mother.children(recursive=True)]
        return found

    def members(self, name: str) -> Iterator[tuple[str, psutil.Process]]:
        """Yield all processes that a command of ours is, each with its program."""
        for process in self.family(name):
            with contextlib.suppress(psutil.Error):
                if command := process.cmdline():  # empty when it has just ended
                    yield _program(command), process

    def member(self, name: str, program: str) -> psutil.Process:
        """Return the process that a command of ours has started for a program.

        Raises:
            LookupError: it runs no such program.
        """
        for found, process in self.members(name):
            if found == program:
                return process
        raise LookupError(f"{name} runs no {program}")

    def kill(self, name: str) -> list[psutil.Process]:
        """Kill a command, which cannot say a word; return what outlives it."""
        family = self.family(name)
        self.started[name].kill()
        return psutil.wait_procs(family, timeout=20)[1]

    def end(self, *names: str) -> list[psutil.Process]:
        """Ask all, or some, to end; return those that outlived it and were killed."""
        family = self.family(*names)
        asked = [p for n, p in self.started.items() if n in (names or self.started)]
        for process in asked:
            process.send_signal(signal.SIGTERM)
        for process in asked:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            with contextlib.suppress(psutil.Error):
                member.kill()
        return alive


def _program(command: Sequence[str]) -> str:
    """Return the name of the program, or of the module, that a command line runs."""
    words = [word for word in command[1:] if word not in ("-P", "-m")]
    if words and words[0] in MENDED:
        words = words[3:]
    return Path((words or command)[0]).name


def _trust(certs: str) -> list[str]:
    return ["--certs", certs] if certs else ["--insecure"]
