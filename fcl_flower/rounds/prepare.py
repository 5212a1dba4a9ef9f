"""The beginning of a run: from a configuration and connected clients to a loop."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import Any

import numpy as np

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.registry import local_only_counterpart
from fcl_flower.config.run_config import RunConfig, refuse_attack
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import RoundError, config_error
from fcl_flower.core.files import lock_folder
from fcl_flower.core.log import log
from fcl_flower.core.schedule import Schedule, SimulatedClock
from fcl_flower.core.types import AnyArray, Arrays, Payload, TaskStage
from fcl_flower.data.examples import TaskClasses
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.results.events import Event
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.run_folder import CHECKPOINT, free_folder
from fcl_flower.rounds import versions
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.class_names import ClassPlaces
from fcl_flower.rounds.clients import NUMBERS_FILE, Asker, ClientRegistry
from fcl_flower.rounds.codec import WireFormat
from fcl_flower.rounds.pacing import Quorum
from fcl_flower.rounds.pixel_sums import agree_on_pixels
from fcl_flower.rounds.replies import ReplyReader
from fcl_flower.rounds.secure.server import Channel, SecureAggregationStrategy
from fcl_flower.rounds.server import Server
from fcl_flower.rounds.transport import Transport
from fcl_flower.setup.build import Built, built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot

INITIAL = "initial_arrays"
"""Flower's name of the caller's initial model."""
LARGEST_MESSAGE = 300 * 10**6
"""The largest message over a network that was tested, in bytes; see
experiments/large_updates."""


@dataclass(frozen=True, slots=True)
class FederatedRun:
    """A run that is ready for a loop.

    Attributes:
        server: with its state, fresh or resumed.
        schedule: maps rounds to tasks and participants.
        clock: simulated durations, if there are any.
        config: of the run, with nothing left open.
        timeout: seconds to wait for clients and for their replies.
        ledger: the privacy cost of clients' data; None unless clients are the privacy
            unit.
        agree_on_masks: called with the participants before each attempt at a round;
            returns why some of them are left out.
        agree_on_classes: called before that with the stage of each connected client;
            returns why some of them are left out.
    """

    server: Server
    schedule: Schedule
    clock: SimulatedClock
    config: RunConfig
    timeout: float
    ledger: Ledger | None = None
    agree_on_masks: Callable[[Sequence[int]], Mapping[int, str]] = lambda clients: {}
    agree_on_classes: Callable[[Mapping[int, TaskStage]], Mapping[int, str]] = (
        lambda stages: {}
    )


def prepare(
    config: RunConfig,
    transport: Transport,
    initial_model: Arrays | None,
    num_rounds: int | None,
    timeout: float,
    stack: ExitStack,
) -> FederatedRun:
    """Wait for the clients and build a run; resume it where that is configured.

    ``stack`` keeps other processes out of the run's folder, and metrics open, until it
    is closed. For the other arguments see `run_federation`.
    """
    clients = config.scenario.clients
    numbers = None
    if config.run.resume and config.run.output:
        numbers = Path(config.run.output) / NUMBERS_FILE
    registry = ClientRegistry(transport, clients, numbers)
    # First of all: if its port is taken, the run has not waited or written yet.
    exporters = _exporters(config.run.metrics_port, registry, stack)
    if not transport.simulated:
        refuse_attack(config)
    plan = built(_resolve(config, clients or _count(registry, timeout), num_rounds))
    plan = _announced(plan, Asker(registry, timeout))
    config, scenario, network = plan.config, plan.scenario, plan.model()
    model: Arrays = snapshot(network, network.shared_names())
    if initial_model:
        model = _checked(initial_model, model)
    strategy = plan.strategy(network)
    secure = None
    if config.federation.secure_aggregation:
        strategy = secure = SecureAggregationStrategy(strategy, config.federation)
    remarks = _remarks(plan, strategy, network.classes)
    counterpart = local_only_counterpart(config)
    folder = Path(config.run.output) if config.run.output else free_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(lock_folder(folder, "run.output"))
    registry.keep_numbers(folder)
    ledger = _ledger(config, folder, simulated=transport.simulated)
    recorder = Recorder(
        folder,
        config,
        scenario,
        remarks=remarks,
        counterpart=None if counterpart is None else counterpart.title,
        single_task=plan.algorithm.single_task,
        ledger=ledger,
        listeners=[*exporters, *_trackers(config, folder, stack)],
        classes=network.classes if config.federation.per_class else 0,
        class_names=_class_names(config, scenario, network),
        simulated=transport.simulated,
    )
    server = Server(
        strategy,
        registry,
        recorder,
        FolderStateStore(folder / CHECKPOINT),
        wire=WireFormat.of(config.federation, strategy),
        reader=_reader(plan, strategy, registry, network),
        evaluates_updates=_evaluates_updates(plan),
        largest_message=math.inf if transport.simulated else LARGEST_MESSAGE,
        # A simulation keeps only its end, in the checkpoint.
        on_task_end=(
            None
            if transport.simulated
            else partial(_keep_version, folder, registry, ledger)
        ),
    )
    if config.run.resume and server.resume():
        log(INFO, "resuming after round %d", server.done)
        if ledger is not None:
            ledger.restore()
    else:
        server.begin(model)
        if initial_model and not server.state:
            raise config_error(
                INITIAL,
                f"{len(initial_model)} tensors",
                f"none, as {config.title} shares no model",
            )
    clock = SimulatedClock(config.asynchronous.durations, recorder.record.clock)
    run = FederatedRun(server, plan.schedule, clock, config, timeout, ledger)
    section = config.federation
    quorum = Quorum(section.quorum, section.deadline_factor)
    if plan.spec.names_classes:
        asker = Asker(registry, timeout, quorum.closes_at)
        holders = recorder.record.begun.class_holders
        places = ClassPlaces(asker, plan.spec, recorder.name_classes, holders)
        run = replace(run, agree_on_classes=places.agree)
    if secure is None:
        return run
    channel = Channel(registry, timeout, lambda: server.traffic, quorum)
    return replace(run, agree_on_masks=partial(secure.begin, channel))


def _announced(plan: Built, asker: Asker) -> Built:
    """Announce the run to enough clients, and settle what depends on their data."""
    registry, schedule = asker.registry, plan.schedule
    last = schedule.tasks - 1
    without = {client for client, task in schedule.sat_out if task == last}
    needed = plan.config.federation.updates_needed(
        len(schedule.participants(schedule.num_rounds))
    )
    registry.announce(plan.spec)
    registry.wait_for_clients(needed, asker.timeout, without)
    if plan.config.data.normalise == "data":
        plan = built(agree_on_pixels(asker, plan.spec, schedule))
        registry.announce(plan.spec)
        registry.wait_for_clients(needed, asker.timeout, without)
    return plan


def _remarks(
    plan: Built, strategy: ServerStrategy[Any], classes: int
) -> dict[str, str]:
    """Collect remarks for readers of the results, by topic; log them."""
    words = plan.word_vectors
    remarks = {} if words is None else {"word vectors": words.origin}
    remarks |= plan.params.remarks(classes, plan.config.scenario.clients)
    remarks |= strategy.remarks()
    remarks |= _sat_out(plan.schedule)
    remarks |= _columns(plan)
    for topic, remark in remarks.items():
        log(INFO, "%s: %s", topic, remark)
    return remarks


def _ledger(config: RunConfig, folder: Path, *, simulated: bool) -> Ledger | None:
    if config.privacy.unit != "client":
        return None
    plain = config.federation.aggregation == "mean"
    return Ledger(config.privacy, folder, plain_mean=plain, simulated=simulated)


def _sat_out(schedule: Schedule) -> dict[str, str]:
    clauses = [
        f"client {client} had none for {', '.join(map(str, tasks))}"
        for client in range(schedule.clients)
        if (tasks := sorted(t for c, t in schedule.sat_out if c == client))
    ]
    return {"tasks without data": "; ".join(clauses)} if clauses else {}


def _columns(plan: Built) -> dict[str, str]:
    """Say that no check compares the columns of the clients' tables."""
    compared = plan.config.data.columns or not plan.spec.local_data
    if compared or plan.spec.modality != "tabular":
        return {}
    why = "no names in data.columns, which fcl check-data proposes"
    return {"columns of tables": f"not compared between clients: {why}"}


def _checked(initial: Arrays, model: Arrays) -> Arrays:
    """Check a caller's initial tensors, and put them in the order of ``model``."""
    if initial.keys() != model.keys():
        raise config_error(INITIAL, sorted(initial), f"the tensors {sorted(model)}")
    tensors: dict[str, AnyArray] = {}
    for name, expected in model.items():
        key, tensor = f"{INITIAL} {name}", np.asarray(initial[name])
        if (tensor.shape, tensor.dtype) != (expected.shape, expected.dtype):
            raise config_error(
                key,
                f"{tensor.dtype} {tensor.shape}",
                f"{expected.dtype} {expected.shape}",
            )
        if not np.isfinite(tensor).all():
            raise config_error(key, "NaN or infinity", "finite values")
        tensors[name] = tensor
    return tensors


def _keep_version(
    folder: Path,
    registry: ClientRegistry,
    ledger: Ledger | None,
    stage: TaskStage,
    state: Payload,
) -> None:
    """Keep a version of the server's state after a task."""
    plan = Built(RunSpec.from_json(registry.run_json))  # with all classes named so far
    numbers = range(1, stage.task + 2)
    spent = {} if ledger is None else ledger.epsilons("clients")
    about = versions.About(
        name=f"task-{stage.task + 1:02}",
        round=stage.round,
        tasks=tuple(TaskClasses(f"task-{number:02}", (), ()) for number in numbers),
        head=versions.head_names(plan),
        client=None,
        epsilon=max(spent.values(), default=None),
        spec=plan.spec,
    )
    groups = {f"state/{group}": arrays for group, arrays in state.items()}
    versions.write(folder / versions.MODELS, about, groups)


def _class_names(
    config: RunConfig, scenario: Scenario, network: MultiHeadModel
) -> Sequence[str]:
    if config.model.growing_head and scenario.local_data:
        return config.data.classes
    if not (config.federation.per_class and network.single_head):
        return ()
    names = dict(enumerate(config.data.classes)) or scenario.class_names
    return [names.get(place, f"class {place}") for place in range(network.classes)]


def _count(registry: ClientRegistry, timeout: float) -> int:
    registry.wait_for_clients(1, timeout)
    clients = registry.clients
    if clients != tuple(range(len(clients))):
        raise RoundError(
            f"scenario.clients: got partitions {list(clients)}, expected 0 to "
            f"{len(clients) - 1}"
        )
    return len(clients)


def _exporters(
    port: int, registry: ClientRegistry, stack: ExitStack
) -> Sequence[Callable[[Event], None]]:
    if not port:
        return ()
    from fcl_flower.results.prometheus import Exporter, exporting

    exporter = Exporter(lambda: len(registry.clients))
    stack.enter_context(exporting("run.metrics_port", port, exporter.registry))
    return [exporter.add]


def _trackers(
    config: RunConfig, folder: Path, stack: ExitStack
) -> Sequence[Callable[[Event], None]]:
    if not config.run.trackers:
        return ()
    from fcl_flower.results.trackers import TRACKERS, tracking

    trackers = {name: TRACKERS[name](config, folder) for name in config.run.trackers}
    return [stack.enter_context(tracking(trackers))]


def _reader(
    plan: Built,
    strategy: ServerStrategy[Any],
    registry: ClientRegistry,
    network: MultiHeadModel,
) -> ReplyReader:
    scenario, section = plan.scenario, plan.config.federation
    samples = None
    if not scenario.local_data:
        samples = [[len(task.test) for task in tasks] for tasks in scenario.clients]
    return ReplyReader(
        strategy,
        registry,
        max_update_norm=section.max_update_norm,
        classes=network.classes if section.per_class else 0,
        samples=samples,
        counts_multiply_adds=plan.config.training.count_multiply_adds,
    )


def _evaluates_updates(plan: Built) -> bool:
    # Only if all clients take part in every round. Else the means before and after the
    # aggregation would be over different clients.
    section = plan.config.federation
    return (
        section.evaluate_before_aggregation
        and section.client_fraction == section.quorum == 1
        and plan.algorithm.load_client().update_is_model
    )


def _resolve(config: RunConfig, clients: int, num_rounds: int | None) -> RunSpec:
    spec = resolve(config, clients)
    if num_rounds is None:
        return spec
    if config.federation.rounds_by_task:
        expected = "None with federation.rounds_by_task"
        raise config_error("num_rounds", num_rounds, expected)
    if num_rounds % spec.tasks:
        raise config_error(
            "num_rounds", num_rounds, f"a multiple of the {spec.tasks} tasks"
        )
    rounds, configured = num_rounds // spec.tasks, config.federation.rounds_per_task
    if configured not in (0, rounds):
        raise config_error(
            "num_rounds",
            num_rounds,
            f"{configured * spec.tasks}, as federation.rounds_per_task is {configured}",
        )
    return resolve(config.replace(rounds=rounds), clients)
