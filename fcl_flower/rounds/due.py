"""When a service trains on the next task: a pure function of what clients have."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from fcl_flower.results.service import ClientTasks, Policy


class Due(NamedTuple):
    """When the next training begins if nothing changes, and what it waits for.

    ``at`` is infinite where it waits for clients and there is no deadline.
    """

    at: float
    sentence: str


def next_training(
    policy: Policy,
    clients: Mapping[int, ClientTasks],
    first_new: float | None,
    last_begun: float | None,
) -> Due:
    """Say when the clients that have a new task begin to train on it.

    That is when they are a quorum and have enough samples, or at the deadline, and in
    both cases no earlier than the schedule allows.

    Args:
        policy: the rule.
        clients: all that are known.
        first_new: since when a client has had a new task; None if none has.
        last_begun: when the last training began; None before the first.
    """
    ready = [found for found in clients.values() if found.ready]
    if not ready or first_new is None:
        return Due(math.inf, "a client with a new task")
    needed, samples = policy.needed(len(clients)), sum(one.samples for one in ready)
    missing = []
    if len(ready) < needed:
        missing.append(f"a new task at {needed} clients, where {len(ready)} have one")
    if samples < policy.min_samples:
        missing.append(f"{policy.min_samples} new samples, where there are {samples}")
    opens = -math.inf if last_begun is None else last_begun + policy.every
    if not missing:
        return Due(max(first_new, opens), "the time of the next training")
    waited = " and ".join(missing)
    if not policy.deadline:
        return Due(math.inf, waited)
    return Due(max(first_new + policy.deadline, opens), f"{waited}, or the deadline")
