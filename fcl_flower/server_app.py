"""The Flower ServerApp: one federated continual learning run."""

from logging import INFO
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fcl_flower import assembly, completion
from fcl_flower.asynchronous import AsynchronousStrategy
from fcl_flower.clock import Clock
from fcl_flower.config import RunConfig
from fcl_flower.errors import RoundError
from fcl_flower.federation import Federation
from fcl_flower.flower_strategy import FlowerStrategy
from fcl_flower.folders import CHECKPOINT, free_folder
from fcl_flower.memory import FolderMemory
from fcl_flower.record import Recorder
from fcl_flower.report import write_report
from fcl_flower.roster import Roster
from fcl_flower.tensors import snapshot

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    roster = Roster(grid, config.clients)
    roster.gather(config.min_replies, config.timeout)
    clients = config.clients or len(roster.clients)
    if not config.clients and set(roster.clients) != set(range(clients)):
        raise RoundError(
            f"clients: partitions {list(roster.clients)} answered, expected 0 to "
            f"{clients - 1}"
        )
    config = completion.completed(config.with_values(clients=clients))
    plan = assembly.scenario(config)
    network = assembly.model(config, plan)
    folder = Path(config.output) if config.output else free_folder(config)
    words = assembly.vectors(config)
    inner = assembly.strategy(config)
    notes = {} if words is None else {"word vectors": words.origin}
    notes |= inner.notes()
    for what, note in notes.items():
        log(INFO, "%s: %s", what, note)
    recorder = Recorder(folder, config, plan, notes)
    federation = Federation(
        inner,
        roster,
        recorder,
        FolderMemory(folder / CHECKPOINT),
        precision=config.precision,
        norm_limit=config.norm_limit,
    )
    if config.resume and federation.resume():
        log(INFO, "going on after round %d", federation.done)
    else:
        federation.begin(snapshot(network, network.shared_names()))
    loop = _loop(config, federation)
    rounds = assembly.schedule(config).num_rounds
    loop.start(grid, ArrayRecord(), num_rounds=rounds, timeout=config.timeout)
    recorder.finish()
    write_report(folder)
    log(INFO, "results and report.html: %s", folder.absolute())
    # Last, since whoever waits for it may end this process.
    recorder.progress(federation.done, 0, 0, "finished")


def _loop(config: RunConfig, federation: Federation) -> FlowerStrategy:
    schedule = assembly.schedule(config)
    clock = Clock(config.paces, federation.recorder.clock)
    if config.mode == "synchronous":
        return FlowerStrategy(
            federation,
            schedule,
            clock,
            min_replies=config.min_replies,
            attempts=config.attempts,
        )
    return AsynchronousStrategy(
        federation,
        schedule,
        clock,
        mixing=config.mixing,
        exponent=config.staleness,
        min_replies=config.min_replies,
        attempts=config.attempts,
    )
