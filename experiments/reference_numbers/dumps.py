"""What ``fcl list`` says, the data sets sample by sample, and the scenarios drawn.

``listing.json`` holds the text of ``fcl list`` and of ``fcl list NAME`` for every name;
``scenarios.json`` a checksum of each data set that needs no outside data, and of what
``fcl scenario --save`` writes for each scenario, with the checksums of all indices::

    python experiments/reference_numbers/dumps.py           # some seconds
    python experiments/reference_numbers/dumps.py --write   # anew, as it is now

The docstrings of Python's standard library differ from version to version: with another
than the one that is noted, what is made of them is left out.
"""

import argparse
import difflib
import gzip
import hashlib
import io
import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np

from fcl_flower import datasets
from fcl_flower.cli.main import cli

LISTING = Path(__file__).with_name("listing.json")
SCENARIOS = Path(__file__).with_name("scenarios.json")
PYTHON = "python"


def answer(*arguments: str) -> str:
    """Take down what the command ``fcl`` prints."""
    with redirect_stdout(io.StringIO()) as printed:
        cli.main(arguments, prog_name="fcl", standalone_mode=False)
    return printed.getvalue()


def main() -> None:
    """Compare both files; exit with 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the files anew")
    given = parser.parse_args()
    known = {path: json.loads(path.read_text()) for path in (LISTING, SCENARIOS)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FCL_DATA": folder, "COLUMNS": "1000"}
        found = {LISTING: listing(folder, known[LISTING])}
        write_data(Path(folder))
        found[SCENARIOS] = scenarios(Path(folder), known[SCENARIOS])
    if given.write:
        for path, entries in found.items():
            path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")
        return
    wrong = 0
    for path, entries in found.items():
        left_out = found[SCENARIOS][PYTHON] != known[SCENARIOS][PYTHON]
        for key, now in entries.items():
            before = known[path][key]
            if now != before and not (left_out and ("docs" in key or key == PYTHON)):
                wrong += 1
                print(f"OTHER: {path.stem} {key!r}")
                print(*differences(before, now), sep="\n")
    print(f"{wrong} differ of {sum(map(len, found.values()))}")
    sys.exit(bool(wrong))


def listing(folder: str, names: Mapping[str, object]) -> dict[str, list[str]]:
    """Take down ``fcl list`` (the name is empty) and what it says of each name."""
    found = {}
    for name in names:
        text = answer("list", *filter(None, [name])).replace(folder, "{folder}")
        # How tables are drawn does not count.
        lines = [
            re.sub(r"[ \u2500-\u257f]+", " ", line).strip()
            for line in text.splitlines()
        ]
        found[name] = list(filter(None, lines))
    return found


def scenarios(root: Path, known: Mapping[str, object]) -> dict[str, str]:
    """Compute the checksums of the data sets and scenarios that are named."""
    found = {PYTHON: platform.python_version()}
    for key in known:
        kind, _, rest = key.partition(" ")
        if kind == "dataset":
            found[key] = checksum(rest, root)
        elif kind == "scenario":
            path = root / "scenario.json"
            title = answer("scenario", *rest.split(), "--save", str(path))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[key] = f"{digest} {title.splitlines()[0]}"
    return found


def checksum(name: str, root: Path) -> str:
    """Compute the checksum of all samples, labels and class names of a data set."""
    whole = datasets.load_dataset(name, root)
    digest = hashlib.sha256(repr((whole.modality, whole.class_names)).encode())
    for split in (whole.train, whole.test):
        for part in (split.x, split.y):
            if isinstance(part, tuple):
                digest.update(repr(part).encode())
            else:
                digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
    return digest.hexdigest()


def differences(before: Sequence[str] | str, now: Sequence[str] | str) -> list[str]:
    """Tell what has changed, line by line."""
    lines = [[one] if isinstance(one, str) else one for one in (before, now)]
    return [f"  {line}" for line in difflib.unified_diff(*lines, lineterm="", n=0)][2:]


def write_data(folder: Path) -> None:
    """Write small data sets of images, series, rows and texts."""
    rng = np.random.default_rng(0)
    for name, shape, classes, each in (
        ("images", (6, 6), 4, 12),
        ("colours", (5, 7, 3), 3, 12),
        ("cifar100", (4, 4, 3), 100, 12),  # cut into its official superclasses
        ("series", (9, 16), 4, 12),
        ("rows", (3,), 4, 12),
    ):
        y = np.tile(np.arange(classes), each)
        x = rng.normal(size=(len(y), *shape))
        if len(shape) > 1 and name != "series":
            x = np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
        half = len(y) // 2
        arrays = {"x_train": x[half:], "y_train": y[half:]}
        np.savez(folder / f"{name}.npz", **arrays, x_test=x[:half], y_test=y[:half])
    (folder / "letters").mkdir()
    for split, count in (("train", 60), ("test", 30)):
        texts = [
            {"text": f"the {n}th text", "label": "abcde"[n % 5], "size": "xyz"[n % 3]}
            for n in range(count)
        ]
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        with gzip.open(folder / "letters" / f"{split}.jsonl.gz", "wt") as file:
            file.write(lines)


if __name__ == "__main__":
    main()
