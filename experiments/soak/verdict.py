"""Whether an hour of `soak.py` left memory and descriptors flat, and lost nothing."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

LASTING_SECONDS = 900.0
"""Of shorter lives nothing is said: a client app lives for one message."""
GROWTH = 1.1
"""A process may have that multiple of its memory in the second quarter of its life, in
the last; and as many descriptors, or four more."""
STEADY, LIAR, ROUNDS = 0, 3, 6


def verdict(folder: Path) -> str:
    """Return tables of processes and runs in Markdown, and what follows from them.

    Args:
        folder: that `soak.py` has written.
    """
    processes, flat = _processes(read_lines(folder / "samples.jsonl"))
    runs, whole = _runs(folder)
    happened = [line["what"] for line in read_lines(folder / "events.jsonl")]
    counts = {what: happened.count(what) for what in dict.fromkeys(happened)}
    return "\n".join(
        [
            *processes,
            "",
            *runs,
            "",
            "Happened: " + ", ".join(f"{what} {n}x" for what, n in counts.items()),
            "",
            f"Memory and descriptors: {'flat' if flat else 'NOT FLAT'}. "
            f"Rounds and updates: {'nothing lost' if whole else 'SOMETHING LOST'}.",
        ]
    )


def _processes(samples: list[dict[str, Any]]) -> tuple[list[str], bool]:
    lives = defaultdict(list)
    for line in samples:
        lives[line["process"], line["pid"]].append(line)
    rows = [
        "| process | minutes | MB, second quarter | MB, last quarter | descriptors, "
        "second quarter | last quarter | most | CPU seconds | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    flat = True
    for (name, _), life in sorted(lives.items()):
        seconds = life[-1]["at"] - life[0]["at"]
        if seconds < LASTING_SECONDS:
            continue
        quarter = len(life) // 4
        early, late = life[quarter : 2 * quarter], life[-quarter:]
        memory = [median(line["megabytes"] for line in part) for part in (early, late)]
        files = [median(line["descriptors"] for line in part) for part in (early, late)]
        good = memory[1] <= GROWTH * memory[0] and (
            files[1] <= max(GROWTH * files[0], files[0] + 4)
        )
        flat = flat and good
        most = max(line["descriptors"] for line in life)
        cpu = life[-1]["cpu_seconds"]
        rows.append(
            f"| {name} | {seconds / 60:.0f} | {memory[0]:.0f} | {memory[1]:.0f} | "
            f"{files[0]:.0f} | {files[1]:.0f} | {most} | {cpu:.0f} | "
            f"{'flat' if good else 'grows'} |"
        )
    return rows, flat


def _runs(folder: Path) -> tuple[list[str], bool]:
    rows = [
        "| run | resumed | rounds | updates of client 0, 1, 2, 3 | accuracy | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    whole = True
    for run in read_lines(folder / "runs.jsonl"):
        if not (folder / run["run"] / "checkpoint").exists():
            rows.append(f"| {run['run']} | | 0 | | | killed before its first round |")
            continue
        rounds = read_lines(folder / run["run"] / "rounds.jsonl")
        used = [client for line in rounds for client in line["clients"]]
        counts = [used.count(client) for client in range(4)]
        good = (
            run["code"] == 0
            and [line["round"] for line in rounds] == list(range(1, ROUNDS + 1))
            and counts[STEADY] == ROUNDS
            and counts[LIAR] == 0
        )
        whole = whole and good
        summary = folder / run["run"] / "summary.json"
        found = json.loads(summary.read_text()) if summary.exists() else {}
        accuracy = found.get("average_accuracy")
        rows.append(
            f"| {run['run']} | {run['resumed']}x | {len(rounds)} | "
            f"{', '.join(map(str, counts))} | "
            f"{'none' if accuracy is None else f'{accuracy:.3f}'} | "
            f"{'whole' if good else 'not whole'} |"
        )
    return rows, whole and len(rows) > 2


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object in each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    print(verdict(Path(sys.argv[1])))
