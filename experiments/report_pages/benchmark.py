"""How large pages are, how long they take, and what an open live page costs a run.

python experiments/report_pages/benchmark.py pages
python experiments/report_pages/benchmark.py reader [--pairs 2] [--every 5]

``pages`` draws those of generated runs, which the tests use, too, and prints a table in
Markdown. ``reader`` does the same simulation in turns without and with somebody who
loads its live page again and again. Seconds are of the processor, so that what else
runs on the machine does not count.
"""

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from fcl_flower.core.processes import free_port
from fcl_flower.results.report.comparison import comparison_page
from fcl_flower.results.report.run_page import report_page

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from run_folders import make_run, make_under_way

CLIENTS = (3, 50)
SIZE = {"tasks": 10, "rounds_per_task": 20}
RUN = (
    *("simulate", "--strategy", "fedavg", "--dataset", "digits", "--clients", "4"),
    *("--tasks", "5", "--rounds", "4", "--epochs", "3", "--seed", "1", "--live"),
)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("pages", "reader"))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--every", type=float, default=5.0, help="seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.what == "pages":
            pages(Path(folder))
        else:
            for number in range(given.pairs):
                reader(Path(folder) / str(number), given.every)


def pages(folder: Path) -> None:
    """Print the size of each page and the seconds that it takes."""
    report_page(make_run(folder / "first"))  # packs the program of the charts
    found: dict[str, list[str]] = {}
    for clients in CLIENTS:
        size = {**SIZE, "clients": clients}
        place = folder / str(clients)
        run = make_run(place / "run", **size)
        going = make_under_way(place / "going", finished=110, **size)
        four = [
            make_run(place / f"{alone}-{seed}", seed=seed, local_only=alone, **size)
            for alone in (False, True)
            for seed in (1, 2)
        ]
        for name, draw in {
            "a run": lambda run=run: report_page(run),
            "a run under way, in its sixth task": lambda run=going: report_page(run),
            "a comparison of four runs": lambda four=four: comparison_page(
                folder, four
            ),
        }.items():
            began = time.process_time()
            length = len(draw().encode())
            took = time.process_time() - began
            found.setdefault(name, []).append(f"{length / 1e6:.2f} MB, {took:.2f} s")
    print(f"| page | {' | '.join(f'{clients} clients' for clients in CLIENTS)} |")
    print("| --- " * (len(CLIENTS) + 1) + "|")
    for name, cells in found.items():
        print(f"| {name} | {' | '.join(cells)} |")


def reader(folder: Path, every: float) -> None:
    """Print what a run takes without a reader, and with one."""
    alone, _ = processor_seconds(folder / "alone", None)
    read, times = processor_seconds(folder / "read", every)
    print(f"alone {alone:.2f} s, with a reader {read:.2f} s, who got {times} pages")


def processor_seconds(folder: Path, every: float | None) -> tuple[float, int]:
    """Return what a run takes, and how many pages its reader got; None: nobody."""
    port, pages_got = free_port(), 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fcl_flower.cli.main", *RUN]
    run = subprocess.Popen(
        [*command, "--live-port", str(port), "--output", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    while every is not None and run.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(every)
        with contextlib.suppress(OSError):  # there is no page yet, or no longer
            address = f"http://127.0.0.1:{port}/"
            with urllib.request.urlopen(address, timeout=30) as reply:
                pages_got += bool(reply.read())
    if run.wait():
        raise SystemExit("the run failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, pages_got


if __name__ == "__main__":
    main()
