"""The section on the accuracy of hidden concepts, round by round."""

import numpy as np

from fcl_flower.results.report.charts import lines, plot
from fcl_flower.results.report.html import page
from fcl_flower.results.report.html.markup import Markup
from fcl_flower.results.report.reader import Run, evaluations


def concepts_accuracy_section(run: Run) -> Markup:
    """Return how the accuracy of every concept went, mean over clients."""
    found = evaluations(run)
    series = [
        lines.Series(
            name, found.rounds, column, column * np.nan, plot.category_colour(k)
        )
        for k, (name, column) in enumerate(
            zip(run.scenario.concepts, found.by_task.T, strict=True)
        )
        if not np.isnan(column).all()
    ]
    if not series:
        return page.section("No evaluation is known", "accuracy.csv is empty.")
    ends = sorted((one.values[~np.isnan(one.values)][-1], one.name) for one in series)
    (low, worst), (high, best) = ends[0], ends[-1]
    heading = f"{best} ends highest ({high:.3f})"
    if len(ends) > 1:
        heading += f", {worst} lowest ({low:.3f})"
    return page.section(
        heading,
        "One line per hidden concept, mean over clients, on test data. Each client is "
        "tested on all concepts.",
        lines.lines(
            series,
            lines.over_rounds(run.summary.total_rounds),
            "Accuracy per concept over rounds",
        ),
    )
