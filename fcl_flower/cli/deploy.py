"""The commands of a real federation: certs, server, client, clients and run."""

import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fcl_flower.cli.command import (
    Address,
    AtLeastOne,
    Count,
    Folder,
    Port,
    PortOrNone,
    command,
)
from fcl_flower.cli.options import (
    configured,
    output_folder,
    resumed,
    run_options,
    with_flag,
)
from fcl_flower.core.errors import ConfigError, FclError, RoundError, config_error
from fcl_flower.results.run_folder import CHECKPOINT

if TYPE_CHECKING:
    from fcl_flower.deploy.certificates import Certificates
    from fcl_flower.deploy.logs import Log

CLIENTS_PORT = 9092
CONTROL_PORT = 9093

STATE = Path("federation/server")

_ADDRESS = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Options of the trust between the programs of a federation.

    Options:
        certs: Folder that fcl certs made, or the part of it that is on this machine.
        insecure: Without TLS and authentication of clients, for trials.
    """

    certs: Path | None = None
    insecure: bool = False

    def certificates(self) -> "Certificates | None":
        """Find the folder of certificates; None with ``--insecure``."""
        from fcl_flower.deploy.certificates import Certificates

        if self.certs is None:
            if self.insecure:
                return None
            expected = "--certs FOLDER, made by fcl certs, or --insecure to do without"
            raise config_error("certs", "", expected)
        if self.insecure:
            raise config_error("certs", str(self.certs), "none with --insecure")
        return Certificates(self.certs.absolute())

    def authority(self) -> Path | None:
        """Find the certificate of the server's authority; None with ``--insecure``."""
        certificates = self.certificates()
        return certificates and present(certificates.authority, "certs")


@dataclass(frozen=True, kw_only=True)
class LoggedAccess(Access):
    """Options of a program that runs until it is stopped.

    Options:
        log_file: File that also gets all lines; five older files of 10 MB stay.
    """

    log_file: Path | None = None


@command
def certs(
    folder: Path,
    *,
    host: tuple[str, ...] = (),
    clients: Count = 0,
    days: AtLeastOne = 825,
    renew: bool = False,
    overwrite: bool = False,
) -> None:
    """Make the missing certificates and keys of a federation in FOLDER.

    A client whose .pub is there gets no new key.

    Options:
        host: Name or IP address by which clients reach the server; repeatable.
        clients: Number of clients, from 0, whose missing keys are made.
        days: Until the server's certificate expires.
        renew: Replace the server's certificate, by default for the same names.
        overwrite: Replace all files; clients need new ones, too.
    """
    from fcl_flower.deploy.certificates import Certificates, make_certificates

    paths = make_certificates(
        folder, host, clients, days, overwrite=overwrite, renew=renew
    )
    for path in paths:
        click.echo(path)
    files = Certificates(folder)
    for number in range(clients):
        key = files.client_key(number)
        public = key.with_suffix(".pub")
        if not key.exists():
            click.echo(f"client {number} is left alone: it has the key of {public}")
        elif not public.exists():
            click.echo(
                f"client {number} is left alone, but no server lets it in without "
                f"{public}: ssh-keygen -y -f {key} > {public}"
            )
    if files.server.exists():
        click.echo(f"the server's certificate ends on {files.ends().date()}")
    if renew:
        click.echo(
            f"to the server: {files.server}, and start fcl server again; clients need "
            "nothing new"
        )
        return
    click.echo(
        f"to the server: all of {folder} but ca.key and clients/*.key; "
        f"of a new client its .pub\n"
        f"to client N:   ca.crt and clients/client-N.key, in folders of these names\n"
        f"keep secret:   ca.key, which is only needed to certify other servers"
    )


@command
def server(
    more: tuple[str, ...] = (),
    *,
    access: LoggedAccess,
    host: str = "0.0.0.0",
    port: Port = CLIENTS_PORT,
    control_port: Port = CONTROL_PORT,
    state: Path = STATE,
    metrics_port: PortOrNone = 0,
    speedups: str = "auto",
) -> None:
    """Run the server of a federation until it is stopped.

    What follows -- goes to flower-superlink.

    Options:
        host: Address for clients.
        port: Port for clients.
        control_port: Port for fcl run, from this machine only.
        state: Folder for the files that a restart needs.
        metrics_port: Port of metrics for Prometheus on this machine; 0 for none.
        speedups: Replacements of private parts of Flower: auto for all that are tested
            with its release, off for none, or names with commas.
    """
    from fcl_flower.deploy.server import Addresses, run_superlink
    from fcl_flower.deploy.speedups import choose

    addresses, chosen = Addresses(host, port, control_port), choose(speedups, "server")
    with logging_to(access.log_file) as log:
        place = access.certificates(), state, addresses, more
        run_superlink(*place, log.say, metrics_port, chosen, log.pass_on)


@command
def clients(*, state: Path = STATE) -> None:
    """Show the clients of a federation, on the server's machine.

    Options:
        state: The --state folder of fcl server, on its machine.
    """
    from fcl_flower.deploy import commands
    from fcl_flower.service.members import HOME, membership

    home, nodes, silent = state / HOME, [], ""
    if not (home / "config.toml").is_file():
        expected = "the --state folder of fcl server"
        raise config_error("state", str(state), expected)
    try:
        listed = commands.flwr(home, "supernode", "list", commands.SUPERLINK)
        nodes = listed["nodes"]
    except RoundError:
        silent = "the server does not answer: this is its last list"
    table = Table("number", "name", "state", "last seen", "version", "tasks")
    for row in membership(state, nodes):
        seen = "" if row.seen is None else f"{row.seen:%Y-%m-%d %H:%M:%S} UTC"
        tasks = "" if row.tasks is None else str(row.tasks)
        cells = (str(row.number), row.name, row.state, seen, row.version, tasks)
        table.add_row(*map(Text, cells))
    Console().print(table)
    if silent:
        click.echo(silent)


@command
def client(
    more: tuple[str, ...] = (),
    *,
    access: LoggedAccess,
    server: Address,
    number: Count,
    data: Path | None = None,
    marked_tasks: bool = False,
    hide_faults: bool = False,
    word_vectors: Path | None = None,
    state: Path | None = None,
    keep_runs: Count = 3,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    speedups: str = "auto",
) -> None:
    """Run one client of a federation until it is stopped.

    What follows -- goes to flower-supernode.

    Options:
        server: Address of fcl server.
        number: Number of the client from 0: that of its key, and its index in a run.
        data: Folder of the client's local data.
        marked_tasks: A task of --data counts once its folder holds a file DONE.
        hide_faults: Do not tell the server what kind of fault the data have.
        word_vectors: The client's file of word vectors.
        state: Folder for the files that a restart needs.
            [default: federation/client-NUMBER]
        keep_runs: Number of runs whose states stay when another begins; 0 for all.
        device: Device that trains; by default the run's.
        speedups: Replacements of private parts of Flower, as for fcl server.
    """
    from fcl_flower.deploy.client import become
    from fcl_flower.deploy.client_setup import set_up
    from fcl_flower.deploy.speedups import choose

    chosen = choose(speedups, "client")
    node: dict[str, int | str] = {"partition-id": number, "keep-runs": keep_runs}
    for key, path in {"data-path": data, "word-vectors": word_vectors}.items():
        if path is not None:
            node[key] = str(present(path, key))
    flags = {"marked-tasks": marked_tasks, "hide-faults": hide_faults}
    node |= {key: 1 for key, on in flags.items() if on}
    with logging_to(access.log_file) as log:
        log.say(chosen.sentence)
        if device is not None:
            node["device"] = device
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                log.say("device: torch finds no 'cuda'; the CPU is used instead")
                node["device"] = "cpu"
        place = state or Path(f"federation/client-{number}")
        where = address_of(server), access.certificates(), node, place, more
        become(set_up(*where, speedups=chosen.names, log_file=access.log_file))


@command
@run_options()
def run(
    *,
    access: Access,
    server: Address = f"127.0.0.1:{CONTROL_PORT}",
    output: Path | None = None,
    resume: Folder | None = None,
    start_timeout: Count = 120,
    restarts: Count = 1,
    **options: Any,  # noqa: ANN401
) -> None:
    """Run one strategy in a federation whose server and clients are up.

    Without --clients, all connected clients take part. --output names a folder on the
    server's machine, since the server writes the results.

    Options:
        server: The --control-port of fcl server, or the end of a tunnel to it.
        output: Folder for the results, on the server's machine.  [default: runs/NAME]
        resume: Go on with the run in FOLDER; a finished run needs more --tasks.
        start_timeout: Seconds after which a run without all its clients is stopped; 0
            for no limit.
        restarts: Times that the run goes on by itself after a process of the server was
            ended from outside.
    """
    from fcl_flower.deploy.commands import START_RUN
    from fcl_flower.deploy.diagnosis import diagnose_server
    from fcl_flower.deploy.logs import without_colours
    from fcl_flower.deploy.submission import SuperLink
    from fcl_flower.setup.build import validate
    from fcl_flower.setup.resolve import resolve
    from fcl_flower.simulation.local_runs import Job
    from fcl_flower.simulation.progress import Display, write_line

    config = resumed(resume, options, output) if resume else configured(options)
    authority = access.authority()
    console = Console()

    def show(line: str) -> None:
        write_line(console, line if console.is_terminal else without_colours(line))

    if obstacle := diagnose_server(address_of(server), authority, START_RUN):
        raise RoundError(obstacle.sentence)
    superlink = SuperLink(server, authority)
    if not config.scenario.clients:
        connected = superlink.connected()
        if not connected:
            expected = (
                f"connected clients at the server at {server}, or --clients with the "
                "number to wait for"
            )
            raise config_error("clients", 0, expected)
        config = config.replace(clients=connected)
    resolved = resolve(config)
    validate(resolved)
    config = resolved.config
    folder = (resume or output_folder(output, config)).absolute()
    if (folder / "summary.json").exists():
        raise config_error("output", str(folder), "a folder without a finished run")
    (folder / "progress.json").unlink(missing_ok=True)
    # An earlier run may have had the folder's name.
    name = config.run.id or f"{folder.name}-{secrets.token_hex(4)}"
    config = config.replace(output=str(folder), id=name)
    trust = "--insecure" if access.certs is None else f"--certs {access.certs}"
    again = f"fcl run --server {server} {trust} --resume {folder}"
    try:
        job = Job(resolved, folder)
        with Display(console, [job]) as display:
            superlink.see_through(
                config,
                restarts,
                report=show,
                watch=partial(display.show, job),
                start_seconds=start_timeout,
            )
    except KeyboardInterrupt:
        click.echo(f"interrupted; {_next_step(folder, again)}", err=True)
        raise
    except RoundError as error:
        if (folder / "summary.json").exists():  # the run has finished
            raise
        obstacle = diagnose_server(server, authority, START_RUN)
        reason = obstacle.sentence if obstacle else str(error)
        step = _next_step(folder, again)
        raise RoundError(f"{reason}; then {step}") from error
    show(f"results and report.html on the server: {folder}")


def _next_step(folder: Path, again: str) -> str:
    if (folder / CHECKPOINT).is_dir():
        return f"{again} goes on with this run"
    return (
        "the same command starts it anew, as this machine has no finished round of it "
        f"in {folder}"
    )


@contextmanager
def logging_to(file: Path | None, folder_option: str = "--state") -> Iterator["Log"]:
    """Open the log of a command without an end; an error is its last line.

    ``folder_option`` names the folder from which the same command goes on.
    """
    from fcl_flower.deploy.logs import Log

    log = Log(file)
    try:
        yield log
    except KeyboardInterrupt:
        log.say_how_to_go_on(folder_option)
        raise
    except ConfigError:  # a wrong option is no line of the log
        raise
    except FclError as error:
        log.pass_on(f"fcl: {with_flag(str(error))}", sys.stderr)
        raise click.exceptions.Exit(1) from error


def address_of(text: str) -> str:
    """Check an address, HOST:PORT."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise config_error("server", text, "HOST:PORT")
    return text


def present(path: Path, key: str) -> Path:
    """Refuse a path that does not exist, and make it absolute."""
    if not path.exists():
        raise config_error(key, str(path), "an existing path")
    return path.absolute()
