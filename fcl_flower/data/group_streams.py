"""Streams of class groups: who learns which group, and when."""

from collections.abc import Sequence

from fcl_flower.data.dataset import DataSet
from fcl_flower.data.draw import Draw
from fcl_flower.data.groups import Group, drawn_groups, superclass_groups
from fcl_flower.data.plan import Plan
from fcl_flower.data.samples import share_samples
from fcl_flower.errors import ConfigError


def overlapped(draw: Draw) -> Plan:
    """Give every client its own random choice of groups, in its own order."""
    groups = _groups_of_one(draw, "overlapped")
    streams = [
        draw.rng("order", client).permutation(len(groups))[: draw.tasks].tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def classes(draw: Draw) -> Plan:
    """Give every client the same groups, in its own order."""
    groups = _groups_of_one(draw, "classes")
    chosen = draw.rng("choice").permutation(len(groups))[: draw.tasks]
    streams = [
        draw.rng("order", client).permutation(chosen).tolist()
        for client in range(draw.clients)
    ]
    return _shared(draw, groups, streams)


def mixed(draw: Draw) -> Plan:
    """Deal the groups of all data sets so that no two clients share one."""
    groups = []
    for number, source in enumerate(draw.sources):
        rng = draw.rng("groups", number)
        drawn = drawn_groups(source, draw.classes_per_task, rng)
        if not drawn:
            raise ConfigError(
                f"classes_per_task: got {draw.classes_per_task}, expected at most the "
                f"{source.num_classes} classes of {source.name}."
            )
        groups += drawn
    wanted = draw.clients * draw.tasks
    if wanted > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks} for each of {draw.clients} clients, expected at "
            f"most {len(groups)} in all, which is what {len(draw.sources)} data sets "
            f"give at {draw.classes_per_task} classes a task."
        )
    order = draw.rng("order").permutation(len(groups))[:wanted]
    return _shared(draw, groups, order.reshape(draw.clients, draw.tasks).tolist())


def _shared(
    draw: Draw, groups: Sequence[Group], streams: Sequence[Sequence[int]]
) -> Plan:
    return share_samples(groups, streams, draw.valid_fraction, draw.seed)


def only_source(sources: Sequence[DataSet], scenario: str) -> DataSet:
    """Return the data set of a scenario that takes one.

    Raises:
        ConfigError: there are several.
    """
    if len(sources) > 1:
        names = [source.name for source in sources]
        raise ConfigError(
            f"datasets: got {names}, expected one data set for scenario {scenario}."
        )
    return sources[0]


def _groups_of_one(draw: Draw, scenario: str) -> list[Group]:
    """Return the groups of the only data set, at least as many as tasks."""
    source = only_source(draw.sources, scenario)
    groups = superclass_groups(source) if draw.classes_per_task == 5 else []
    groups = groups or drawn_groups(source, draw.classes_per_task, draw.rng("groups"))
    if draw.tasks > len(groups):
        raise ConfigError(
            f"tasks: got {draw.tasks}, expected at most the {len(groups)} groups of "
            f"{draw.classes_per_task} classes that {source.name} gives."
        )
    return groups
