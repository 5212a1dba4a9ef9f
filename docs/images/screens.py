"""Make the pictures of pages that runs leave: report.html and comparison.html.

python docs/images/screens.py [RUNS]

It trains on digits (a minute of one core), opens the pages in Chromium without a
window, light and dark, and writes small PNG files beside this script. RUNS is the
folder of the runs, a temporary one by default; finished runs there are not run again.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import fcl_flower as fcl

HERE = Path(__file__).parent
COMPARE = HERE.parents[1] / "examples" / "compare.py"
WIDTH = 900
"""Pixels of the window."""
HEIGHTS = {"report": 1450, "comparison": 1490}
"""Pixels of each picture."""
COLOURS = 256
"""Of a picture: its most frequent ones, which keep it small and its areas exact."""


def pages(runs: Path) -> dict[str, Path]:
    """Make the pages, each by the name of its picture; `HEIGHTS` has these names."""
    first = runs / "first"
    if (first / "report.html").exists():
        result = fcl.Result.load(first)
    else:
        result = fcl.simulate(
            "fedavg", clients=4, tasks=4, rounds=5, seed=1, output=first
        )
    mine = runs / "mine"
    subprocess.run([sys.executable, COMPARE, "--output", mine], check=True)
    return {"report": result.report(), "comparison": mine / "comparison.html"}


def photograph(page: Path, picture: Path, height: int, *, dark: bool) -> None:
    """Write the upper part of a page, ``height`` pixels high, as a PNG."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no program chromium or google-chrome was found: install one")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu"),
                *("--no-first-run", "--disable-background-networking"),
                *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
                *(f"--window-size={WIDTH},{height}", f"--user-data-dir={profile}"),
                *("--virtual-time-budget=20000", f"--screenshot={picture}", *scheme),
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
        )
    with Image.open(picture) as taken:
        image = taken.convert("RGB")
    frequent = sorted(image.getcolors(image.width * image.height) or [], reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent[:COLOURS] for part in colour])
    small = image.quantize(palette=palette, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


def main() -> None:
    """Make every picture; print its size."""
    with TemporaryDirectory() as folder:
        runs = Path(sys.argv[1] if len(sys.argv) > 1 else folder)
        for name, page in pages(runs).items():
            for end, dark in (("", False), ("-dark", True)):
                picture = HERE / f"{name}{end}.png"
                photograph(page, picture, HEIGHTS[name], dark=dark)
                print(f"{picture.name}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
