"""What both loops share: how a run begins, what Flower's user gets, how it ends."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from pathlib import Path
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from typing_extensions import override

from fcl_flower.algorithms.hooks import Explains
from fcl_flower.algorithms.registry import local_only_counterpart
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError, refuse
from fcl_flower.core.schedule import Schedule
from fcl_flower.core.simulated_clock import SimulatedClock
from fcl_flower.core.types import Arrays
from fcl_flower.federation.pacing.in_flight import CheckpointStore
from fcl_flower.federation.secure.channel import Channel
from fcl_flower.federation.secure.sum_strategy import SecureSum
from fcl_flower.federation.server import Server
from fcl_flower.federation.transport.client_registry import ClientRegistry
from fcl_flower.federation.transport.flower_records import (
    from_array_record,
    to_array_record,
)
from fcl_flower.federation.transport.state_store import FolderStateStore
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.results.diagnostics import build_diagnostics
from fcl_flower.results.history import Lateness
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.run_folder import CHECKPOINT, free_folder
from fcl_flower.setup import factory
from fcl_flower.setup.resolve import resolve
from fcl_flower.setup.resolved_run import ResolvedRun
from fcl_flower.storage.folder_lock import locked
from fcl_flower.training.tensors import snapshot

EvaluateFn: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True, slots=True)
class FederatedRun:
    """What a loop works on.

    Attributes:
        server: with its state, fresh or resumed.
        schedule: maps rounds to tasks and participants.
        clock: simulated durations, if there are any.
        lateness: of the clients whose last update was late, as the record has it.
        checkpoint: where the server keeps its state.
        registry: maps clients to nodes.
        ledger: what clients' data have cost; None where they are no privacy unit.
        agree_on_masks: called with the participants before each attempt at a round;
            returns why some of them are left out.
    """

    server: Server
    schedule: Schedule
    clock: SimulatedClock
    lateness: Mapping[int, Lateness]
    checkpoint: CheckpointStore
    registry: ClientRegistry
    ledger: Ledger | None = None
    agree_on_masks: Callable[[Sequence[int]], Mapping[int, str]] = lambda clients: {}


class FederatedStrategy(Strategy):
    """A Flower strategy that runs one of our algorithms on our ClientApp.

    The clients' nodes need the same run configuration as the server: a ServerApp takes
    it from its context, `RunConfig.of(context.run_config)`.
    """

    def __init__(self, config: RunConfig) -> None:
        """Prepare a strategy; nothing is loaded before `start`."""
        self._config = config
        self._min_updates = config.federation.min_updates
        self._max_attempts = config.federation.max_attempts
        self._run: FederatedRun | None = None
        self._result = Result()

    @property
    def run(self) -> FederatedRun:
        """Return what the loop works on.

        Raises:
            RuntimeError: `start` has not been called.
        """
        if self._run is None:
            raise RuntimeError(f"{type(self).__name__}.start has not been called")
        return self._run

    @override
    def summary(self) -> None:
        """Log what is learned in how many rounds."""
        schedule = self.run.schedule
        log(
            INFO,
            "%s: %d clients, %d tasks of %d rounds",
            self._config.strategy.name,
            schedule.clients,
            schedule.tasks,
            schedule.rounds_per_task,
        )

    @override
    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the whole federation and write its run folder and report.

        Args:
            grid: connects to the nodes.
            initial_arrays: the model's shared tensors by name; None or empty for those
                that the run's seed draws. A resumed run continues from its checkpoint.
            num_rounds: of the whole run, of each client where it is asynchronous: a
                multiple of the number of tasks. None for what is configured.
            timeout: seconds to wait for clients and for their replies; None for what
                is configured.
            train_config: refused unless empty, as clients read the run configuration.
            evaluate_config: likewise.
            evaluate_fn: called with the round and the global model before the first
                round and after each; refused where there is no global model.

        Returns:
            The final global model, where there is one, and by round the means of the
            clients' losses and test accuracies. A resumed run has only its own rounds.

        Raises:
            ConfigError: an argument or a setting is refused.
            RoundError: too few usable replies.
        """
        for key, given in (
            ("train_config", train_config),
            ("evaluate_config", evaluate_config),
        ):
            if given:
                raise refuse(
                    key, dict(given), "none, as clients read the run configuration"
                )
        if num_rounds is not None and num_rounds < 1:
            raise refuse("num_rounds", num_rounds, "at least 1")
        seconds = self._config.federation.timeout if timeout is None else timeout
        if not seconds > 0:
            raise refuse("timeout", timeout, "a number of seconds above 0")
        with ExitStack() as stack:
            run = prepare(
                self._config, grid, initial_arrays, num_rounds, seconds, stack
            )
            rounds = run.schedule.num_rounds
            result = self.run_rounds(run, grid, rounds, seconds, evaluate_fn)
            run.server.finish()
        return result

    def run_rounds(
        self,
        run: FederatedRun,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the rounds up to ``num_rounds`` that are not finished yet.

        Args:
            run: from `prepare`.
            grid: connects to the nodes.
            num_rounds: the last round.
            timeout: seconds to wait for replies.
            evaluate_fn: see `start`.

        Raises:
            ConfigError: there is no global model for ``evaluate_fn``.
            RoundError: too few usable replies.
        """
        self._run, self._result = run, Result()
        if evaluate_fn and run.server.global_model is None:
            raise refuse(
                "evaluate_fn",
                evaluate_fn,
                f"None, as {self._config.strategy.name} has no global model",
            )
        self.summary()
        self._result.arrays = to_array_record(run.server.global_model)
        if not run.server.done:
            self._evaluate(0, evaluate_fn)
        self._loop(grid, num_rounds, timeout, evaluate_fn)
        return self._result

    @abstractmethod
    def _loop(
        self,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        evaluate_fn: EvaluateFn | None,
    ) -> None:
        """Run all rounds and enter what they bring into the result."""

    def _evaluate(self, server_round: int, evaluate_fn: EvaluateFn | None) -> None:
        """Let the user evaluate the global model after a round."""
        found = evaluate_fn(server_round, self._result.arrays) if evaluate_fn else None
        if found is not None:
            self._result.evaluate_metrics_serverapp[server_round] = found


def prepare(
    config: RunConfig,
    grid: Grid,
    initial_arrays: ArrayRecord | None,
    num_rounds: int | None,
    timeout: float,
    stack: ExitStack,
) -> FederatedRun:
    """Wait for the clients and build a run; resume it where that is configured.

    Args:
        config: of the run.
        grid: connects to the nodes.
        initial_arrays: see `FederatedStrategy.start`.
        num_rounds: likewise.
        timeout: seconds to wait for the clients.
        stack: keeps other processes out of the run's folder until it is closed.

    Raises:
        ConfigError: something of it is refused, or another process is in its folder.
        RoundError: too few clients have connected.
    """
    wanted = config.scenario.clients
    registry = ClientRegistry(grid, wanted)
    registry.wait_for_clients(config.federation.min_updates, timeout)
    clients = wanted or len(registry.clients)
    if not wanted and set(registry.clients) != set(range(clients)):
        raise RoundError(
            f"scenario.clients: got partitions {list(registry.clients)}, expected 0 to "
            f"{clients - 1}"
        )
    resolved = _resolve(config.replace(clients=clients), num_rounds)
    config = resolved.config
    scenario = factory.build_scenario(resolved)
    network = factory.build_model(resolved, scenario)
    model: Arrays = snapshot(network, network.shared_names())
    if initial_arrays:
        model = from_array_record(initial_arrays, model)
    strategy = factory.build_strategy(resolved)
    secure = None
    if config.federation.secure_aggregation:
        strategy = secure = SecureSum(strategy, config.federation)
    words = factory.build_word_vectors(resolved)
    remarks = {} if words is None else {"word vectors": words.origin}
    if isinstance(strategy, Explains):
        remarks |= strategy.remarks()
    for topic, remark in remarks.items():
        log(INFO, "%s: %s", topic, remark)
    counterpart = local_only_counterpart(config)
    folder = Path(config.run.output) if config.run.output else free_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(locked(folder, "run.output"))
    private = config.privacy.unit == "client"
    plain = config.federation.aggregation == "mean"
    ledger = Ledger(config.privacy, folder, plain_mean=plain) if private else None
    recorder = Recorder(
        folder,
        config,
        scenario,
        build_diagnostics(scenario, config.privacy, ledger),
        remarks,
        None if counterpart is None else counterpart.title,
    )
    checkpoint = CheckpointStore(FolderStateStore(folder / CHECKPOINT))
    server = Server(
        strategy,
        registry,
        recorder,
        checkpoint,
        wire_dtype=config.federation.wire_dtype,
        max_update_norm=config.federation.max_update_norm,
        evaluates_updates=_evaluates_updates(resolved),
    )
    if config.run.resume and server.resume():
        log(INFO, "resuming after round %d", server.done)
        if ledger is not None:
            ledger.restore()
    else:
        server.begin(model)
        if initial_arrays and not server.state:
            raise refuse(
                "initial_arrays",
                f"{len(initial_arrays)} tensors",
                f"none, as {config.title} shares no model",
            )
    clock = SimulatedClock(config.asynchronous.durations, recorder.clock)
    schedule = factory.build_schedule(resolved, scenario)
    run = FederatedRun(
        server, schedule, clock, recorder.lateness, checkpoint, registry, ledger
    )
    if secure is None:
        return run
    channel = Channel(grid, registry, timeout, lambda: server.traffic)
    return replace(run, agree_on_masks=partial(secure.begin, channel))


def _evaluates_updates(resolved: ResolvedRun) -> bool:
    """Return whether clients are tested before the aggregation, too.

    Only where all clients take part in every round: the means before and after it would
    else be over different clients.
    """
    section = resolved.config.federation
    return (
        section.evaluate_before_aggregation
        and section.client_fraction == section.quorum == 1
        and resolved.algorithm.load_client().update_is_model
    )


def _resolve(config: RunConfig, num_rounds: int | None) -> ResolvedRun:
    """Return the run that a configuration describes, of ``num_rounds`` rounds.

    Raises:
        ConfigError: these are not the rounds that are configured, or no multiple of
            the number of tasks.
    """
    resolved = resolve(config)
    if num_rounds is None:
        return resolved
    tasks = 1 if resolved.scenario.hidden else resolved.config.scenario.tasks
    if num_rounds % tasks:
        raise refuse("num_rounds", num_rounds, f"a multiple of the {tasks} tasks")
    configured = config.federation.rounds_per_task
    if configured not in (0, num_rounds // tasks):
        raise refuse(
            "num_rounds",
            num_rounds,
            f"{configured * tasks}, as federation.rounds_per_task is {configured}",
        )
    return resolve(config.replace(rounds=num_rounds // tasks))
