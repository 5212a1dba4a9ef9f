"""Change a run between two of its rounds: lengthen it, or take a contribution out.

A run that gets more tasks or clients ends with the numbers of a run that was planned
that long from the start. Other changes are refused: a scenario that shares out its
samples anew among more tasks, or a head with more places. Local data are no part of a
plan. They allow any number of tasks and of clients. A client counts its own tasks from
the round in which it joins.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from fcl_flower.algorithms.base import adds_up
from fcl_flower.config.run_config import RunConfig, check_not_zero, long_keys
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.core.files import lock_folder, replace_file
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.checkpoint import FolderStateStore, Saved
from fcl_flower.rounds.pending_requests import PendingRequests
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


@contextmanager
def _stopped_run(
    folder: Path, key: str
) -> Iterator[tuple[Built, FolderStateStore, Saved]]:
    """Keep a run's server out of its folder, and load its last state."""
    file = folder / "config.toml"
    expected = (
        "the folder of a run that has finished a round, with its config.toml and "
        f"{CHECKPOINT}"
    )
    if not (file.is_file() and (folder / CHECKPOINT).is_dir()):
        raise config_error(key, str(folder), expected)
    with lock_folder(folder, key):
        store = FolderStateStore(folder / CHECKPOINT)
        saved = store.load()
        if saved is None:
            raise config_error(key, str(folder), expected)
        yield Built(resolve(RunConfig.read(file, key))), store, saved


def replace_config(folder: Path, config: RunConfig) -> None:
    """Replace the configuration of the run in a folder in one step."""
    text = config.replace(resume=False).to_file()
    replace_file(folder / "config.toml", text, durable=True)


# ---- more tasks or clients


def extend(
    folder: Path,
    *,
    tasks: int | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    sit_out: Sequence[int] = (),
) -> RunConfig:
    """Give the run in a folder more tasks or clients; return how it is resumed.

    Its summary is removed, as it is not finished any more. If the run is refused,
    nothing changes.

    Args:
        folder: of a run that has finished one round or more.
        tasks: number of all tasks of the longer run; None for as many as before.
        clients: number of all clients; None for as many as before.
        rounds: of each new task; None for as many as the last task has.
        sit_out: clients without data for the new tasks.

    Raises:
        ConfigError: the run has no state to go on from, or its numbers would differ
            from those of a run that was planned longer.
    """
    sizes = {"tasks": tasks, "clients": clients, "rounds": rounds}
    more = {key: value for key, value in sizes.items() if value is not None}
    check_not_zero(long_keys(more))
    summary = folder / "summary.json"
    with _stopped_run(folder, "resume") as (before, _, saved):
        config = _longer(before, before.config.replace(**more), saved, sit_out)
        _check_size(before, config, finished=summary.exists())
        if config.run.client_state != "context" and not (folder / CLIENTS).is_dir():
            expected = (
                "a run whose clients' states were kept: start it with --set "
                "run.keep_clients=true"
            )
            raise config_error("resume", str(folder), expected)
        after = Built(resolve(config))
        if not before.spec.local_data:
            _check_plan(before, after, saved)
        # In this order: if this process is killed between, the earlier run goes on.
        summary.unlink(missing_ok=True)
        replace_config(folder, config)
    return config


def _longer(
    before: Built, config: RunConfig, saved: Saved, sit_out: Sequence[int]
) -> RunConfig:
    """List the rounds and clients so far, and the clients that sit new tasks out."""
    old, rounds = before.schedule, config.federation.rounds_per_task
    lists: dict[str, str] = {}
    if rounds != old.rounds_per_task:
        if config.scenario.tasks <= old.tasks:
            expected = "none without more tasks, as those that are there have theirs"
            raise config_error("rounds", rounds, expected)
        by_task = (old.end(task) - old.end(task - 1) for task in range(old.tasks))
        lists["rounds_by_task"] = ",".join(map(str, by_task))
    if (joining := config.scenario.clients - old.clients) > 0:
        joined = [*(old.joined or [0] * old.clients), *[_rounds_done(saved)] * joining]
        lists["joined"] = ",".join(map(str, joined))
    added = range(old.tasks, config.scenario.tasks)
    out = [f"{client}:{task}" for task in added for client in sit_out]
    lists["sat_out"] = ",".join(filter(None, [config.scenario.sat_out, *out]))
    return config.replace(**lists, resume=True)


def _rounds_done(saved: Saved) -> int:
    """Count the finished rounds; in an asynchronous run those of the fastest client."""
    if "asked" not in saved.beside:
        return saved.round
    progress = PendingRequests.from_payload(saved.beside["asked"]).progress
    return max((int(client["done"]) for client in progress.values()), default=0)


def _check_size(before: Built, after: RunConfig, *, finished: bool) -> None:
    """Refuse fewer tasks or clients, and a finished run without new ones."""
    old, new = before.config.scenario, after.scenario
    for key in ("tasks", "clients"):
        have, wanted = getattr(old, key), getattr(new, key)
        if wanted < have:
            raise config_error(key, wanted, f"at least the {have} that the run has")
    if new.clients > old.clients and not before.spec.local_data:
        why = f"scenario {old.name} has shared out its samples"
        expected = f"{old.clients}, among which {why}: others join with local data"
        raise config_error("clients", new.clients, expected)
    if finished and new.tasks == old.tasks:
        expected = f"more than the {old.tasks} that this run has finished"
        raise config_error("tasks", new.tasks, expected)


def _check_plan(before: Built, after: Built, saved: Saved) -> None:
    """Refuse a plan that does not begin with the old one."""
    config, tasks = before.config, before.config.scenario.tasks
    ended = (
        config.asynchronous.enabled
        and _rounds_done(saved) >= before.schedule.num_rounds
    )
    if before.scenario_entry.hidden or config.scenario.joint:
        why = "every round trains on what all tasks share out"
    elif before.algorithm.needs_classes:
        why = f"{config.strategy.name} is told the classes of all tasks"
    elif any(
        [task.to_dict() for task in old] != [task.to_dict() for task in new[:tasks]]
        for old, new in zip(
            before.scenario.clients, after.scenario.clients, strict=True
        )
    ):
        why = f"scenario {config.scenario.name} shares out its samples anew among more "
        why += "tasks"
    elif not _begins(before, after):
        why = "the network has other places for classes with more tasks"
    elif ended and not adds_up(before.strategy()):
        why = "a client that came to its end before others would have gone on meanwhile"
    else:
        return
    raise ConfigError(
        f"tasks: got {after.config.scenario.tasks}, expected {tasks} as planned, since "
        f"{why}: start a new run that has all tasks, or let clients have local data"
    )


def _begins(before: Built, after: Built) -> bool:
    """Tell whether the longer run's network has all initial values of the old one."""
    old, new = (run.model().state_dict() for run in (before, after))
    return all(
        name in new and torch.equal(tensor, new[name]) for name, tensor in old.items()
    )


# ---- without a client


REMAINS = (
    "what clients received before",
    "the accuracies in the record of the run",
    "copies of the folder",
)
"""The traces of a client that no server can take back."""


class Forgotten(NamedTuple):
    """The strategy's diagnostics of the state before and after, by name."""

    round: int
    before: Mapping[str, float]
    after: Mapping[str, float]


def forget(folder: Path, client: int, task: int | None = None) -> Forgotten:
    """Take a client's contribution, to one task or all, out of a run's checkpoint.

    Earlier versions of the state, which have the contribution, are removed. A resumed
    run goes on with the rest.
    """
    with _stopped_run(folder, "folder") as (run, store, saved):
        strategy, beside = run.strategy(), dict(saved.beside)
        left = strategy.forget(saved.state, client, task)
        if "asked" in beside:  # the pending requests have the state before
            pending = PendingRequests.from_payload(beside["asked"])
            beside["asked"] = pending.without(pending.progress).to_payload()
        store.save(left, saved.round, beside)
        store.drop_earlier()

    def described(state: Payload) -> Mapping[str, float]:
        stage = TaskStage(0, 0, starts_task=False, ends_task=False)
        values = strategy.report(state, stage, {}).items()
        return {name: value for name, value in values if isinstance(value, float)}

    return Forgotten(saved.round, described(saved.state), described(left))
