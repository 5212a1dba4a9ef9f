"""A strategy's diagnostics as sections: tables, matrices, and maps of points."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fcl_flower.core import diagnostics
from fcl_flower.core.diagnostics import Clustering, Diagnostic, Matrix, Points
from fcl_flower.results.record import Record
from fcl_flower.results.report import wording
from fcl_flower.results.report.charts import (
    Cells,
    Lines,
    Point,
    PointMap,
    Series,
    line_chart,
)
from fcl_flower.results.report.page import Section
from fcl_flower.results.report.wording import LEGIBLE, Table


def sections(report: Diagnostic, record: Record) -> Iterator[Section]:
    """Draw one diagnostic of a strategy."""
    if isinstance(report, diagnostics.Table):
        rows = [
            [name, *(x if isinstance(x, str) else wording.fraction(x) for x in values)]
            for name, values in report.values.items()
        ]
        head, folded = [report.rows, *report.columns], "Show every row"
        table = Table(head, rows, "diagnostics", folded=folded)
        yield Section(report.title, report.note, [table])
    elif isinstance(report, diagnostics.Matrix):
        yield _matrix(report, record)
    elif report.frames:
        yield from _clusterings(report, record)


def _matrix(matrix: Matrix, record: Record) -> Section:
    """Draw a matrix.

    If there are too many tasks of clients (labels such as ``2/0``), it shows the means
    over pairs of clients, and of too many clients the first ones. If the strategy marks
    no cell, a mark shows pairs of tasks whose column has all classes of the row.
    """
    cells = {
        (row, column): value
        for row, values in matrix.values.items()
        for column, value in values.items()
    }
    marked = {
        (row, column) for row, labels in matrix.marked.items() for column in labels
    }
    (rows, columns), notes = _labels(cells), [matrix.note]
    if max(len(rows), len(columns)) > LEGIBLE:
        grouped: dict[tuple[str, str], list[float]] = {}
        for (row, column), value in cells.items():
            pair = row.split("/")[0], column.split("/")[0]
            grouped.setdefault(pair, []).append(value)
        cells = {pair: float(np.mean(values)) for pair, values in grouped.items()}
        marked, (rows, columns) = set(), _labels(cells)
        notes += ["Means over all tasks of a client: there are too many to show each."]
    elif not marked:
        classes = {label: _classes(label, record) for label in (*rows, *columns)}
        marked = {(r, c) for r, c in cells if classes[r] and classes[r] <= classes[c]}
        notes += ["A dot: both tasks have the same classes."] if marked else []
    if max(len(rows), len(columns)) > LEGIBLE:
        shown = {*rows[:LEGIBLE]}
        cells = {pair: value for pair, value in cells.items() if pair[0] in shown}
        rows, columns = (labels[:LEGIBLE] for labels in _labels(cells))
        notes += [f"Shown are the first {LEGIBLE}; all are in diagnostics.json."]
    values = [[cells.get((row, column), np.nan) for column in columns] for row in rows]
    marks = [
        (rows.index(row), columns.index(column))
        for row, column in marked
        if row in rows and column in columns
    ]
    titles, numbers = (matrix.rows, matrix.columns), np.array(values, np.float64)
    chart = Cells(matrix.title, titles, rows, columns, numbers, marks)
    parts = [chart] if columns else []
    return Section(matrix.title, " ".join(filter(None, notes)), parts)


def _labels(cells: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """List the labels of rows and of columns, sorted by number: ``2/9``, ``2/10``."""

    def by_number(label: str) -> tuple[list[int], str]:
        parts = label.split("/")
        numbers = all(part.isdecimal() for part in parts)
        return [*map(int, parts)] if numbers else [], label

    return [sorted({pair[side] for pair in cells}, key=by_number) for side in (0, 1)]


def _classes(label: str, record: Record) -> set[str]:
    """Look up the classes of a task ``client/task``; empty if they are not known."""
    client, _, task = label.partition("/")
    try:
        return {*record.scenario.clients[int(client)][int(task)].class_names}
    except (ValueError, IndexError):
        return set()


def _clusterings(points: Points, record: Record) -> Iterator[Section]:
    """Show how well clusters of models agree with hidden concepts, and draw maps.

    The measures are those of Concept Matching (Jiang et al., 2025, tables II and III).
    """
    frames = points.frames
    names = record.scenario.concepts
    last = next((f for f in reversed(frames) if f.clusters > 1), frames[-1])
    judged = [frame for frame in frames if frame.concept]
    yield Section(
        "Clustering and matching",
        "Adjusted Rand index of the clusters against the hidden concepts: 1 is "
        "perfect, 0 is what chance gives. Matching effectiveness: fraction of the "
        "updates that went into the concept model which their client had started from.",
        [_agreement(judged)] if judged else [],
    )
    numbers = "that of the client"
    if judged:
        pairs = (f"{number} {name}" for number, name in enumerate(names))
        numbers = f"the hidden concept of its data: {', '.join(pairs)}"
    maps = [frames[0]] if last is frames[0] else [frames[0], last]
    yield Section(
        points.title,
        f"{points.note} Its number is {numbers}. Zoom in where points overlap. "
        "Each map has its own scale, the same in both directions.",
        [_map(frame, names) for frame in maps],
    )


def _agreement(frames: Sequence[Clustering]) -> Lines | None:
    at = [frame.round for frame in frames]
    indices = np.array([(frame.ari, frame.effectiveness) for frame in frames], float)
    series = [
        Series("adjusted Rand index", at, indices[:, 0], "var(--c0)"),
        Series("matching effectiveness", at, indices[:, 1], "var(--c2)"),
    ]
    what = "Clustering and matching over rounds"
    return line_chart(what, "round", series, "index, fraction")


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
