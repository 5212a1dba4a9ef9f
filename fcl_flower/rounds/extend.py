"""Give a run more tasks or clients, so that it goes on where it was.

It ends with the numbers of a run that was planned that long from the start. What would
not is refused: a scenario that shares out its samples anew among more tasks, or a head
with more places. Local data are no part of a plan, and take any number of tasks, and of
clients, which count their own tasks from the round in which they join.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from fcl_flower.algorithms.base import adds_up
from fcl_flower.config.run_config import RunConfig, check_not_zero, long_keys
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.core.files import lock_folder, replace_file
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.checkpoint import FolderStateStore, Saved
from fcl_flower.rounds.pending_requests import PendingRequests
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def extend(
    folder: Path,
    *,
    tasks: int | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    sit_out: Sequence[int] = (),
) -> RunConfig:
    """Give the run in a folder more tasks or clients; return how it is resumed.

    Its summary is removed: it has not finished any more. Nothing changes where the run
    is refused.

    Args:
        folder: of a run that has finished a round, or all.
        tasks: of the longer run, in all; None for as many as before.
        clients: likewise.
        rounds: of each task that is added; None for as many as the last one has.
        sit_out: clients without data for the tasks that are added, which are none of
            their own.

    Raises:
        ConfigError: the run has no state to go on from, or its numbers would not be
            those of a run that was planned longer.
    """
    file = folder / "config.toml"
    if not (file.is_file() and (folder / CHECKPOINT).is_dir()):
        expected = f"the folder of a run that has finished a round, with {CHECKPOINT}"
        raise config_error("resume", str(folder), expected)
    with lock_folder(folder, "resume"):
        saved = FolderStateStore(folder / CHECKPOINT).load()
        if saved is None:
            expected = "the folder of a run that has finished a round"
            raise config_error("resume", str(folder), expected)
        before = Built(resolve(RunConfig.read(file, "resume")))
        config = _longer(before, saved, tasks, clients, rounds)
        config = _without(config, before.schedule.tasks, sit_out)
        summary = folder / "summary.json"
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
        # In this order: what is killed between is a run of before that goes on.
        summary.unlink(missing_ok=True)
        replace_config(folder, config)
    return config


def _longer(
    before: Built,
    saved: Saved,
    tasks: int | None,
    clients: int | None,
    rounds: int | None,
) -> RunConfig:
    given = {"tasks": tasks, "clients": clients, "rounds": rounds}
    settings = {key: value for key, value in given.items() if value is not None}
    check_not_zero(long_keys(settings))
    config, old = before.config.replace(**settings, resume=True), before.schedule
    if config.federation.rounds_per_task != old.rounds_per_task:
        if config.scenario.tasks <= old.tasks:
            expected = "none without more tasks, as those that are there have theirs"
            raise config_error("rounds", rounds, expected)
        listed = [old.end(task) - old.end(task - 1) for task in range(old.tasks)]
        config = config.replace(rounds_by_task=",".join(map(str, listed)))
    if (more := config.scenario.clients - old.clients) > 0:
        joined = [*(old.joined or [0] * old.clients), *[_done(saved)] * more]
        config = config.replace(joined=",".join(map(str, joined)))
    return config


def _without(config: RunConfig, learned: int, sit_out: Sequence[int]) -> RunConfig:
    section = config.scenario
    added = range(learned, section.tasks)
    pairs = [f"{client}:{task}" for task in added for client in sit_out]
    return config.replace(sat_out=",".join(filter(None, [section.sat_out, *pairs])))


def _done(saved: Saved) -> int:
    """Count the rounds that are over; of an asynchronous run the fastest client's."""
    asked = saved.beside.get("asked")
    if asked is None:
        return saved.round
    progress = PendingRequests.from_payload(asked).progress
    return max((int(found["done"]) for found in progress.values()), default=0)


def _check_size(before: Built, after: RunConfig, *, finished: bool) -> None:
    """Refuse fewer tasks or clients, and a finished run without any more."""
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
    """Refuse a plan of which the old one is not the beginning."""
    old, new, tasks = before.scenario, after.scenario, before.config.scenario.tasks
    name, make = before.config.scenario.name, before.algorithm.load_server()
    asynchronous = before.config.asynchronous.enabled
    ended = asynchronous and _done(saved) >= before.schedule.num_rounds
    if before.scenario_entry.hidden or before.config.scenario.joint:
        why = "every round trains on what all tasks share out"
    elif make.needs_classes:
        why = f"{before.config.strategy.name} is told the classes of all tasks"
    elif any(
        [task.to_dict() for task in one] != [task.to_dict() for task in more[:tasks]]
        for one, more in zip(old.clients, new.clients, strict=True)
    ):
        why = f"scenario {name} shares out its samples anew among more tasks"
    elif not _begins(before, after):
        why = "the network has other places for classes with more tasks"
    elif ended and not adds_up(before.strategy()):
        why = "a client that came to its end before others would have gone on meanwhile"
    else:
        return
    raise ConfigError(
        f"tasks: got {new.num_tasks}, expected {tasks} as planned, since {why}: start "
        "a new run that has all tasks, or let clients have local data"
    )


def _begins(before: Built, after: Built) -> bool:
    """Tell whether all that a network begins with is in the one of the longer run."""
    old, new = (made.model().state_dict() for made in (before, after))
    return all(
        name in new and torch.equal(tensor, new[name]) for name, tensor in old.items()
    )


def replace_config(folder: Path, config: RunConfig) -> None:
    """Replace the configuration of the run in a folder in one step."""
    text = config.replace(resume=False).to_file()
    replace_file(folder / "config.toml", text, durable=True)
