"""The sections on accuracy: over classes seen, over time, per task and per client."""

import math

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import lines, over_tasks
from fcl_flower.results.report.charts.heatmap import Axis, Label, Look, heat_map
from fcl_flower.results.report.html import numbers, page
from fcl_flower.results.report.html.markup import Markup, tag
from fcl_flower.results.report.reader import Run
from fcl_flower.results.report.schema import Measurement, Summary

_MULTIPLES = 10
"""Clients up to which each gets a small matrix of its own, and a dot in the bars."""

_NOTICEABLE = 0.0005
"""A difference below this is 0.000 on the page and is not called one."""


def classes_seen_section(summary: Summary) -> Markup:
    """Return the accuracy over all classes so far, after each task."""
    seen = np.array(summary.sample_accuracy, np.float64)
    if np.isnan(seen).all():
        return page.section(
            "The accuracy over all classes seen is not known",
            "No client was evaluated.",
        )
    known = seen[~np.isnan(seen)]
    line = lines.Series(
        "all classes seen", np.arange(len(seen)), seen, seen * np.nan, "var(--c1)"
    )
    return page.section(
        f"Over all classes seen, accuracy goes from {numbers.fraction(known[0])} to "
        f"{numbers.fraction(known[-1])}; mean over tasks {known.mean():.3f}",
        "Fraction of right answers among the test samples of all classes so far, each "
        "sample once; the task of a sample is not given to the model.",
        lines.lines(
            [line],
            lines.over_tasks(len(seen)),
            "Accuracy over all classes seen, after each task",
        ),
    )


def accuracy_section(run: Run) -> Markup:
    """Return how the accuracy of every task went while further ones were learned."""
    tasks = run.summary.tasks
    lost = metrics.mean_measured(metrics.forgetting_per_task(run.accuracy), axis=0)
    if np.isnan(lost).all():
        heading = "Every task while further ones were learned"
    elif np.nanmax(lost) < _NOTICEABLE:
        heading = "No task lost accuracy while later ones were learned"
    else:
        worst = int(np.nanargmax(lost))
        heading = (
            f"Task {worst} lost most: {lost[worst]:.3f} below its best when all tasks "
            "were learned"
        )
    series = [
        lines.Series(
            f"task {i}",
            np.arange(tasks),
            column,
            column * np.nan,
            over_tasks.task_colour(i, tasks),
        )
        for i, column in enumerate(run.mean_accuracy.T)
        if not np.isnan(column).all()
    ]
    note = (
        "One line per task, mean over clients, on test data. Every line starts where "
        "its task was learned."
    )
    picture = lines.lines(
        series, lines.over_tasks(tasks), "Accuracy of every task over time"
    )
    return page.section(heading, note, picture)


def forgetting_section(run: Run) -> Markup:
    """Return the catastrophic forgetting of every task, by client."""
    per_client = metrics.forgetting_per_task(run.accuracy)
    means = metrics.mean_measured(per_client, axis=0)
    if np.isnan(means).all():
        return page.section(
            "Catastrophic forgetting is not known",
            "No task was measured both early and at the end.",
        )
    # Above some ten clients the dots would merge into bars of their own.
    dots = per_client if len(per_client) <= _MULTIPLES else per_client[:0]
    shown = np.concatenate([means, dots.ravel()])
    if np.nanmax(np.abs(shown)) < _NOTICEABLE:
        return page.section(
            "Nothing was forgotten",
            "Every earlier task ends as accurate as it ever was, for every client.",
        )
    forgotten = int((means >= _NOTICEABLE).sum())
    return page.section(
        f"Catastrophic forgetting averages "
        f"{numbers.fraction(run.summary.forgetting)}; {forgotten} "
        f"of {numbers.plural(len(means), 'earlier task')} lost accuracy",
        "Best accuracy before the last task minus the final accuracy (Chaudhry et al., "
        "2018). Bars: mean over clients"
        + ("; dots: single clients." if len(dots) else ".")
        + " Below zero a task is better than it ever was.",
        over_tasks.bars_over_tasks(
            means,
            dots,
            "forgetting",
            (float(np.nanmin(shown)), float(np.nanmax(shown))),
            numbers.fraction,
            lambda value: "var(--c4)" if value > 0 else "var(--c2)",
            "Forgetting of every task",
            "task",
        ),
    )


def matrix_section(run: Run) -> Markup:
    """Return the whole matrix of accuracies, mean over clients."""
    side = min(max(700 / run.summary.tasks, 16.0), 56.0)
    learned = numbers.fraction(run.summary.learning_accuracy)
    final = numbers.fraction(run.summary.average_accuracy)
    return page.section(
        f"Tasks are learned at {learned} (diagonal) and end at {final} (last row)",
        "a[t, i]: accuracy on task i after learning task t, mean over clients; row "
        f"{run.summary.tasks - 1} is the end of the run.",
        _triangle(
            run.mean_accuracy,
            Look(*_colour_range(run.mean_accuracy), (side, min(side, 32.0))),
            "Accuracy on every task after every task, mean over clients",
        ),
    )


def _triangle(matrix: Accuracy, look: Look, what: str) -> Markup:
    labels = _counted(len(matrix))
    return heat_map(
        matrix,
        Axis("after task t (rows)", labels),
        Axis("on task i (columns)", labels),
        look,
        lambda t, i: f"after task {t}, on task {i}: {matrix[t, i]:.3f}",
        what,
    )


def clients_section(run: Run) -> Markup:
    """Return how the clients differ."""
    final = metrics.mean_measured(run.accuracy[:, -1], axis=1)
    known = int((~np.isnan(final)).sum())
    if not known:
        heading = "No client was measured at the end"
    elif known == 1:
        heading = f"One client was measured at the end, at {np.nanmax(final):.3f}"
    else:
        heading = (
            f"Client {np.nanargmax(final)} ends best ({np.nanmax(final):.3f}), client "
            f"{np.nanargmin(final)} worst ({np.nanmin(final):.3f})"
        )
    low, high = _colour_range(run.accuracy)
    noun, hidden = run.summary.noun, run.summary.hidden is not None
    if len(final) <= _MULTIPLES and run.summary.tasks > 1 and not hidden:
        note = f"The matrix of each client; pale is {low:.2f}, strong is {high:.2f}."
        picture = _small_multiples(run, low, high)
    else:
        note = f"Final accuracy of every client on each of its {noun}s."
        picture = _final_by_client(run, low, high)
    return page.section(
        heading,
        note,
        picture,
        page.collapsed("Every final accuracy as a table", _final_table(run)),
    )


def _small_multiples(run: Run, low: float, high: float) -> Markup:
    cell = min(max(170 / run.summary.tasks, 2.0), 40.0)
    look = Look(low, high, (cell, min(cell, 30.0)), legend=False)
    final = metrics.mean_measured(run.accuracy[:, -1], axis=1)
    return tag(
        "div",
        *(
            tag(
                "figure",
                _triangle(matrix, look, f"Accuracies of client {client}"),
                tag("figcaption", f"client {client}: ends at {numbers.fraction(mean)}"),
            )
            for client, (matrix, mean) in enumerate(
                zip(run.accuracy, final, strict=True)
            )
        ),
        class_="multiples",
    )


def _final_by_client(run: Run, low: float, high: float) -> Markup:
    final, tasks = run.accuracy[:, -1], run.summary.tasks
    noun = run.summary.noun
    side = min(max(700 / tasks, 12.0), 48.0)
    height = 16.0 if len(final) <= 30 else 9.0
    return heat_map(
        final,
        Axis("client (rows)", _counted(len(final))),
        Axis(f"final accuracy on {noun} (columns)", _counted(tasks)),
        Look(low, high, (side, height)),
        lambda c, i: f"client {c}, {noun} {i}: {final[c, i]:.3f}",
        f"Final accuracy of every client on every {noun}",
    )


def _final_table(run: Run) -> Markup:
    """Return the last measurement of each client and task, with the task's name."""
    last = {(m.client, m.task): m for m in sorted(run.measurements, key=_when)}
    table = page.table(
        ["client", run.summary.noun, "name", "round", "accuracy"],
        (
            [
                str(client),
                str(task),
                m.task_name,
                str(m.round),
                numbers.fraction(m.accuracy),
            ]
            for (client, task), m in sorted(last.items())
        ),
        words=3,
    )
    return tag("div", table, class_="tall")


def _counted(count: int) -> list[Label]:
    return [Label(str(i)) for i in range(count)]


def _when(measurement: Measurement) -> int:
    return measurement.round


def _colour_range(accuracy: Accuracy) -> tuple[float, float]:
    """Return multiples of 0.05 that enclose every accuracy, at least 0.05 apart."""
    low = math.floor(float(np.nanmin(accuracy)) * 20 + 1e-9)
    high = math.ceil(float(np.nanmax(accuracy)) * 20 - 1e-9)
    return low / 20, max(high, low + 1) / 20
