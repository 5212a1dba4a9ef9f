"""The Flower ServerApp: one federated continual learning run."""

from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fcl_flower.algorithms.hooks import Explains
from fcl_flower.algorithms.registry import local_only_counterpart
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.core.schedule import Schedule
from fcl_flower.federation.async_loop import AsynchronousStrategy
from fcl_flower.federation.server import Server
from fcl_flower.federation.simulated_clock import SimulatedClock
from fcl_flower.federation.sync_loop import SynchronousStrategy
from fcl_flower.federation.transport.client_registry import ClientRegistry
from fcl_flower.federation.transport.state_store import FolderStateStore
from fcl_flower.results.diagnostics import build_diagnostics
from fcl_flower.results.recorder import Recorder
from fcl_flower.results.report import write_report
from fcl_flower.results.run_folder import CHECKPOINT, free_folder
from fcl_flower.setup import factory
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    roster = ClientRegistry(grid, config.scenario.clients)
    roster.wait_for_clients(config.federation.min_updates, config.federation.timeout)
    clients = config.scenario.clients or len(roster.clients)
    if not config.scenario.clients and set(roster.clients) != set(range(clients)):
        raise RoundError(
            f"scenario.clients: got partitions {list(roster.clients)}, expected 0 to "
            f"{clients - 1}"
        )
    run = resolve(config.replace(clients=clients))
    config = run.config
    plan = factory.build_scenario(run)
    network = factory.build_model(run, plan)
    folder = Path(config.run.output) if config.run.output else free_folder(config)
    words = factory.build_word_vectors(run)
    inner = factory.build_strategy(run)
    notes = {} if words is None else {"word vectors": words.origin}
    if isinstance(inner, Explains):
        notes |= inner.remarks()
    for what, note in notes.items():
        log(INFO, "%s: %s", what, note)
    twin = local_only_counterpart(config)
    recorder = Recorder(
        folder,
        config,
        plan,
        build_diagnostics(plan),
        notes,
        None if twin is None else twin.title,
    )
    federation = Server(
        inner,
        roster,
        recorder,
        FolderStateStore(folder / CHECKPOINT),
        precision=config.federation.wire_dtype,
        norm_limit=config.federation.max_update_norm,
    )
    if config.run.resume and federation.resume():
        log(INFO, "going on after round %d", federation.done)
    else:
        federation.begin(snapshot(network, network.shared_names()))
    schedule = factory.build_schedule(run, plan)
    loop = _loop(config, schedule, federation)
    rounds = schedule.num_rounds
    loop.start(
        grid, ArrayRecord(), num_rounds=rounds, timeout=config.federation.timeout
    )
    recorder.finish()
    write_report(folder)
    log(INFO, "results and report.html: %s", folder.absolute())
    # Last, since whoever waits for it may end this process.
    recorder.progress(federation.done, 0, 0, "finished")


def _loop(
    config: RunConfig, schedule: Schedule, federation: Server
) -> SynchronousStrategy:
    clock = SimulatedClock(config.asynchronous.durations, federation.recorder.clock)
    if not config.asynchronous.enabled:
        return SynchronousStrategy(
            federation,
            schedule,
            clock,
            min_replies=config.federation.min_updates,
            attempts=config.federation.max_attempts,
        )
    return AsynchronousStrategy(
        federation,
        schedule,
        clock,
        mixing=config.asynchronous.mixing,
        exponent=config.asynchronous.staleness_exponent,
        min_replies=config.federation.min_updates,
        attempts=config.federation.max_attempts,
    )
