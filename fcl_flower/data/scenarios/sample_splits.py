"""How the samples of a task are dealt to clients that all meet it: evenly, or skewed.

The protocol of TARGET (Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937) and
LANDER (Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101): a class is shared
out by a Dirichlet distribution over the clients, drawn for each task anew, and the draw
is repeated until every client has a sample. For even shares their released code cuts
shuffled samples; here they are dealt class by class, so that chance skews nothing.
"""

import math
from typing import Annotated, Any

from pydantic import AfterValidator

from fcl_flower.core.errors import refuse
from fcl_flower.data.partition import Indices, split_dirichlet, split_in_turn
from fcl_flower.data.scenarios.class_groups import Group
from fcl_flower.data.scenarios.spec import ScenarioSpec

BY_CLASS = "classes"
EVENLY = "iid"
MOST_DRAWS = 1000
MOST_BETA = 1e6
"""Nothing is more even, and far above the draw would overflow."""


def _known(value: str) -> str:
    if value not in {BY_CLASS, EVENLY}:
        dirichlet_beta(value)
    return value


SplitRule = Annotated[str, AfterValidator(_known)]


def dirichlet_beta(rule: str) -> float:
    """Return BETA of a rule ``dirichlet:BETA``.

    Raises:
        ValueError: it is no such rule; the message says what was expected.
    """
    name, _, number = rule.partition(":")
    try:
        beta = float(number)
    except ValueError:
        beta = math.nan
    if name != "dirichlet" or not 0 < beta <= MOST_BETA:
        expected = f"'{BY_CLASS}', '{EVENLY}' or 'dirichlet:BETA' with BETA above 0"
        raise ValueError(f"{expected} and at most {MOST_BETA:g}")
    return beta


def deal_samples(
    spec: ScenarioSpec[Any], rule: str, number: int, group: Group, samples: Indices
) -> list[Indices]:
    """Return each client's samples of a task, ascending; every client has some.

    Args:
        spec: how many clients there are, and what is drawn from.
        rule: ``iid`` or ``dirichlet:BETA``.
        number: of the task.
        group: its classes.
        samples: of the training split, all that clients have of the task.

    Raises:
        ConfigError: there are more clients than samples, or no draw gave every client
            one.
    """
    clients, labels = spec.clients, group.source.train.y[samples]
    if len(samples) < clients:
        raise refuse(
            "clients",
            clients,
            f"at most {len(samples)}, since task {group.name!r} has that many training "
            "samples",
        )
    if rule == EVENLY:
        rng = spec.rng("iid", number)
        parts = split_in_turn(labels, clients, rng)
        # The first ones get what is left over: not the same clients each time.
        return [samples[parts[place]] for place in rng.permutation(clients)]
    beta, rng = dirichlet_beta(rule), spec.rng("dirichlet", number)
    for _ in range(MOST_DRAWS):
        parts = split_dirichlet(labels, clients, beta, rng)
        if all(map(len, parts)):
            return [samples[part] for part in parts]
    raise refuse(
        "scenario.split",
        rule,
        f"a larger BETA or fewer clients than {clients}, since in {MOST_DRAWS} draws "
        f"somebody always had no sample of task {group.name!r}",
    )
