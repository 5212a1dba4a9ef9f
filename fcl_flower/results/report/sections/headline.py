"""The tiles at the head of a run's page: what came out, in a few figures."""

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Tiles, Value
from fcl_flower.results.report.schema import Summary

Tile = tuple[str, Value, Value]


def headline(summary: Summary) -> Tiles:
    """Return what was learned, and what it took."""
    learned = _of_tasks(summary) if summary.hidden is None else _of_concepts(summary)
    before = _before_aggregation(summary)
    return Tiles(
        [*learned, *_by_class(summary), *before, *_privacy(summary), *_costs(summary)]
    )


def _of_tasks(summary: Summary) -> list[Tile]:
    return [
        (
            "Average accuracy",
            numbers.fraction(summary.average_accuracy),
            "over all tasks at the end, "
            + numbers.mean_over(summary.clients, "client"),
        ),
        (
            "Learning accuracy",
            numbers.fraction(summary.learning_accuracy),
            "of each task just after it was learned",
        ),
        (
            "Catastrophic forgetting",
            numbers.fraction(summary.forgetting),
            "best earlier accuracy minus the final one; less is better",
        ),
        (
            "Backward transfer",
            numbers.signed(summary.backward_transfer),
            "final accuracy minus that when learned; more is better",
        ),
    ]


def _of_concepts(summary: Summary) -> list[Tile]:
    """Return the same of hidden concepts, for which there is no time of learning."""
    tiles: list[Tile] = [
        (
            "Average accuracy",
            numbers.fraction(summary.average_accuracy),
            "over all concepts at the end, "
            + numbers.mean_over(summary.clients, "client"),
        ),
        (
            "Catastrophic forgetting",
            numbers.fraction(summary.forgetting),
            "best earlier evaluation of a concept minus the last; less is better",
        ),
    ]
    found = summary.concepts
    if found.effectiveness is not None:
        tiles.append(
            (
                "Matching effectiveness",
                numbers.fraction(found.effectiveness),
                "fraction of updates that went into the concept model they "
                "started from",
            )
        )
    if found.ari is not None:
        perfect = found.perfect_rounds
        tiles.append(
            (
                "Clustering",
                numbers.fraction(found.ari),
                "adjusted Rand index, mean over rounds"
                + ("" if perfect is None else f"; perfect in {perfect:.0%} of them"),
            )
        )
    return tiles


def _by_class(summary: Summary) -> list[Tile]:
    """Return what counts by class come to, where there are any."""
    if summary.balanced_accuracy is None:
        return []
    return [
        (
            "Balanced accuracy",
            numbers.fraction(summary.balanced_accuracy),
            "each class of a task counts alike",
        ),
        (
            "Macro F1",
            numbers.fraction(summary.macro_f1),
            "mean over a task's classes of the harmonic mean of precision and recall",
        ),
    ]


def _before_aggregation(summary: Summary) -> list[Tile]:
    """Return the accuracy before the aggregation, where it is another one."""
    found = summary.before_aggregation.average_accuracy
    if found is None or found == summary.average_accuracy:
        return []
    return [
        (
            "Before aggregation",
            numbers.fraction(found),
            "average accuracy of what each client has trained itself",
        )
    ]


def _privacy(summary: Summary) -> list[Tile]:
    """Return what differential privacy promises, where there is any."""
    found = summary.privacy
    if found is None:
        return []
    hidden = {"client": "all data of a client", "example": "one example of a client"}
    budget = f", of a budget of {found.budget:g}" if found.budget else ""
    return [
        (
            "Differential privacy",
            f"ε = {found.epsilon:.3g}",
            f"at δ = {found.delta:g}{budget}; hides {hidden[found.unit]} from "
            f"{'the server' if found.observer == 'server' else 'other clients'}",
        )
    ]


def _costs(summary: Summary) -> list[Tile]:
    return [
        (
            "Sent up",
            numbers.size_exact(summary.bytes_up),
            _nominal(summary.nominal_bytes_up),
        ),
        (
            "Sent down",
            numbers.size_exact(summary.bytes_down),
            _nominal(summary.nominal_bytes_down),
        ),
        (
            "Model size",
            numbers.size_exact(summary.model_bytes),
            "what one client must keep, "
            + numbers.mean_over(summary.clients, "client"),
        ),
        (
            "Time",
            numbers.duration(summary.seconds),
            f"for {summary.steps}{_simulated_time(summary.clock)}",
        ),
        *_of_machines(summary),
    ]


def _of_machines(summary: Summary) -> list[Tile]:
    """Return what the run took of machines, as far as that is known."""
    found: list[Tile] = []
    if summary.multiply_adds is not None:
        what = "of all clients' training"
        computed = numbers.operations(summary.multiply_adds)
        found.append(("Multiply-adds", computed, what))
    if summary.peak_memory is not None:
        what = "at most, of the server's process and those that it started"
        found.append(("Peak memory", numbers.size_exact(summary.peak_memory), what))
    return found


def _simulated_time(clock: float | None) -> str:
    """Return the time on the simulated clock, if there is one."""
    return "" if clock is None else f"; {clock:g} on the simulated clock"


def _nominal(count: int) -> Cell:
    """Return nominal bytes (FedWeIT, table 2), beside those of the messages."""
    told = f"{numbers.size(count)} nominal: 4 bytes per non-zero parameter"
    return Cell(told, f"{count:,} bytes")
