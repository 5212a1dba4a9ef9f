"""The Flower ServerApp: one federated continual learning run."""

import time
from logging import INFO
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from fcl_flower import assembly, wire
from fcl_flower.config import RunConfig
from fcl_flower.errors import RoundError
from fcl_flower.exchange import roll_call
from fcl_flower.flower_strategy import FlowerStrategy
from fcl_flower.folders import free_folder
from fcl_flower.record import Recorder
from fcl_flower.report import write_report
from fcl_flower.tensors import snapshot

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run every task, then write the summary and the report."""
    config = RunConfig.of(context.run_config)
    roster = _gather(grid, config)
    config = assembly.completed(config.with_values(clients=len(roster)))
    plan = assembly.scenario(config)
    network = assembly.model(config, plan)
    folder = Path(config.output) if config.output else free_folder(config)
    words = assembly.vectors(config)
    notes = {} if words is None else {"word vectors": words.origin}
    for what, note in notes.items():
        log(INFO, "%s: %s", what, note)
    recorder = Recorder(folder, config, plan, notes)
    schedule = assembly.schedule(config)
    rounds = schedule.num_rounds
    strategy = FlowerStrategy(
        assembly.strategy(config),
        schedule,
        roster,
        recorder,
        min_replies=config.min_replies,
        precision=config.precision,
    )
    initial = wire.Packer().arrays(snapshot(network, network.shared_names()))
    strategy.start(grid, initial, num_rounds=rounds, timeout=config.timeout)
    recorder.finish()
    write_report(folder)
    log(INFO, "results and report.html: %s", folder.absolute())
    # Last, since whoever waits for it may end this process.
    recorder.progress(rounds, 0, 0, "finished")


def _gather(grid: Grid, config: RunConfig) -> dict[int, int]:
    """Wait for the clients; return partition number by node id."""
    deadline = time.monotonic() + config.timeout
    wanted = config.clients or 1
    while len(list(grid.get_node_ids())) < wanted:
        if time.monotonic() > deadline:
            raise RoundError(f"clients: fewer than {wanted} nodes connected in time")
        time.sleep(0.1)
    roster = roll_call(grid, config.timeout)
    expected = set(range(config.clients or len(roster)))
    chosen = {node: number for node, number in roster.items() if number in expected}
    if set(chosen.values()) != expected:
        raise RoundError(
            f"clients: partitions {sorted(roster.values())} answered, "
            f"expected {sorted(expected)}"
        )
    return chosen
