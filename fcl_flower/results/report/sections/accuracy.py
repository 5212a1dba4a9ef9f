"""The sections on accuracy: over classes seen, over time, per task and per client."""

import math
from collections.abc import Sequence

import numpy as np

from fcl_flower.results import metrics
from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts.bars import bars_over_tasks
from fcl_flower.results.report.charts.heatmap import Axis, heat_map
from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.charts.traces import category_colour, task_colour
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Charts, Section, Table
from fcl_flower.results.report.reader import Run, evaluations
from fcl_flower.results.report.schema import Summary

_MULTIPLES = 10
"""Clients up to which each gets a small matrix of its own, and a dot in the bars."""

_LEGIBLE = 64
"""Clients up to which each has a row; of more, the best and the worst are shown."""

_NOTICEABLE = 0.0005
"""A difference below this is 0.000 on the page and is not called one."""


def classes_seen_section(summary: Summary) -> Section:
    """Return the accuracy over all classes so far, after each task."""
    seen = np.array(summary.sample_accuracy, np.float64)
    known = seen[~np.isnan(seen)]
    if not len(known):
        return Section(
            "The accuracy over all classes seen is not known",
            "No client was evaluated.",
        )
    line = Series("all classes seen", np.arange(len(seen)), seen, "var(--c1)")
    return Section(
        f"Over all classes seen, accuracy goes from {numbers.fraction(known[0])} to "
        f"{numbers.fraction(known[-1])}; mean over tasks {known.mean():.3f}",
        "Fraction of right answers among the test samples of all classes so far, each "
        "sample once; the task of a sample is not given to the model.",
        lines([line], "task", "Accuracy over all classes seen, after each task"),
    )


def accuracy_section(run: Run) -> Section:
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
        Series(f"task {i}", np.arange(tasks), column, task_colour(i, tasks))
        for i, column in enumerate(run.mean_accuracy.T)
        if not np.isnan(column).all()
    ]
    return Section(
        heading,
        f"One line per task, {numbers.mean_over(run.summary.clients, 'client')}, on "
        "test data. Every line starts where its task was learned.",
        lines(series, "task", "Accuracy of every task over time"),
    )


def concepts_accuracy_section(run: Run) -> Section:
    """Return how the accuracy of every hidden concept went, round by round."""
    found = evaluations(run)
    series = [
        Series(name, found.rounds, column, category_colour(k))
        for k, (name, column) in enumerate(
            zip(run.scenario.concepts, found.by_task.T, strict=True)
        )
        if not np.isnan(column).all()
    ]
    if not series:
        return Section("No evaluation is known", "accuracy.csv is empty.")
    ends = sorted((one.values[~np.isnan(one.values)][-1], one.name) for one in series)
    (low, worst), (high, best) = ends[0], ends[-1]
    heading = f"{best} {run.summary.ends} highest ({high:.3f})"
    if len(ends) > 1:
        heading += f", {worst} lowest ({low:.3f})"
    return Section(
        heading,
        "One line per hidden concept, "
        f"{numbers.mean_over(run.summary.clients, 'client')}, on test data. Each "
        "client is tested on all concepts.",
        lines(series, "round", "Accuracy per concept over rounds"),
    )


def forgetting_section(run: Run) -> Section:
    """Return the catastrophic forgetting of every task, by client."""
    per_client = metrics.forgetting_per_task(run.accuracy)
    means = metrics.mean_measured(per_client, axis=0)
    if np.isnan(means).all():
        return Section(
            "Catastrophic forgetting is not known",
            "No task was measured both early and at the end.",
        )
    # Above some ten clients the dots would merge into bars of their own.
    dots = per_client if len(per_client) <= _MULTIPLES else per_client[:0]
    drawn = np.concatenate([means, dots.ravel()])
    if np.nanmax(np.abs(drawn)) < _NOTICEABLE:
        return Section(
            "Nothing was forgotten",
            "Every earlier task ends as accurate as it ever was, for every client.",
        )
    forgotten = int((means >= _NOTICEABLE).sum())
    return Section(
        "Catastrophic forgetting averages "
        f"{numbers.fraction(run.summary.forgetting)}; {forgotten} "
        f"of {numbers.plural(len(means), 'earlier task')} lost accuracy",
        "Best accuracy before the last task minus the final accuracy (Chaudhry et al., "
        f"2018). Bars: {numbers.mean_over(run.summary.clients, 'client')}"
        + ("; dots: single clients." if len(dots) else ".")
        + " Below zero a task is better than it ever was.",
        bars_over_tasks(
            means,
            dots,
            "forgetting",
            (float(np.nanmin(drawn)), float(np.nanmax(drawn))),
            numbers.fraction,
            ("var(--c4)", "var(--c2)"),
            "Forgetting of every task",
            "task",
        ),
    )


def matrix_section(run: Run) -> Section:
    """Return the whole matrix of accuracies, mean over clients."""
    learned = numbers.fraction(run.summary.learning_accuracy)
    final = numbers.fraction(run.summary.average_accuracy)
    mean = numbers.mean_over(run.summary.clients, "client")
    what = f"Accuracy on every task after every task, {mean}"
    heading = f"Tasks are learned at {learned} (diagonal)"
    note = f"a[t, i]: accuracy on task i after learning task t, {mean}"
    if run.summary.progress is None:
        heading += f" and end at {final} (last row)"
        note += f"; row {run.summary.tasks - 1} is the end of the run"
    return Section(
        heading,
        f"{note}.",
        _triangle(run.mean_accuracy, _limits(run.mean_accuracy), what),
    )


def clients_section(run: Run) -> Section:
    """Return how the clients differ."""
    final = metrics.mean_measured(run.latest, axis=1)
    ends = run.summary.ends
    known = int((~np.isnan(final)).sum())
    if not known:
        heading = "No client was measured at the end"
    elif known == 1:
        heading = f"One client was measured at the end, at {np.nanmax(final):.3f}"
    else:
        heading = (
            f"Client {np.nanargmax(final)} {ends} best ({np.nanmax(final):.3f}), "
            f"client {np.nanargmin(final)} worst ({np.nanmin(final):.3f})"
        )
    limits = low, high = _limits(run.accuracy)
    noun, hidden = run.summary.noun, run.summary.hidden is not None
    last = run.summary.last
    picture: Chart | Charts
    if len(final) <= _MULTIPLES and run.summary.tasks > 1 and not hidden:
        note = f"The matrix of each client; pale is {low:.2f}, strong is {high:.2f}."
        picture = Charts(
            [
                _triangle(
                    matrix,
                    limits,
                    f"Accuracies of client {client}",
                    f"client {client}: {ends} at {numbers.fraction(final[client])}",
                )
                for client, matrix in enumerate(run.accuracy)
            ]
        )
    else:
        note = f"{last.capitalize()} accuracy of every client on each of its {noun}s."
        shown = [*range(len(final))]
        if len(final) > _LEGIBLE:
            half = _LEGIBLE // 2
            ranked = np.argsort(-final, kind="stable").tolist()
            end = max(known, _LEGIBLE)  # behind it are those who were not measured
            shown = ranked[:half] + ranked[end - half : end]
            note += (
                f" Shown are the best {half} and the worst {half} of "
                f"{len(final):,} clients."
            )
        picture = _by_client(run.latest, shown, limits, noun, last)
    return Section(heading, note, picture, _final_table(run))


def _triangle(
    matrix: Accuracy, limits: tuple[float, float], what: str, caption: str = ""
) -> Chart:
    """Return a matrix; with a caption it is a small one among others."""
    counted = [*map(str, range(len(matrix)))]
    return heat_map(
        matrix,
        Axis("after task t", counted),
        Axis("on task i", counted),
        limits,
        lambda t, i: f"after task {t}, on task {i}: {matrix[t, i]:.3f}",
        what,
        caption=caption,
    )


def _by_client(
    accuracy: Accuracy,
    clients: Sequence[int],
    limits: tuple[float, float],
    noun: str,
    last: str,
) -> Chart:
    shown = accuracy[clients]
    return heat_map(
        shown,
        Axis("client", [*map(str, clients)]),
        Axis(f"{last} accuracy on {noun}", [*map(str, range(shown.shape[1]))]),
        limits,
        lambda row, i: f"client {clients[row]}, {noun} {i}: {shown[row, i]:.3f}",
        f"{last.capitalize()} accuracy of every client on every {noun}",
    )


def _final_table(run: Run) -> Table:
    """Return the last measurement of each client and task, with the task's name."""
    by_round = sorted(run.measurements, key=lambda m: m.round)
    latest = {(m.client, m.task): m for m in by_round}
    return Table(
        ["client", run.summary.noun, "name", "round", "accuracy"],
        [
            [str(client), str(task), m.task_name, str(m.round), f"{m.accuracy:.3f}"]
            for (client, task), m in sorted(latest.items())
        ],
        "finals",
        words=3,
        folded=f"Every {run.summary.last} accuracy as a table",
    )


def _limits(accuracy: Accuracy) -> tuple[float, float]:
    """Return multiples of 0.05 that enclose every accuracy, at least 0.05 apart."""
    low = math.floor(float(np.nanmin(accuracy)) * 20 + 1e-9)
    high = math.ceil(float(np.nanmax(accuracy)) * 20 - 1e-9)
    return low / 20, max(high, low + 1) / 20
