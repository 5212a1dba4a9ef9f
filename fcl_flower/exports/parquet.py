"""Sheets as Parquet, a file each; needs pyarrow to be imported."""

from pathlib import Path

from fcl_flower.core.errors import extra
from fcl_flower.exports.sheets import Sheet

with extra("frames", "format parquet"):
    import pyarrow as pa
    from pyarrow import parquet


def write_parquet(sheet: Sheet, folder: Path) -> Path:
    """Write a sheet as Parquet; what is unknown is null."""
    path = folder / f"{sheet.name}.parquet"
    columns = {
        name: [row[place] for row in sheet.rows]
        for place, name in enumerate(sheet.columns)
    }
    parquet.write_table(pa.table(columns), path)
    return path
