"""The head of the page of a run that is under way: how far it is, and what so far."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Block, Tiles, Value, Verdict
from fcl_flower.results.report.schema import Progress, Round, Summary


def under_way(
    summary: Summary, progress: Progress, rounds: Sequence[Round]
) -> Iterator[Block]:
    """Yield a sentence that says so, and the tiles.

    Args:
        summary: of the run so far.
        progress: where it stands.
        rounds: that are finished.
    """
    yield Verdict(
        f"This run has not finished: it is {where(progress)}. All numbers are those so "
        f"far.{_heard(progress)}"
    )
    yield Tiles(
        [
            (
                "Progress",
                numbers.share(len(rounds) / progress.rounds),
                _clients(progress),
            ),
            ("Time left", *_left(progress)),
            (
                "Accuracy so far",
                numbers.fraction(summary.average_accuracy),
                f"over the {summary.noun}s tested last, "
                + numbers.mean_over(summary.clients, "client"),
            ),
            ("Sent up", numbers.size_exact(summary.bytes_up), "in finished rounds"),
            ("Sent down", numbers.size_exact(summary.bytes_down), "in finished rounds"),
            (
                "Not used",
                str(sum(len(one.failed) for one in rounds)),
                "replies of clients that were refused, late or missing",
            ),
        ]
    )


def where(progress: Progress) -> str:
    """Return at which task and round a run is."""
    if not progress.round:
        return "starting"
    task = f"task {progress.task} of 0 to {progress.tasks - 1}, "
    step = f"round {progress.round} of {progress.rounds}"
    return f"at {task if progress.tasks > 1 else ''}{step}"


def time_left(progress: Progress) -> str:
    """Return how long the rest will take."""
    if progress.left is None:
        return numbers.UNKNOWN
    return f"about {numbers.duration(progress.left)}"


def _heard(progress: Progress) -> str:
    """Return when the run was last heard of, by which one sees that it has died."""
    if not progress.at:
        return ""
    at = datetime.fromtimestamp(progress.at, UTC)
    return f" It was last heard of on {at:%Y-%m-%d at %H:%M:%S} UTC."


def _clients(progress: Progress) -> str:
    if not progress.clients:
        return "of the rounds are finished"
    return (
        f"of the rounds are finished; in this one {progress.clients_done} of "
        f"{numbers.plural(progress.clients, 'client')} have answered"
    )


def _left(progress: Progress) -> tuple[Value, Value]:
    so_far = f"after {numbers.duration(progress.seconds)}"
    if progress.left is None:
        return time_left(progress), f"{so_far}; known when a round is finished"
    return time_left(progress), f"{so_far}; foretold from the rounds so far"
