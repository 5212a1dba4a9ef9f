"""What becomes of a federation on machines of its own when something happens to it.

python tests/testbed/situations.py DIR [--only "server away"] [--seconds 60]

Server and three clients are in network namespaces (`namespaces.py`); needs root. In
each situation a run of FedAvg on digits is disturbed after its first round, an operator
does what the manual says, and the run goes to its end. "Recovery" goes from the end of
the disturbance to the end of the next finished round. Prints a table in Markdown; each
situation leaves a line in DIR/situations.jsonl, and is not run again.
"""

import argparse
import contextlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

sys.path.append(str(Path(__file__).parents[1] / "support"))
from namespaces import Testbed, why_not
from waiting import await_true

import fcl_flower as fcl

CLIENTS = 3
SETTINGS = {"clients": CLIENTS, "tasks": 1, "rounds": 4, "classes_per_task": 2}
SEED = 7
RUN = (
    *("--strategy", "fedavg", "--clients", CLIENTS, "--tasks", 1, "--rounds", 4),
    *("--classes-per-task", 2, "--seed", SEED, "--set", "federation.min_updates=3"),
    *("--set", "federation.timeout=60", "--set", "federation.max_attempts=9"),
)
"""All three clients are needed, so that nobody's absence changes the numbers."""
CLIENT, SERVER = "fcl_flower.deploy.client", "fcl_flower.cli.main"
"""The programs that ``fcl client`` and ``fcl server`` are."""
RESUMES = 3
"""Times that the operator goes on with a run that has ended."""


@dataclass
class Outcome:
    """A line of the table; no ``recovery`` where no round came after."""

    situation: str
    happened: list[str] = field(default_factory=list)
    recovery: float | None = None
    same: bool | None = None


def federation(folder: Path, *, relayed: bool, clients: int = CLIENTS) -> Testbed:
    """Begin with a server and clients who are let in."""
    bed = Testbed(folder, clients, relayed=relayed)
    try:
        bed.certificates(clients)
        bed.server()
        for number in range(clients):
            bed.client(number)
        for number in range(clients):
            bed.until(f"client-{number}", "SuperNode ID")
    except BaseException:
        bed.close()
        raise
    return bed


def rounds(bed: Testbed, run: str) -> int:
    """Count the finished rounds of a run."""
    book = bed.folder / run / "rounds.jsonl"
    return len(book.read_text().splitlines()) if book.exists() else 0


def until_round(bed: Testbed, run: str, number: int) -> bool:
    """Wait until a run has finished so many rounds; False where it ends before."""
    await_true(
        lambda: bed.ended("run") or rounds(bed, run) >= number,
        lambda: f"no round {number}\n{bed.tails()}",
    )
    return rounds(bed, run) >= number


def disturbed(
    bed: Testbed, run: str, disturb: Callable[[Testbed], str], situation: str = ""
) -> Outcome:
    """Disturb a run after its first round, and bring it to its end."""
    found = Outcome(situation or run)
    bed.run(*RUN, "--output", run)
    if not until_round(bed, run, 1):
        raise RuntimeError(f"no first round\n{bed.tails()}")
    if said := disturb(bed):
        found.happened.append(said)
    before, ended = rounds(bed, run), time.monotonic()
    for again in range(RESUMES + 1):
        if until_round(bed, run, before + 1):
            found.recovery = round(time.monotonic() - ended, 1)
        if bed.code("run") == 0:
            break
        found.happened.append(f"fcl run: {last_line(bed.said('run'))}")
        if again < RESUMES:
            found.happened.append("fcl run --resume")
            bed.run("--resume", run)
    found.same = accuracies(bed.folder / run) == undisturbed()
    return found


def accuracies(folder: Path) -> object:
    """Read the accuracies of all clients in all tasks; None without an end."""
    path = folder / "summary.json"
    return json.loads(path.read_text())["client_accuracy"] if path.exists() else None


_KNOWN: list[Any] = []


def undisturbed() -> object:
    """Give the accuracies of the same run in one process, where nothing happens."""
    if not _KNOWN:
        result = fcl.simulate("fedavg", seed=SEED, progress=False, **SETTINGS)
        _KNOWN.append(result.summary["client_accuracy"])
    return _KNOWN[0]


def last_line(said: str) -> str:
    """Give the last line of a log, without colours."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    return [line for line in plain.splitlines() if line.strip()][-1].strip()


# ---- situations


def slow(bed: Testbed) -> str:
    """100 ms one way, 2 % of the segments lost, 2 Mbit/s, for all clients."""
    for number in range(CLIENTS):
        bed.link(number, delay=0.1, loss=0.02, rate=250_000)
    return ""


def fast(bed: Testbed) -> None:
    """Take back what `slow` did."""
    for number in range(CLIENTS):
        bed.link(number, delay=0.0, loss=0.0, rate=0.0)


def reset(bed: Testbed) -> str:
    """Every connection of client 0 is reset."""
    bed.link(0, resets=True)
    time.sleep(1)
    bed.link(0, resets=False)
    return ""


def moved(seconds: float) -> Callable[[Testbed], str]:
    """Cut a client's link for so long; it comes back with another address."""

    def disturb(bed: Testbed) -> str:
        bed.cut(1)
        time.sleep(seconds)
        bed.move(1)
        bed.mend(1)
        return ""

    return disturb


def server_away(seconds: float) -> Callable[[Testbed], str]:
    """Kill the server and all that it has started; start it again after so long."""

    def disturb(bed: Testbed) -> str:
        bed.kill("server")
        bed.code("server")
        time.sleep(seconds)
        bed.server()
        return "fcl server"

    return disturb


def members(bed: Testbed, name: str) -> list[str]:
    """Name the programs that a command consists of now."""
    return [program for program, _ in bed.members(name)]


def stopped(name: str, program: str, seconds: float) -> Callable[[Testbed], str]:
    """Stop a process for so long, and let it go on."""

    def disturb(bed: Testbed) -> str:
        process = bed.member(name, program)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return ""

    return disturb


def killed(name: str, program: str) -> Callable[[Testbed], str]:
    """Kill a process; start its command again if that ends, as systemd does."""

    def disturb(bed: Testbed) -> str:
        bed.member(name, program).kill()
        if name == "run":
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            bed.started[name].wait(10)
        if not bed.ended(name):
            return ""
        said = last_line(bed.said(name))
        if name == "server":
            bed.server()
        else:
            bed.client(int(name.rpartition("-")[2]))
        return f"it ended ({said}), and was started again"

    return disturb


def twin(bed: Testbed) -> str:
    """Another machine comes with the key of client 2, and goes."""
    name = "client-0 twin"
    bed.client(2, name=name, state="state-twin")
    with contextlib.suppress(subprocess.TimeoutExpired):
        bed.started[name].wait(20)
    said = last_line(bed.said(name))
    bed.end(name)
    return f"the second one: {said}"


def full_disk(bed: Testbed) -> str:
    """The disk with client 1's state is full for 20 seconds."""
    bed.end("client-1")
    place = bed.folder / "small-disk"
    place.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o size=16m tmpfs {place} && exec "$@"'
    command = [
        *("unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-m"),
        *("fcl_flower.cli.main", "client", "--server", bed.entrance(1), "--number"),
        *("1", "--certs", "certs", "--state", str(place / "state")),
    ]
    bed.start("client-1", command)
    bed.until("client-1", "SuperNode ID")
    inside = ["nsenter", "-t", str(bed.started["client-1"].pid), "--mount"]
    subprocess.run(
        [*inside, "dd", "if=/dev/zero", f"of={place}/fill", "bs=64k"],
        capture_output=True,
    )
    time.sleep(20)
    subprocess.run([*inside, "rm", f"{place}/fill"], check=True)
    lines = bed.said("client-1").splitlines()
    full = [line for line in lines if "No space" in line or "disk" in line]
    return f"the client: {full[-1].strip() if full else 'nothing'}"


def clock_library(folder: Path) -> Path:
    """Compile `clock.c`, by which a process has another time of day."""
    made = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def clock(seconds: int) -> Callable[[Testbed], str]:
    """Client 1 starts again with a clock that is wrong; it is set after 20 seconds."""

    def disturb(bed: Testbed) -> str:
        bed.end("client-1")
        right = bed.environment
        library = str(clock_library(bed.folder))
        wrong = {"LD_PRELOAD": library, "CLOCK_SHIFT": str(seconds)}
        bed.environment = {**right, **wrong}
        bed.client(1)
        time.sleep(20)
        said = last_line(bed.said("client-1"))
        bed.end("client-1")
        bed.environment = right
        bed.client(1)
        return f"the client: {said}"

    return disturb


def expired(bed: Testbed) -> str:
    """The server comes back with a certificate that has expired, then with a new."""
    library = str(clock_library(bed.folder))
    past = {"LD_PRELOAD": library, "CLOCK_SHIFT": str(-400 * 86400)}
    right = bed.environment
    hosts = [word for host in bed.hosts for word in ("--host", host)]
    certs = ("certs", "certs", *hosts, "--clients", CLIENTS)
    bed.environment = {**right, **past}
    bed.fcl("certs", *certs, "--renew", "--days", 100)
    bed.environment = right
    bed.finish("certs")
    bed.kill("server")
    with contextlib.suppress(RuntimeError):
        bed.server()
    time.sleep(20)
    told = {last_line(bed.said(name)) for name in ("client-0", "server")}
    bed.fcl("certs", *certs, "--renew")
    bed.finish("certs")
    if not bed.ended("server"):
        bed.kill("server")
    bed.server()
    for number in range(CLIENTS):
        if bed.ended(f"client-{number}"):
            bed.client(number)
    return f"said: {'; '.join(sorted(told))}; fcl certs --renew, fcl server"


def situations(seconds: float) -> dict[str, Any]:
    """Name all situations with what each does."""
    found: dict[str, Any] = {
        "nothing": lambda bed: "",
        "100 ms, 2 % loss, 2 Mbit/s": slow,
        "connections reset": reset,
        f"link down {seconds:g} s, another address": moved(seconds),
        f"server away {1.5 * seconds:g} s": server_away(1.5 * seconds),
        "two clients with one key": twin,
        "client's disk full": full_disk,
        "clock 10 minutes ahead": clock(600),
        "clock 10 minutes behind": clock(-600),
    }
    parts = (
        *(("client-0", p) for p in ("worker.py", "flower-supernode", CLIENT)),
        *(("server", p) for p in ("flower-superlink", "flower-superexec", SERVER)),
        ("server", "flwr-serverapp"),
    )
    for name, program in parts:
        side = name.partition("-")[0]
        found[f"SIGSTOP {seconds / 2:g} s, {side}: {program}"] = stopped(
            name, program, seconds / 2
        )
        found[f"SIGKILL, {side}: {program}"] = killed(name, program)
    found["certificate expired"] = expired
    return found


@contextlib.contextmanager
def healthy(folder: Path, *, relayed: bool = True) -> Iterator[Testbed]:
    """Give a federation, and end it."""
    bed = federation(folder, relayed=relayed)
    try:
        yield bed
    finally:
        bed.close()


def main() -> None:
    """Go through the situations that are not there yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="Situations with these words.")
    parser.add_argument("--seconds", type=float, default=60, help="Of a cut link.")
    given = parser.parse_args()
    if why := why_not():
        sys.exit(why)
    given.folder.mkdir(parents=True, exist_ok=True)
    book = given.folder / "situations.jsonl"
    book.touch()
    known = {one["situation"]: one for one in map(json.loads, book.open())}
    for place, (name, disturb) in enumerate(situations(given.seconds).items()):
        if name in known or given.only not in name:
            continue
        relayed = name.startswith(("100", "connections"))
        with healthy(given.folder / f"bed-{place}", relayed=relayed) as bed:
            try:
                known[name] = asdict(disturbed(bed, "run", disturb, name))
            except (RuntimeError, LookupError, psutil.Error) as error:
                first = str(error).splitlines()[0]
                known[name] = asdict(Outcome(name, [f"not to its end: {first}"]))
        with book.open("a") as file:
            file.write(json.dumps(known[name]) + "\n")
    print("| situation | what happened | recovery, s | numbers as undisturbed |")
    print("| --- | --- | --- | --- |")
    for row in known.values():
        happened = "; ".join(row["happened"]) or "nothing else"
        recovery = "" if row["recovery"] is None else f"{row['recovery']:.0f}"
        same = {True: "yes", False: "no", None: ""}[row["same"]]
        print(f"| {row['situation']} | {happened} | {recovery} | {same} |")


if __name__ == "__main__":
    main()
