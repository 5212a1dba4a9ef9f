"""(d) Secure aggregation: what a round costs with it, over the number of its clients.

FedAvg of the small network on digits, ten training images a client, all clients in
every round. Runs with and without masks take turns; a round is what a run of more
rounds costs beyond one of a single round. All clients compute in one process one after
the other, so that the processor seconds of a round are those of all parties together.
"""

import math
from dataclasses import dataclass
from functools import partial

from many_clients import run_of
from results import Results, Row, of_a_further, ratios, spread, table

SIDES = {"alone": False, "masked": True}
"""Whether updates are summed up under masks, by name."""


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        clients: how many, one run after the other; at least 3.
        visits: by which the longer run exceeds the shorter, at least.
    """

    clients: tuple[int, ...] = (10, 25, 50, 100, 200, 1000)
    visits: int = 200

    def rounds(self, clients: int) -> tuple[int, int]:
        """Return the rounds of the short and of the long run."""
        return 1, 1 + math.ceil(self.visits / clients)


FULL, QUICK = Size(), Size((3, 10), 20)


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Measure every number of clients with and without masks, several times."""
    for repeat in range(repeats):
        for clients in size.clients:
            for name, secure in SIDES.items():
                settings = {"federation.secure_aggregation": secure}
                for rounds in size.rounds(clients):
                    results.once(
                        {**_key(clients, name), "repeat": repeat, "rounds": rounds},
                        partial(run_of, clients, clients, "fedavg", rounds, settings),
                    )


def _key(clients: int, name: str) -> Row:
    return {"part": "d", "clients": clients, "side": name}


def report(results: Results, size: Size) -> str:
    """Return the table, a line for each number of clients."""
    lines = []
    for clients in size.clients:
        cost = {}
        for name in SIDES:
            few, many = (
                results.of(**_key(clients, name), rounds=rounds)
                for rounds in size.rounds(clients)
            )
            cost[name] = {
                of: of_a_further("rounds", of, few, many)
                for of in ("cpu", "up", "down")
            }
        plain, masked = cost["alone"], cost["masked"]
        more = zip(plain["cpu"], masked["cpu"], strict=True)
        lines.append(
            [
                f"{clients:,}",
                *(spread(cost[name]["cpu"]) for name in SIDES),
                ratios(masked["cpu"], plain["cpu"]),
                spread([1000 * (b - a) / clients for a, b in more]),
                *(
                    f"{cost[name][way][0] / clients / 1000:.1f} kB"
                    for way in ("up", "down")
                    for name in SIDES
                ),
            ]
        )
    head = (
        *("clients", "processor s a round", "masked", "times", "more a client, ms"),
        *("up a client", "masked", "down a client", "masked"),
    )
    return table(head, lines)
