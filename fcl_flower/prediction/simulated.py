"""The parts with which a client of a finished simulation predicts."""

import json
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Assignment, Payload, TaskStage
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.answers import MAX_RECEIVED
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.codec import WireFormat
from fcl_flower.rounds.copies import ModelCopy, ModelPublisher
from fcl_flower.rounds.place import place_of
from fcl_flower.rounds.versions import About, head_names
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

END = "end"
"""The name of a simulation's only version."""


def finished_run(folder: Path) -> Built:
    """Build the objects of a finished simulation, on the CPU.

    Raises:
        ConfigError: the run has not finished, or has kept no clients' states, or its
            server's state was removed.
    """
    if not (folder / "summary.json").is_file():
        raise config_error("folder", str(folder), "one with a finished run")
    if not (folder / CHECKPOINT).is_dir():
        expected = f"one with its {CHECKPOINT}/, which clients predict with"
        raise config_error("folder", str(folder), expected)
    config = RunConfig.read(folder / "config.toml", "folder")
    if not (folder / CLIENTS).is_dir():
        expected = "true for the simulation, as clients' states are removed otherwise"
        raise config_error("run.keep_clients", config.run.keep_clients, expected)
    return Built(resolve(config.replace(device="cpu")))


def end_of_run(run: Built, folder: Path, client: int) -> tuple[About, Payload, Payload]:
    """Find a client's version, its state and its received groups at the end of a run.

    Raises:
        ConfigError: there is no such client, or only the client knows its classes.
    """
    count = run.config.scenario.clients
    if not 0 <= client < count:
        raise config_error("client", client, f"0 to {count - 1}")
    if run.spec.local_data:
        expected = "one whose tasks and samples are known here"
        raise config_error("scenario.name", run.config.scenario.name, expected)
    saved = FolderStateStore(folder / CLIENTS / f"client-{client}").load()
    state = {} if saved is None else saved.state  # None: it never trained
    plan = run.scenario
    data = client_data(run, place_of(client), plan.num_tasks)
    tasks = range(0 if run.spec.hidden_tasks else plan.num_tasks)
    done = FolderStateStore(folder / CHECKPOINT).load()
    about = About(
        name=END,
        round=0 if done is None else done.round,
        tasks=tuple(map(data.classes, tasks)),
        head=head_names(run),
        client=client,
        epsilon=_spent(folder, client),
        spec=run.spec,
    )
    return about, state, received(run, folder, client)


def _spent(folder: Path, client: int) -> float | None:
    """Look up a client's privacy cost, in epsilon; None without privacy."""
    summary = json.loads((folder / "summary.json").read_text())
    by_client: dict[str, float] = summary.get("privacy", {}).get("by_client", {})
    return by_client.get(str(client))


def received(run: Built, folder: Path, client: int) -> Payload:
    """Receive the groups of an evaluation after the last round of a run.

    They pass the wire's form, in which numbers may be rounded.
    """
    strategy = run.strategy()
    saved = FolderStateStore(folder / CHECKPOINT).load()
    if strategy.predicts_locally or saved is None:
        return {}
    last = run.spec.tasks - 1
    stage = TaskStage(round=saved.round, task=last, starts_task=False, ends_task=True)
    payload = strategy.send_to_predict(saved.state, stage, client)
    wire, seed = WireFormat.of(run.config.federation, strategy), run.config.run.seed
    publisher = ModelPublisher(wire, seed)
    publisher.restore(saved.round, saved.beside.get("copies", {}))
    message, _ = publisher.message(client, payload, Assignment(stage), saved.state)
    return ModelCopy(wire, seed, client, {}).receive(message, MAX_RECEIVED)
