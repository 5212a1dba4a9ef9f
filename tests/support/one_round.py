"""A server of two real clients whose first round is over."""

from dataclasses import replace

from fcl_flower.core.schedule import SimulatedClock
from fcl_flower.results.recorder import Recorder
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.clients import ClientRegistry
from fcl_flower.rounds.prepare import FederatedRun
from fcl_flower.rounds.replies import ReplyReader
from fcl_flower.rounds.server import Server
from fcl_flower.rounds.sync_loop import SyncLoop
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot


def after_one_round(config, folder, transport, max_update_norm=0):
    """Play the first round of a run; return the server and its strategy."""
    run = Built(resolve(config))
    registry = ClientRegistry(transport, config.scenario.clients)
    registry.announce(run.spec)
    registry.wait_for_clients(config.scenario.clients, timeout=5)
    model, strategy = run.model(), run.strategy()
    server = Server(
        strategy,
        registry,
        Recorder(folder, config, run.scenario),
        FolderStateStore(folder / "checkpoint", durable=False),
        reader=ReplyReader(strategy, registry, max_update_norm=max_update_norm),
    )
    server.begin(snapshot(model, model.shared_names()))
    schedule = replace(run.schedule, tasks=1)
    SyncLoop(FederatedRun(server, schedule, SimulatedClock(), config, 5)).run()
    return server, strategy
