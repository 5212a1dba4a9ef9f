"""The scenario of changing domains: the same classes, whose inputs look different.

A domain is a data set, such as photographs, sketches or the patients of a hospital. In
the field this is domain-incremental learning (van de Ven et al., Nature Machine
Intelligence 2022, https://doi.org/10.1038/s42256-022-00568-3): the task of a sample is
unknown when it is classified.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from fcl_flower.config.parsing import Params
from fcl_flower.core.errors import config_error
from fcl_flower.data.datasets import Dataset
from fcl_flower.data.scenarios.groups import (
    EVENLY,
    Group,
    ShareRule,
    share_samples,
)
from fcl_flower.data.scenarios.plan import ScenarioSpec, TaskStreams, same_classes


class DomainsParams(Params):
    """The settings of the scenario ``domains``."""

    order: Literal["same", "rotated", "random"] = "same"
    """Order in which a client meets the domains. With same, all clients follow the
    order of data.datasets. With rotated, client k follows it from domain k on. With
    random, each client has an order of its own."""
    split: ShareRule = EVENLY
    """Rule by which the clients that meet a domain share its training samples: iid for
    equal parts; or dirichlet:BETA, skewed by class and in size, such as
    dirichlet:0.5."""


Spec: TypeAlias = ScenarioSpec[DomainsParams]


def domain_tasks(spec: Spec) -> TaskStreams:
    """Give each client a domain a task, each with all classes.

    The clients that meet a domain share out its training samples, class by class. With
    the order ``rotated`` and one task, each client has a domain of its own.
    """
    domains = len(spec.sources)
    if spec.tasks > domains:
        expected = f"at most {domains}, one for each data set, which is a domain"
        raise config_error("tasks", spec.tasks, expected)
    if spec.classes_per_task:
        expected = "none, since each domain has all classes"
        raise config_error("classes_per_task", spec.classes_per_task, expected)
    groups = [
        Group(source.name, source, tuple(range(source.num_classes)))
        for source in spec.sources
    ]
    streams = [_order(spec, client)[: spec.tasks] for client in range(spec.clients)]
    return share_samples(spec, groups, streams, spec.params.split)


def _order(spec: Spec, client: int) -> list[int]:
    domains = np.arange(len(spec.sources))
    if spec.params.order == "random":
        domains = spec.rng("domains", client).permutation(domains)
    first = client if spec.params.order == "rotated" else 0
    order: list[int] = np.roll(domains, -first).tolist()
    return order


def merged_domains(
    sources: Sequence[Dataset],
) -> Mapping[tuple[str, int], tuple[str, int]]:
    """Merge the classes of one name, as `same_classes` does; refuse other classes."""
    first, *others = sources
    for other in others:
        if different := set(first.class_names) ^ set(other.class_names):
            raise config_error(
                "datasets",
                [first.name, other.name],
                f"the same classes, but one alone has {min(different)!r}",
            )
    return same_classes(sources)
