"""Make the dark variant of each drawing: NAME-dark.svg from NAME.svg.

python docs/images/dark.py

The two differ in their colours alone. A test compares them.
"""

import re
from pathlib import Path

HERE = Path(__file__).parent
DRAWINGS = "sites", "federation", "scenarios", "round"
DARK = {
    "#ffffff": "#1b2129",
    "#1b2433": "#e6eaf0",
    "#5b6675": "#a9b3c0",
    "#f3f5f8": "#232a35",
    "#c3cad4": "#4a5565",
    "#00796b": "#4db6ac",
    "#fde7c8": "#4a3413",
    "#c47a10": "#e0a548",
    "#dbe6fb": "#22345c",
    "#3f6fcf": "#7fa2ea",
    "#d9eedd": "#1f3d29",
    "#3c8a52": "#72bf88",
    "#eadff7": "#382a50",
    "#7c53b8": "#b291e0",
}
"""Colours of the drawings, each with that of the dark variant."""


def darkened(drawing: str) -> str:
    """Return an SVG with dark colours; each of its colours must be in ``DARK``."""
    return re.sub(r"#[0-9a-f]{6}", lambda found: DARK[found[0]], drawing)


def main() -> None:
    """Write the variants."""
    for name in DRAWINGS:
        drawing = (HERE / f"{name}.svg").read_text()
        (HERE / f"{name}-dark.svg").write_text(darkened(drawing))


if __name__ == "__main__":
    main()
