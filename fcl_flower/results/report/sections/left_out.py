"""The section on clients whose replies were not used, and why."""

from collections import Counter
from collections.abc import Sequence

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Section, Table
from fcl_flower.results.report.schema import Round

_OPEN = 20
"""Clients up to which the table is shown without a click."""


def left_out_section(rounds: Sequence[Round]) -> Section:
    """Return a row for each client that was left out of a round.

    Args:
        rounds: of which at least one lacks a client.
    """
    times = Counter(client for one in rounds for client in one.failed)
    last = {client: one for one in rounds for client in one.failed}
    clients = sorted(times)
    return Section(
        f"{numbers.plural(len(clients), 'client')} left out of a round, "
        f"{numbers.plural(times.total(), 'time')} in all",
        "An update or an evaluation was refused, came late or did not come. The reason "
        "is that of the last time, in the words of the server; it may quote what the "
        "client sent.",
        Table(
            ["client", "last reason", "times", "last in round"],
            [
                [
                    str(client),
                    last[client].reasons.get(client, numbers.UNKNOWN),
                    str(times[client]),
                    str(last[client].round),
                ]
                for client in clients
            ],
            "left-out",
            words=2,
            folded="Show the reasons" if len(clients) > _OPEN else "",
        ),
    )
