"""Sheets as comma-separated values, a file each."""

import csv
from pathlib import Path

from fcl_flower.exports.sheets import Sheet


def write_csv(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet with its columns in the first line; what is unknown is empty.

    Numbers stand as Python prints them, so that they are read as they were.
    """
    path = folder / f"{sheet.name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(sheet.columns)
        lines.writerows(sheet.rows)
    return path
