"""Where the time of a client's visit goes: functions by processor time.

python experiments/benchmarks/hot_spots.py TABLE.md [--rounds 4] [--tiny STRATEGY]

Profiles (a)'s run, or (c)'s with ``--tiny``, in one process with one round and with
more, and subtracts, so that no start is counted. A profiler makes many small calls look
dearer than they are.
"""

import argparse
import os
import pstats
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TypeAlias

import many_clients
import users
from client_visits import Size
from measurement import ROOT, SIDES, environment, measured, options
from results import machine, table

OURS = tuple(
    f"{ROOT / folder}/"
    for folder in ("fcl_flower", "strategies", "clients", "experiments")
)
"""Not the whole checkout, in which an environment may be installed."""
TOP = 25
RARE = 0.5
"""Calls a visit of what wraps whole rounds, and says nothing with all that it calls."""
PASSED_ON = 0.97
"""Share of a function's time that another has within it: one of the two tells all."""

Function: TypeAlias = tuple[str, int, str]
"""File, line and name, as pstats has them."""
Times: TypeAlias = dict[Function, tuple[float, float, float]]
"""Calls, own seconds, and seconds with what was called."""


def main() -> None:
    """Profile, and write two tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tiny", default="", metavar="STRATEGY")
    given = parser.parse_args()
    size = Size(given.users, cohort=given.cohort, rounds=(1, given.rounds))
    with tempfile.TemporaryDirectory() as folder:
        if given.tiny:
            many_clients.write_data(Path(folder), size.users)
        else:
            users.write_users(Path(folder), size.users, size.images)
        few, many = (
            profiled(Path(folder), size, rounds, given.tiny) for rounds in size.rounds
        )
    visits = size.cohort * (given.rounds - 1)
    spent = {
        function: tuple(
            (after - before) / visits
            for after, before in zip(times, few.get(function, (0, 0, 0)), strict=True)
        )
        for function, times in many.items()
    }
    head = (
        "# Where the time of a visit goes",
        f"`{shlex.join(['python', *sys.argv])}`",
        f"{machine([{'load': os.getloadavg()[0]}])}.",
    )
    given.file.write_text("\n\n".join((*head, report(spent, visits))))
    print(given.file.read_text())


def profiled(folder: Path, size: Size, rounds: int, tiny: str) -> Times:
    """Return the times of a run of so many rounds; with a strategy that of (c)."""
    file, output = folder / f"{rounds}.pstats", folder / f"run-{rounds}"
    settings = {**size.settings, "federation.rounds_per_task": rounds}
    if tiny:
        settings = many_clients.settings_of(size.users, size.cohort, tiny, rounds)
    command = [
        *(sys.executable, str(SIDES / "profiled.py"), str(file), "simulate"),
        *("--backend", "in-process", "--data-root", str(folder)),
        *(*options(settings), "--output", str(output)),
    ]
    measured(command, environment(folder / "installed"), folder / "log")
    stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    return {name: (n, own, whole) for name, (_, n, own, whole, _) in stats.items()}


def report(spent: Times, visits: int) -> str:
    """Return the functions with the largest own time, and ours with what they call."""
    total = sum(own for _, own, _ in spent.values())
    own = sorted(spent, key=lambda name: -spent[name][1])[:TOP]
    mine = [
        name
        for name, (calls, _, _) in spent.items()
        if calls > RARE and name[0].startswith(OURS)
    ]
    whole = list[Function]()
    for name in sorted(mine, key=lambda name: -spent[name][2]):
        if not (whole and spent[name][2] > PASSED_ON * spent[whole[-1]][2]):
            whole.append(name)
    whole = whole[:TOP]
    return "\n".join(
        (
            f"{1000 * total:.0f} ms of processor time a visit under the profiler, "
            f"{visits} visits.\n",
            *(
                table(
                    (what, "share", "ms a visit", "calls a visit"),
                    [
                        (
                            f"`{shown(name)}`",
                            f"{spent[name][at] / total:.1%}",
                            f"{1000 * spent[name][at]:.2f}",
                            f"{spent[name][0]:.1f}",
                        )
                        for name in chosen
                    ],
                )
                for what, at, chosen in (
                    ("own time", 1, own),
                    ("of ours, with what it calls", 2, whole),
                )
            ),
        )
    )


def shown(function: Function) -> str:
    """Return a function's name without the place where packages are installed."""
    file, _, name = function
    if file == "~":
        return name
    installed = sorted(sys.path, key=len, reverse=True)
    for root in (str(ROOT), *installed) if file.startswith(OURS) else installed:
        if root and file.startswith(f"{root}/"):
            return f"{file.removeprefix(f'{root}/')}:{name}"
    return f"{Path(file).name}:{name}"


if __name__ == "__main__":
    main()
