"""The section on the accuracy over all classes seen, task by task."""

import numpy as np

from fcl_flower.report import lines, numbers, page
from fcl_flower.report.markup import Markup
from fcl_flower.report.records import Summary


def classes_seen_section(summary: Summary) -> Markup:
    """Return how well all classes so far were told apart after each task."""
    seen = np.array(summary.sample_accuracy, np.float64)
    if np.isnan(seen).all():
        return page.section(
            "The accuracy over all classes seen is not known", "Nobody was tested."
        )
    known = seen[~np.isnan(seen)]
    line = lines.Series(
        "all classes seen", np.arange(len(seen)), seen, seen * np.nan, "var(--c1)"
    )
    return page.section(
        f"Over all classes seen, accuracy goes from {numbers.fraction(known[0])} to "
        f"{numbers.fraction(known[-1])}; mean over tasks {known.mean():.3f}",
        "Share of right answers among the test samples of all classes so far, each "
        "sample once, without being told the task.",
        lines.lines(
            [line],
            lines.over_tasks(len(seen)),
            "Accuracy over all classes seen, after each task",
        ),
    )
