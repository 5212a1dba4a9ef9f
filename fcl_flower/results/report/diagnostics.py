"""A strategy's diagnostics as sections: tables, matrices, and maps of points."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from fcl_flower.core import diagnostics
from fcl_flower.core.diagnostics import Clustering, Diagnostic, Matrix, Points
from fcl_flower.results.record import Record
from fcl_flower.results.report import wording
from fcl_flower.results.report.charts import Cells, Point, PointMap
from fcl_flower.results.report.page import Section
from fcl_flower.results.report.wording import LEGIBLE, Table


def section(report: Diagnostic, record: Record) -> Section:
    """Draw one diagnostic of a strategy."""
    if isinstance(report, diagnostics.Table):
        rows = [
            [name, *(x if isinstance(x, str) else wording.fraction(x) for x in values)]
            for name, values in report.values.items()
        ]
        head, folded = [report.rows, *report.columns], "Show every row"
        table = Table(head, rows, "diagnostics", folded=folded)
        return Section(report.title, report.note, [table])
    if isinstance(report, diagnostics.Matrix):
        return _matrix(report)
    return _maps(report, record.scenario.concepts)


def _matrix(matrix: Matrix) -> Section:
    """Draw a matrix, of many rows or columns the first ones."""
    rows = _in_order(matrix.values)
    columns = _in_order({label for row in matrix.values.values() for label in row})
    notes = [matrix.note]
    if max(len(rows), len(columns)) > LEGIBLE:
        rows, columns = rows[:LEGIBLE], columns[:LEGIBLE]
        notes += [f"Shown are the first {LEGIBLE}; all are in diagnostics.json."]
    values = [
        [matrix.values[row].get(name, np.nan) for name in columns] for row in rows
    ]
    marked = [
        (i, columns.index(column))
        for i, row in enumerate(rows)
        for column in matrix.marked.get(row, ())
        if column in columns
    ]
    titles, cells = (matrix.rows, matrix.columns), np.array(values, np.float64)
    known = columns and not np.isnan(cells).all()
    chart = Cells(matrix.title, titles, rows, columns, cells, marked)
    return Section(
        matrix.title, " ".join(filter(None, notes)), [chart] if known else []
    )


def _in_order(labels: Iterable[str]) -> list[str]:
    """Sort labels by their numbers: ``2/9``, ``2/10``."""

    def numbers(label: str) -> tuple[list[int], str]:
        return [*map(int, re.findall(r"\d+", label))], label

    return sorted(labels, key=numbers)


def _maps(points: Points, names: Sequence[str]) -> Section:
    """Draw the clusters of the first round, and of the last one with several."""
    if not (frames := points.frames):
        return Section(points.title, points.note, [])
    first = frames[0]
    last = next((f for f in reversed(frames) if f.clusters > 1), frames[-1])
    numbers = "that of the client"
    if any(frame.concept for frame in frames):
        pairs = (f"{number} {name}" for number, name in enumerate(names))
        numbers = f"the hidden concept of its data: {', '.join(pairs)}"
    return Section(
        points.title,
        f"{points.note} Its number is {numbers}. Zoom in where points overlap. "
        "Each map has its own scale, the same in both directions.",
        [_map(frame, names) for frame in ([first] if last is first else [first, last])],
    )


def _map(frame: Clustering, names: Sequence[str]) -> PointMap:
    clusters: dict[str, list[Point]] = {}
    for i in sorted(range(len(frame.clients)), key=frame.cluster.__getitem__):
        client, cluster = frame.clients[i], frame.cluster[i]
        concept = f", {names[frame.concept[i]]}" if frame.concept else ""
        origin, reached = (
            "none" if model < 0 else f"model {model}"
            for model in (frame.origin[i], frame.reached[i])
        )
        name = "no cluster" if cluster < 0 else f"cluster {cluster}"
        hint = f"client {client}{concept}: {name}, started from {origin}, "
        number = frame.concept[i] if frame.concept else client
        point = Point(frame.map[i], str(number), cluster, f"{hint}reached {reached}")
        clusters.setdefault(name, []).append(point)
    caption = f"round {frame.round}: {wording.plural(frame.clusters, 'cluster')}"
    if frame.ari is not None:
        caption += f", adjusted Rand index {wording.fraction(frame.ari)}"
    what = f"Map of the client models of round {frame.round}"
    return PointMap(what, clusters, caption)
