"""Sheets as files, one each."""

import csv
from pathlib import Path

from fcl_flower.core.errors import extra
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


def write_parquet(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet as Parquet; what is unknown is null.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    with extra("frames", "format parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    path = folder / f"{sheet.name}.parquet"
    columns = {
        name: [row[place] for row in sheet.rows]
        for place, name in enumerate(sheet.columns)
    }
    parquet.write_table(pa.table(columns), path)
    return path
