"""The server of a federation: a SuperLink behind a reverse proxy."""

import datetime
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from fcl_flower.core import processes
from fcl_flower.core.errors import RoundError
from fcl_flower.deploy import commands, proxy
from fcl_flower.deploy.certificates import Certificates
from fcl_flower.deploy.diagnosis import diagnose_server
from fcl_flower.deploy.http import Bounds, raise_descriptor_limit
from fcl_flower.deploy.logs import as_local, now, on_screen
from fcl_flower.deploy.node_auth import NodeKeys, public_key
from fcl_flower.deploy.speedups import Choice
from fcl_flower.deploy.watch import Program, Watch
from fcl_flower.flower_app.environment import SPEEDUPS, environment
from fcl_flower.results.known_runs import FOLDER, KnownRun, Standing, known_runs
from fcl_flower.rounds.clients import VARIABLE, ClientNumbers
from fcl_flower.service.members import HOME, NUMBERS, write_keys

LOOK_SECONDS = 1.0
APP_SECONDS = 5.0
"""Seconds between two looks for server apps that have ended."""
OBJECTS = "objects"
"""Large contents of messages on their way, beside the database that knows of them."""
NO_SPEEDUPS = Choice((), "speed-ups: none")
STREAMING = "fcl_flower.deploy.speedups.streaming"
WARN_BEFORE, WARN_EVERY = datetime.timedelta(days=30), datetime.timedelta(days=1)
"""The time before the certificate's end, and the time between two warnings."""


class Addresses(NamedTuple):
    """The addresses at which a server listens."""

    host: str
    port: int
    control_port: int

    @property
    def control(self) -> str:
        """The address for runs and keys, from this machine alone."""
        return f"127.0.0.1:{self.control_port}"


def run_superlink(
    certificates: Certificates | None,
    state: Path,
    addresses: Addresses,
    more: Sequence[str],
    report: Callable[[str], None],
    metrics_port: int = 0,
    speedups: Choice = NO_SPEEDUPS,
    show: Callable[[str], None] = on_screen,
) -> None:
    """Run the server of a federation until it is stopped.

    Without certificates any program may join as a client. The folder ``state`` keeps
    all that a restart needs, and ``more`` are arguments for flower-superlink.
    ``report`` gets lines for the user, and ``show`` those of Flower's programs. With a
    ``metrics_port`` Prometheus finds metrics there, on this machine alone. Flower's
    programs and the server apps take up the ``speedups``.

    Raises:
        ConfigError: a certificate is missing, the folder cannot be written, another
            program works in it, the address is taken, or ``more`` names another
            flower-superexec.
        RoundError: a part did not start, or ended by itself again and again.
    """
    security, trust, keys = ["--insecure"], ["--insecure"], None
    if certificates is not None:
        files = certificates.authority, certificates.server, certificates.server_key
        certificates.require(*files)
        options = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
        named = zip(options, map(str, files), strict=True)
        security = [*(word for pair in named for word in pair)]
        security.append("--enable-supernode-auth")
        trust = ["--root-certificates", str(certificates.authority)]
        keys = NodeKeys()
    bounds = Bounds.of_descriptors(raise_descriptor_limit(), keys=keys is not None)
    home, path = state / HOME, (state / NUMBERS).absolute()
    numbers, control = ClientNumbers(path), addresses.control
    processes.make_folder(state, "state", private=True)
    authority = certificates and certificates.authority
    commands.write_superlink(home, control, authority)
    superlink = commands.server_program(
        [
            commands.program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(addresses.control_port)),
            *("--database", str((state / "superlink.db").absolute())),
            *security,
            *more,
        ],
        (state / OBJECTS).absolute(),
        speedups.names,
    )
    superexec = [
        commands.program("flower-superexec"),
        *trust,
        *("--runtime-api-address", control),
    ]
    env = {**environment(home), VARIABLE: str(path)}
    if "streaming" in speedups.names:
        env[SPEEDUPS] = STREAMING
    with ExitStack() as stack:
        lock = stack.enter_context(processes.lock_states(state, report))
        # Each run installs its app. A full disk may have left a part of an app, which
        # Flower takes for the whole.
        shutil.rmtree(home / "apps", ignore_errors=True)
        # Another program that listens there would be taken for our SuperLink.
        processes.refuse_used_port(addresses.control_port, "control-port")
        listener = stack.enter_context(
            proxy.listening(addresses.host, addresses.port, certificates)
        )
        if metrics_port:
            seen = keys.seen if keys else None
            _serve_metrics(stack, metrics_port, state, certificates, seen, control)
            report(f"metrics: http://127.0.0.1:{metrics_port}/metrics")
        report(speedups.sentence)
        report(shlex.join(superlink))
        watch = stack.enter_context(Watch(report))
        port = addresses.control_port
        watch.start(Program("flower-superlink", superlink, env, lock, show, port))
        watch.start(Program("flower-superexec", superexec, env, lock, show))
        # Before the proxy runs, as a client that it refuses goes for good.
        folder, new = None, list[Path]()
        if certificates and keys:
            folder = _KeyFolder(certificates.clients, keys, report, state)
            new = folder.look()
        # The proxy ends before the SuperLink, whose end takes descriptors: the proxy
        # frees them with its connections.
        given = listener, control, keys, bounds, report
        watch.start(proxy.Proxy(lambda: proxy.run_proxy(*given)))
        report(
            f"clients reach this server at {addresses.host}:{addresses.port}, fcl run "
            f"at {control} from this machine"
        )
        expiry, apps = _Expiry(certificates, report), _ServerApps(state, report)
        while True:
            watch.look()
            apps.look()
            expiry.look()
            try:
                while new:
                    report(_register(new[0], home, numbers))
                    del new[0]
                new = folder.look() if folder else []
            except OSError as error:
                report(f"could not read or register clients' keys: {error}")
            time.sleep(LOOK_SECONDS)


class _ServerApps:
    """Names a run whose process has ended without a word of its own."""

    def __init__(self, state: Path, report: Callable[[str], None]) -> None:
        self._runs, self._report = state / FOLDER, report
        self._going: dict[str, KnownRun] = {}
        self._due = 0.0

    def look(self) -> None:
        """Compare the runs that go on with those that went on at the last look.

        A look reads the file of each run that the server ever had, so it is not due
        each time.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + APP_SECONDS
        known = {run.name: run for run in known_runs(self._runs)}
        for name, before in self._going.items():
            run = known.get(name, before)
            lost = run.standing is Standing.STOPPED and run.process
            if lost and run.began == before.began:
                how = processes.exit_status(run.process) or "with an unknown status"
                self._report(
                    f"the server app of run {name}, process {run.process}, was ended "
                    f"from outside, {how}"
                )
        self._going = {
            name: run for name, run in known.items() if run.standing is Standing.GOES_ON
        }


class _Expiry:
    """Warns while the server's certificate ends soon, at once and then once a day."""

    def __init__(
        self, certificates: Certificates | None, report: Callable[[str], None]
    ) -> None:
        self._ends = certificates and certificates.ends()
        self._report = report
        self._warned: datetime.datetime | None = None

    def look(self) -> None:
        """Warn where the end is near and the last warning is old."""
        time = now()
        if self._ends is None or self._ends - time > WARN_BEFORE:
            return
        if self._warned is None or time - self._warned >= WARN_EVERY:
            self._warned = time
            over = "has ended" if self._ends < time else "ends"
            self._report(
                f"the server's certificate {over} at {as_local(self._ends)}, and no "
                "client is let in after that: make another where ca.key is, with fcl "
                "certs FOLDER --renew, and start fcl server again with it"
            )


def _serve_metrics(
    stack: ExitStack,
    port: int,
    state: Path,
    certificates: Certificates | None,
    seen: Callable[[], Mapping[str, float]] | None,
    control: str,
) -> None:
    # Imported here, as most servers have no metrics.
    from prometheus_client import CollectorRegistry

    from fcl_flower.deploy.metrics import ServerMetrics
    from fcl_flower.results.prometheus import exporting

    authority = certificates and certificates.authority
    registry = CollectorRegistry()
    registry.register(
        ServerMetrics(
            state,
            certificates,
            seen,
            lambda: diagnose_server(control, authority, commands.START_RUN) is None,
        )
    )
    stack.enter_context(exporting("metrics-port", port, registry))


class _KeyFolder:
    """Clients' public keys in a folder: the server lets their owners in."""

    def __init__(
        self,
        folder: Path,
        keys: NodeKeys,
        report: Callable[[str], None],
        state: Path,
    ) -> None:
        self._folder, self._keys, self._report = folder, keys, report
        self._state = state
        self._seen: dict[Path, bytes] = {}

    def look(self) -> list[Path]:
        """Let in the owners of the present keys, no others; list the new files.

        Raises:
            OSError: a file has gone meanwhile, or no descriptor is left.
        """
        found = {p: p.read_bytes() for p in sorted(self._folder.glob("*.pub"))}
        if found == self._seen:
            return []
        new, known = list[Path](), {}
        for path in sorted(self._seen.keys() - found.keys()):
            self._report(f"{path.name} is gone: its client is not let in any more")
        for path, text in found.items():
            changed = self._seen.get(path) != text
            try:
                known[path.stem] = public_key(text)
                new += [path] if changed else []
            except ValueError as error:
                if changed:
                    self._report(f"could not register {path.name}: {error}")
        self._keys.replace(known)
        write_keys(self._state, self._folder)
        self._seen = found
        return new


def _register(key: Path, home: Path, numbers: ClientNumbers) -> str:
    before = ""
    try:
        found = commands.flwr(
            home, "supernode", "register", str(key), commands.SUPERLINK
        )
        numbers.bind(int(found["node-id"]), key)
    except RoundError as error:
        if commands.KEY_IN_USE not in str(error):
            return f"could not register {key.name}: {error}"
        before = " before"
    bound = "" if numbers.has(key) else ", but for no client's number"
    return f"registered {key.name}{before}{bound}"
