"""The parts of a server: the watch starts them, and again where one ends."""

import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from fcl_flower.core import processes
from fcl_flower.core.errors import RoundError
from fcl_flower.deploy.logs import Tail

RESTARTS, RESTART_SECONDS = 3, 600.0
"""The restarts of a part that are allowed within so many seconds."""


class Part(Protocol):
    """A part of a server, such as a program of Flower's."""

    @property
    def name(self) -> str:
        """Name of the part."""
        ...

    def start(self) -> None:
        """Start the part, and wait until it is ready."""

    def ended(self) -> str:
        """Say how the part has ended; empty while it runs."""
        ...

    def stop(self) -> None:
        """End the part, or what is left of it."""


class Program:
    """A program of Flower's, whose lines are shown, and the last ones kept."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        lock: int,
        show: Callable[[str], None],
        port: int | None = None,
    ) -> None:
        """Start nothing yet; a program with a ``port`` is ready once it listens."""
        self.name = name
        self._command, self._env, self._lock = command, env, lock
        self._show, self._port = show, port
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._tail = Tail()

    def start(self) -> None:
        """Start it; raise a `RoundError` with its last lines if it does not listen."""
        self._tail = Tail()
        self._process = processes.start_guarded(
            self._command, self._env, subprocess.PIPE, keep_open=[self._lock]
        )
        self._reader = threading.Thread(target=self._read, args=[self._process])
        self._reader.start()
        if self._port is not None:
            try:
                processes.await_port(self._process, self._port)
            except RoundError as error:
                self.stop()  # so that all its lines are read
                raise RoundError(f"{error}; its last lines: {self._tail}") from error

    def ended(self) -> str:
        """Say with which code it has ended, and its last lines."""
        if self._process is None or (code := self._process.poll()) is None:
            return ""
        assert self._reader is not None  # it was started
        self._reader.join()
        return f"with code {code}; its last lines: {self._tail}"

    def stop(self) -> None:
        """End it with all processes that it has started."""
        if self._process is not None and self._reader is not None:
            processes.stop_guarded(self._process)
            self._reader.join()
        self._process = None

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None  # it is a pipe
        with process.stdout as log:
            for raw in log:
                line = raw.decode(errors="replace").rstrip()
                self._tail.add(line)
                self._show(line)


class Watch:
    """Starts parts in order, and again where they end; ends them in turn."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Watch nothing yet."""
        self._report = report
        self._parts: list[Part] = []
        self._restarts: dict[str, deque[float]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Watch":
        """Begin; the end of the context ends each started part."""
        return self

    def __exit__(self, *error: object) -> None:
        """End all parts, the last one first."""
        self._stack.close()

    def start(self, part: Part) -> None:
        """Start a part and watch it from now on."""
        self._stack.callback(part.stop)
        part.start()
        self._parts.append(part)
        self._restarts[part.name] = deque()

    def look(self) -> None:
        """Start each ended part again.

        Raises:
            RoundError: a part has ended too often, or does not start.
        """
        for part in self._parts:
            if not (how := part.ended()):
                continue
            before, now = self._restarts[part.name], time.monotonic()
            while before and now - before[0] > RESTART_SECONDS:
                before.popleft()
            if len(before) >= RESTARTS:
                often = f" after {RESTARTS} restarts" if RESTARTS else ""
                raise RoundError(f"{part.name} ended by itself{often}, {how}")
            before.append(now)
            self._report(
                f"{part.name} ended by itself, {how}; it is started again "
                f"({len(before)} of {RESTARTS} times in {RESTART_SECONDS / 60:.0f} "
                "minutes)"
            )
            part.stop()
            part.start()
