"""How long a healthy client of an asynchronous run waits when the other is killed.

python experiments/faults/healthy.py DIR [--updates 5]

Starts a server and two clients on this machine, over TLS, and an asynchronous run of
FedAvg on digits; kills client 1 with all its processes by SIGKILL when each has been
heard a few times, and writes after how many seconds each update of client 0 was
aggregated, before and after.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from local_federation import PATIENCE, LocalFederation

ROUNDS = 200
"""More than are waited for."""


def main() -> None:
    """Measure; print the seconds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=5)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    lab = LocalFederation(given.folder)
    try:
        lab.certificates(clients=2)
        lab.server()
        for number in (0, 1):
            lab.client(number)
        for number in (0, 1):
            lab.until(f"client-{number}", "SuperNode ID")
        lab.run(
            *("--strategy", "fedavg", "--asynchronous", "--clients", 2, "--tasks", 1),
            *("--rounds", ROUNDS, "--classes-per-task", 2, "--output", "results"),
        )
        before = heard(lab, {0: given.updates, 1: given.updates})
        killed = time.monotonic()
        for _, process in [*lab.members("client-1")]:
            process.kill()
        after = heard(lab, {0: before[0] + given.updates})
    finally:
        lab.end()
    gaps = [late - early for early, late in pairwise(TIMES)]
    first = next(at for at in TIMES if at > killed) - killed
    count = before[0] - 1
    print(
        f"updates of client 0: every {statistics.median(gaps[:count]):.1f} s before; "
        f"client 1 is killed; the next after {first:.1f} s, then every "
        f"{statistics.median(gaps[count + 1 :]):.1f} s, at most "
        f"{max(gaps[count:]):.1f} s ({after[0]} updates in all)"
    )


TIMES: list[float] = []
"""When each update of client 0 was seen, in seconds of this process."""


def heard(lab: LocalFederation, wanted: dict[int, int]) -> dict[int, int]:
    """Wait until so many updates of clients are aggregated; return how many are.

    Raises:
        RuntimeError: they do not come.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = dict.fromkeys((0, 1), 0)
        journal = lab.folder / "results" / "rounds.jsonl"
        for line in journal.read_text().splitlines() if journal.exists() else []:
            for client in json.loads(line)["clients"]:
                found[client] += 1
        TIMES.extend([time.monotonic()] * (found[0] - len(TIMES)))
        if all(found[client] >= count for client, count in wanted.items()):
            return found
        if lab.ended("run"):
            break
        time.sleep(0.1)
    raise RuntimeError(f"updates {wanted} do not come\n{lab.tails()}")


if __name__ == "__main__":
    main()
