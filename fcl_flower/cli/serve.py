"""The command ``fcl serve``: a federation that learns new tasks as they come."""

import re
import secrets
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import click
from click.types import FuncParamType
from rich.console import Console

from fcl_flower.cli.command import Address, AtLeastOne, Count, Folder, command
from fcl_flower.cli.deploy import (
    CONTROL_PORT,
    LoggedAccess,
    address_of,
    logging_to,
)
from fcl_flower.cli.options import configured, run_options
from fcl_flower.cli.tables import print_sheet
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, as_set, config_error
from fcl_flower.core.files import lock_folder
from fcl_flower.results.tables import TextTable
from fcl_flower.service.status import (
    BEGIN_NOW,
    SERVICE_LOCK,
    ClientTasks,
    Policy,
    ServiceStatus,
)

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_CHANGING = (
    *("scenario.tasks", "scenario.clients", "scenario.joined", "scenario.sat_out"),
    *("run.output", "run.id", "run.resume"),
)
"""Settings that a service changes by itself, or that follow from its folder."""


def duration(text: str) -> float:
    """Parse a duration with a unit to seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        expected = "a duration such as 90s, 15m, 6h or 2d"
        raise click.BadParameter(f"got {text!r}, expected {expected}")
    return float(match[1]) * _UNITS[match[2]]


def quorum(text: str) -> int | float:
    """Parse a fraction of the clients, or a number of clients."""
    try:
        number = int(text) if text.isdecimal() else float(text)
    except ValueError:
        number = 0
    if number > 0 and (isinstance(number, int) or number <= 1):
        return number
    expected = "a fraction such as 0.6, 1.0 for all, or a number of clients from 1"
    raise click.BadParameter(f"got {text!r}, expected {expected}")


Duration: TypeAlias = Annotated[Any, FuncParamType(duration)]
Quorum: TypeAlias = Annotated[Any, FuncParamType(quorum)]


@command
@run_options(
    without=frozenset(
        {"scenario", "tasks", "dataset", "data_root", "asynchronous", "clients"}
    )
)
def serve(
    *,
    clients: AtLeastOne | None = None,
    quorum: Quorum = "0.6",
    deadline: Duration = "1d",
    every: Duration = "0",
    min_samples: Count = 0,
    look: Duration = "30s",
    server: Address = f"127.0.0.1:{CONTROL_PORT}",
    access: LoggedAccess,
    output: Path | None = None,
    now: Folder | None = None,
    status: Folder | None = None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Learn each new task of the clients' local data, without an end.

    The service runs on the server's machine, beside fcl server. After a kill the same
    command goes on with it.

    Options:
        clients: Clients that count for the quorum before their first connection.
        quorum: Clients whose new tasks are enough: a fraction of the known clients, or
            a number.
        deadline: Wait after the first new task, for fewer than the quorum; 0: never.
        every: Least time between the beginnings of two trainings.
        min_samples: New training samples of all clients together that are enough.
        look: Time between two questions to a client for its tasks.
        server: The --control-port of fcl server on this machine.
        output: Folder for the results.
        now: Let the service in FOLDER begin with the tasks that are there, and return.
        status: Show the state of the service in FOLDER, and return.
    """
    if status is not None:
        show_status(Console(), ServiceStatus.read(status), time.time())
        if not _is_served(status):
            click.echo("no service runs in this folder now: this is its last state")
        return
    if now is not None:
        ServiceStatus.read(now)  # refuses a folder without a service
        (now / BEGIN_NOW).touch()
        click.echo(f"the service in {now} begins when it looks at its clients next")
        return
    from fcl_flower.deploy.commands import START_RUN
    from fcl_flower.deploy.diagnosis import diagnose_server
    from fcl_flower.deploy.submission import SuperLink
    from fcl_flower.service import supervisor

    if output is None:
        raise config_error("output", "", "a folder for the results")
    policy = Policy(
        quorum=quorum,
        deadline=deadline,
        every=every,
        min_samples=min_samples,
        look=look,
    )
    config = _configuration(output.absolute(), clients or 0, configured(options))
    authority = access.authority()
    obstacle = partial(diagnose_server, address_of(server), authority, START_RUN)
    superlink = SuperLink(server, authority)
    with logging_to(access.log_file, "--output") as log:
        supervisor.keep_serving(superlink, config, policy, obstacle, log.say)


def _configuration(folder: Path, clients: int, requested: RunConfig) -> RunConfig:
    """Read the configuration of the service in a folder, or make that of a new one."""
    from fcl_flower.setup.build import validate
    from fcl_flower.setup.resolve import resolve

    scenario, path = requested.scenario.name or "local-data", folder / "config.toml"
    if scenario != "local-data":
        expected = "local-data, as a service learns what clients bring"
        raise config_error("scenario.name", scenario, expected)
    if requested.asynchronous.enabled:
        expected = "false for a service, in which clients learn a task together"
        raise config_error("asynchronous.enabled", True, expected)
    requested = requested.replace(scenario=scenario, tasks=1, clients=clients)
    if not path.exists():
        validate(resolve(requested.replace(clients=max(1, clients))))
        name = f"{folder.name}-{secrets.token_hex(4)}"
        return requested.replace(output=str(folder), id=name)
    stored = RunConfig.read(path, "output")
    changing = {
        *_CHANGING,
        *(["data.class_names"] if stored.model.growing_head else []),
        *(["federation.rounds_by_task"] if stored.federation.patience else []),
    }
    if requested.data.normalise == "data" and stored.data.pixel_statistics:
        changing.add("data.normalise")
    blank, present = RunConfig().flat(), stored.flat()
    for key, value in requested.flat().items():
        if key not in changing and value not in (blank.get(key), present.get(key)):
            expected = f"{as_set(present.get(key))}, as the service in {folder} has it"
            raise config_error(key, value, expected)
    return stored


# ---- the status


def show_status(console: Console, status: ServiceStatus, now: float) -> None:
    """Print the state of a service at a time in seconds since 1970."""
    lines = [
        f"{status.state} since {_clock(status.since)} ({_span(now - status.since)}): "
        f"{status.sentence}",
        f"tasks learned: {status.learned}",
    ]
    if status.state == "waiting":
        due = "not known yet"
        if status.due is not None:
            due = f"{_clock(status.due)} (in {_span(status.due - now)})"
            due = "now" if status.due <= now else due
        lines.append(f"next training: {due}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    head = ("client", "state", "tasks", "learned", "new samples", "told its tasks")
    rows = [_row(number, status.clients[number], now) for number in status.clients]
    print_sheet(console, TextTable(head, rows, ""))


def _row(number: int, tasks: ClientTasks, now: float) -> tuple[str, ...]:
    state = "not connected"
    if tasks.connected:
        state = "has a new task" if tasks.ready else "has no new task"
    reported = "never" if tasks.told is None else f"{_span(now - tasks.told)} ago"
    counts = tasks.tasks, tasks.learned, tasks.samples
    return (str(number), state, *map(str, counts), reported)


def _is_served(folder: Path) -> bool:
    try:
        with lock_folder(folder, "status", SERVICE_LOCK):
            return False
    except (ConfigError, OSError):  # another user's service may hold the lock
        return True


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def _span(seconds: float) -> str:
    """Write a duration in the largest unit that it has twice.

    >>> _span(100), _span(200), _span(100000)
    ('100 s', '3 min', '27 h')
    """
    for unit, name in (("d", "days"), ("h", "h"), ("m", "min")):
        if round(seconds) >= 2 * _UNITS[unit]:
            return f"{round(seconds) // _UNITS[unit]:.0f} {name}"
    return f"{max(0, round(seconds))} s"
