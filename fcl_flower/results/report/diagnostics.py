"""A strategy's diagnostics, drawn by their type: a table, a matrix, or points."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fcl_flower.core import diagnostics
from fcl_flower.core.diagnostics import Clustering, Diagnostic, Matrix, Points
from fcl_flower.results.record import Record
from fcl_flower.results.report import wording
from fcl_flower.results.report.charts import (
    Chart,
    Point,
    Series,
    line_chart,
    matrix_chart,
    point_chart,
)
from fcl_flower.results.report.page import Row, Section
from fcl_flower.results.report.wording import LEGIBLE, Table


def sections(one: Diagnostic, record: Record) -> Iterator[Section]:
    """Draw what a strategy has reported."""
    if isinstance(one, diagnostics.Table):
        rows = [
            [name, *(x if isinstance(x, str) else wording.fraction(x) for x in values)]
            for name, values in one.values.items()
        ]
        head, folded = [one.rows, *one.columns], "Show every row"
        table = Table(head, rows, "diagnostics", folded=folded)
        yield Section(one.title, one.note, [table])
    elif isinstance(one, diagnostics.Matrix):
        yield _matrix(one, record)
    elif one.frames:
        yield from _clusterings(one, record)


def _matrix(one: Matrix, record: Record) -> Section:
    """Chart a matrix.

    Of too many tasks of clients (labels such as ``2/0``) the means over pairs of
    clients are shown, and of too many clients some. Where nothing is marked, pairs of
    tasks are if the column has all classes of the row.
    """
    cells = {
        (row, column): value
        for row, values in one.values.items()
        for column, value in values.items()
    }
    marked = {(row, column) for row, labels in one.marked.items() for column in labels}
    (rows, columns), notes = _labels(cells), [one.note]
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
    parts = []
    if columns:
        titles, numbers = (one.rows, one.columns), np.array(values, np.float64)
        parts = [matrix_chart(one.title, titles, rows, columns, numbers, marks)]
    return Section(one.title, " ".join(filter(None, notes)), parts)


def _labels(cells: Mapping[tuple[str, str], float]) -> list[list[str]]:
    """List the labels of rows and of columns, such as ``2/10`` by their numbers."""

    def by_number(label: str) -> tuple[list[int], str]:
        parts = label.split("/")
        numbers = all(part.isdecimal() for part in parts)
        return [*map(int, parts)] if numbers else [], label

    return [sorted({pair[side] for pair in cells}, key=by_number) for side in (0, 1)]


def _classes(label: str, record: Record) -> set[str]:
    """Look up the classes of a task ``client/task``; empty where not known."""
    client, _, task = label.partition("/")
    try:
        return {*record.scenario.clients[int(client)][int(task)].class_names}
    except (ValueError, IndexError):
        return set()


def _clusterings(one: Points, record: Record) -> Iterator[Section]:
    """Show how well clusters of models are the hidden concepts, and where they lie.

    The measures are those of Concept Matching (Jiang et al., 2025, tables II and III).
    """
    frames = one.frames
    names = record.scenario.concepts
    last = next((f for f in reversed(frames) if f.clusters > 1), frames[-1])
    known = [frame for frame in frames if frame.concept]
    yield Section(
        "Clustering and matching",
        "Adjusted Rand index of the clusters against the hidden concepts: 1 is "
        "perfect, 0 is what chance gives. Matching effectiveness: fraction of the "
        "updates that went into the concept model which their client had started from.",
        [_agreement(known)] if known else [],
    )
    yield Section(
        "Concept models",
        "The concept model that most of a concept's clients reached in each round. "
        "Empty: no client had data of the concept; -1: they reached none. A dot: some "
        "of them reached another one.",
        [_reached(known, names, record.about.total_rounds)] if known else [],
    )
    numbers = "that of the client"
    if known:
        pairs = (f"{number} {name}" for number, name in enumerate(names))
        numbers = f"the hidden concept of its data: {', '.join(pairs)}"
    maps = [frames[0]] if last is frames[0] else [frames[0], last]
    yield Section(
        one.title,
        f"{one.note} Its number is {numbers}. Zoom in where points cover each other. "
        "Each map has its own scale, the same in both directions.",
        [Row([_map(frame, names) for frame in maps], "maps")],
    )


def _agreement(frames: Sequence[Clustering]) -> Chart | None:
    at = [frame.round for frame in frames]
    ari = np.array([frame.ari for frame in frames], np.float64)
    effectiveness = np.array([frame.effectiveness for frame in frames], np.float64)
    series = [
        Series("adjusted Rand index", at, ari, "var(--c0)"),
        Series("matching effectiveness", at, effectiveness, "var(--c2)"),
    ]
    what = "Clustering and matching over rounds"
    return line_chart(what, "round", series, "index, fraction")


def _reached(frames: Sequence[Clustering], names: Sequence[str], rounds: int) -> Chart:
    models = np.full((len(names), rounds), np.nan)
    divided = []
    for frame in frames:
        counts: dict[int, Counter[int]] = {}
        for concept, model in zip(frame.concept, frame.reached, strict=True):
            counts.setdefault(concept, Counter())[model] += 1
        for concept, found in counts.items():
            cell = concept, frame.round - 1
            # Of equally many the lowest number, but an update before none.
            models[cell] = max(found, key=lambda m: (found[m], m >= 0, -m))
            divided += [cell] if len(found) > 1 else []
    return matrix_chart(
        "Concept model that each concept reached in each round",
        ("concept", "round"),
        names,
        [*map(str, range(1, rounds + 1))],
        models,
        divided,
        whole=True,
    )


def _map(frame: Clustering, names: Sequence[str]) -> Chart:
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
    return point_chart(what, clusters, caption)
