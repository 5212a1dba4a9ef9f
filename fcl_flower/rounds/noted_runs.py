"""A run is noted beside the state of the server that it goes on at."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.known_runs import FOLDER, noted
from fcl_flower.rounds import clients


def noted_run(config: RunConfig) -> AbstractContextManager[None]:
    """Note beside the server's state that a run goes on; nothing in a simulation."""
    state = clients.server_state()
    if state is None or not config.run.id:
        return nullcontext()
    return noted(state / FOLDER, config.run.id, Path(config.run.output))
