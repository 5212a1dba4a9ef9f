"""How large pages are, and how long they take.

python experiments/report_pages/benchmark.py

It draws the pages of generated runs, which the tests use, too, and prints a table in
Markdown. Seconds are of the processor, so that what else runs on the machine does not
count.
"""

import sys
import tempfile
import time
from pathlib import Path

from fcl_flower.results.report.comparison import comparison_page
from fcl_flower.results.report.run_page import report_page

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
from run_folders import make_run, make_under_way

CLIENTS = (3, 50)
SIZE = {"tasks": 10, "rounds_per_task": 20}


def main() -> None:
    """Draw the pages in a folder that does not stay."""
    with tempfile.TemporaryDirectory() as folder:
        pages(Path(folder))


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


if __name__ == "__main__":
    main()
