"""What is lost when a process of a real federation is killed, and how long it takes.

python experiments/faults/matrix.py [--only "VICTIM, MOMENT"] DIR

Starts a server and two clients on this machine, over TLS, and a run of FedWeIT on
digits; kills one process with SIGKILL at a moment of a round, does what a supervisor
would (starts the same command again, resumes the run), and waits for the end. A
full disk is a limit on the size of files. Prints a table in Markdown, and goes on where
it was stopped: each case leaves a line in DIR/cases.jsonl.
"""

import argparse
import contextlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import PATIENCE, LocalFederation

HERE = Path(__file__).parent
ROUND, LAST = 2, 3
"""In the last one clients are tested when they are trained, and so come to a stop."""
MOMENTS = ("before training", "during training", "after training", "aggregation")
VICTIMS = ("client app", "SuperNode", "server app", "SuperLink")
RUN = [
    *("--strategy", "paused", "--clients", 2, "--tasks", 1, "--rounds", 3),
    *("--classes-per-task", 2, "--seed", 1),
    *("--set", "federation.timeout=60", "--set", "federation.min_updates=2"),
]


Case = Callable[[LocalFederation], dict[str, Any]]
"""Breaks something in a federation; returns a line of the table."""


def main() -> None:
    """Go through the cases that are not there yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="one case, such as 'SuperNode, after training'")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    book = options.folder / "cases.jsonl"
    book.touch()
    known = {row["case"]: row for row in map(json.loads, book.read_text().splitlines())}
    for name, case in cases().items():
        if name not in known and options.only in (None, name):
            with lab(options.folder / "lab") as one:
                known[name] = {"case": name, **case(one)}
            with book.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
    columns = ("case", "what happened", "lost", "seconds", "as undisturbed")
    print("|", " | ".join(columns), "|\n|", " | ".join("---" for _ in columns), "|")
    for row in known.values():
        print("|", " | ".join(str(row[column]) for column in columns), "|")


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[LocalFederation]:
    """Yield a federation that is up, and end it whatever happens."""
    shutil.rmtree(folder, ignore_errors=True)
    made = LocalFederation(
        folder,
        algorithm="paused:PAUSED",
        beside=HERE,
        variables={"FAULTS": str(folder.absolute())},
    )
    try:
        made.certificates(clients=2)
        made.server()
        for number in (0, 1):
            made.client(number)
        yield made
    finally:
        made.end()


def cases() -> dict[str, Callable[[LocalFederation], dict[str, Any]]]:
    """Return the cases by name."""
    found: dict[str, Callable[[LocalFederation], dict[str, Any]]] = {
        "nothing": undisturbed
    }
    for victim in VICTIMS:
        for moment in MOMENTS:
            if (victim, moment) != (
                "client app",
                "aggregation",
            ):  # it has ended by then
                found[f"{victim}, {moment}"] = killing(victim, moment)
    found["client's disk full"] = filling("during training")
    found["server's disk full"] = filling("aggregation")
    found["client's state damaged"] = damaged_client
    found["server's checkpoint damaged"] = damaged_server
    return found


def undisturbed(one: LocalFederation) -> dict[str, Any]:
    """Run without a fault; keep what comes out, to compare with."""
    one.run(*RUN, "--output", "out")
    one.finish("run")
    shutil.copy(one.folder / "out" / "summary.json", one.folder.parent / "usual.json")
    return row(one, "a run of 3 rounds", 0.0)


def killing(victim: str, moment: str) -> Case:
    """Return the case of a process that is killed at a moment."""

    def case(one: LocalFederation) -> dict[str, Any]:
        number = LAST if moment == "after training" else ROUND
        (one.folder / "arm").write_text(f"{moment} {number}")
        one.run(*RUN, "--output", "out")
        reached = one.folder / "reached"
        until(reached.exists, one, "run")
        before = len(rounds(one))
        kill(one, victim, int(reached.read_text()))
        began = time.monotonic()
        happened = supervise(one, victim)
        until(lambda: len(rounds(one)) > before, one)
        seconds = time.monotonic() - began
        one.finish("run")
        return row(one, happened, seconds)

    return case


def kill(one: LocalFederation, victim: str, reached: int) -> None:
    """Kill one process, and see that it is gone."""
    if victim == "client app":
        process = psutil.Process(reached)
    elif victim == "SuperNode":
        process = one.member("client-1", "flower-supernode")
    elif victim == "SuperLink":
        process = one.member("server", "flower-superlink")
    else:
        process = one.member("server", "flwr-serverapp")
    process.kill()
    psutil.wait_procs([process], timeout=10)
    (one.folder / "go").touch()  # whoever waited and was not the victim goes on


def supervise(one: LocalFederation, victim: str) -> str:
    """Do what a supervisor does; return what it was."""
    if victim == "client app":
        return "nothing is done"
    if victim == "SuperNode":
        # Flower lets a node in again when it has given no sign of life for a while.
        one.code("client-1")
        while one.ended("client-1"):
            one.client(1)
            until(lambda: let_in(one) or one.ended("client-1"))
        return "fcl client again, until it is let in"
    if victim == "SuperLink":
        one.code("server")
        one.server()
        one.until("server", "clients reach this server")
    one.code("run")
    resume(one)
    again = "fcl server again, " if victim == "SuperLink" else ""
    return f"{again}fcl run --resume"


def let_in(one: LocalFederation) -> bool:
    """Return whether the server takes client 1 now."""
    return "SuperNode ID" in one.said("client-1")


def resume(one: LocalFederation) -> None:
    """Go on with a run, as often as it takes until the server's side is ready."""
    for _ in range(20):
        one.run("--resume", "out")
        time.sleep(3)
        if one.started["run"].poll() in (None, 0):
            return
    raise RuntimeError(f"the run cannot be resumed\n{one.log('run')[-2000:]}")


def filling(moment: str) -> Case:
    """Return the case of a process that can write no file of more than 4 KiB.

    It is let go on at ``moment``; if the server ends of it, it gets room and resumes.
    """

    def case(one: LocalFederation) -> dict[str, Any]:
        (one.folder / "arm").write_text(f"{moment} {ROUND}")
        one.run(*RUN, "--output", "out")
        reached = one.folder / "reached"
        until(reached.exists, one, "run")
        before = len(rounds(one))
        limits = (4096, 4096)
        psutil.Process(int(reached.read_text())).rlimit(psutil.RLIMIT_FSIZE, limits)
        began = time.monotonic()
        (one.folder / "go").touch()
        happened = "the message fails, the round is tried again"
        if moment == "aggregation":
            one.code("run")
            resume(one)
            happened = "the run ends; fcl run --resume"
        until(lambda: len(rounds(one)) > before, one)
        seconds = time.monotonic() - began
        one.finish("run")
        return row(one, happened, seconds)

    return case


def damaged_client(one: LocalFederation) -> dict[str, Any]:
    """Damage client 1's last state between two rounds."""
    return damaging(one, "state-1/memory", "before training")


def damaged_server(one: LocalFederation) -> dict[str, Any]:
    """Damage the server's last checkpoint, and kill the server app."""
    return damaging(one, "out/checkpoint", "aggregation")


def damaging(one: LocalFederation, folder: str, moment: str) -> dict[str, Any]:
    """Turn a bit of the newest file in a folder in round 3, and kill who reads it."""
    (one.folder / "arm").write_text(f"{moment} 3")
    one.run(*RUN, "--output", "out")
    reached = one.folder / "reached"
    until(reached.exists, one, "run")
    before = len(rounds(one))
    files = sorted(
        (one.folder / folder).rglob("manifest-*"), key=lambda p: p.stat().st_mtime
    )
    content = bytearray(files[-1].read_bytes())
    content[len(content) // 2] ^= 1
    files[-1].write_bytes(content)
    client = "memory" in folder
    kill(one, "client app" if client else "server app", int(reached.read_text()))
    began = time.monotonic()
    happened = supervise(one, "client app" if client else "server app")
    until(lambda: len(rounds(one)) > before, one)
    seconds = time.monotonic() - began
    one.finish("run")
    return row(one, f"{happened}; the state before it is taken", seconds)


def row(one: LocalFederation, happened: str, seconds: float) -> dict[str, Any]:
    """Return a line of the table."""
    usual = json.loads((one.folder.parent / "usual.json").read_text())
    found = json.loads((one.folder / "out" / "summary.json").read_text())
    asked = one.log("run").count("trying again")
    same = found["client_accuracy"] == usual["client_accuracy"]
    again = one.log("run").count("going on after round")
    lost = "nothing" if not (asked or again) else "the round in flight"
    finished = re.findall(r"round (\d+) of", one.log("run"))
    if repeated := len(finished) - len(set(finished)):
        lost += f", {repeated} finished"
    return {
        "what happened": happened,
        "lost": lost,
        "seconds": f"{seconds:.0f}",
        "as undisturbed": "yes" if same else "no",
    }


def rounds(one: LocalFederation) -> list[str]:
    """Return the lines of the rounds that are finished."""
    path = one.folder / "out" / "rounds.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def until(
    holds: Callable[[], bool], one: LocalFederation | None = None, *alive: str
) -> None:
    """Wait until something holds; fail if one of ``alive`` ends first."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        ended = [n for n in alive if one and one.ended(n)]
        if ended or time.monotonic() > deadline:
            logs = "" if one is None else one.tails()
            raise RuntimeError(f"waited in vain; ended: {ended}\n{logs}")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
