"""Flower's simulation runtime whose Ray and actors serve one run after another.

With ``flwr run`` a run has a SuperLink, a process that finds the run there, one that
simulates it, and a Ray whose actors import torch anew. Here the last simulates all
runs: Flower's own engine passes the messages of each through a link state of its own,
to actors that are there already. The apps see no difference.
"""

import os
import threading
from collections.abc import Callable
from logging import ERROR
from typing import Any

import ray
from flwr.app import ConfigRecordValues, Context, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.compat.client.run_info_store import DeprecatedRunInfoStore, RunInfo
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce.backend.raybackend import RayBackend
from flwr.server.superlink.fleet.vce.metrics import VceMetrics
from flwr.server.superlink.fleet.vce.vce_api import _register_nodes, run_api
from flwr.server.superlink.linkstate import InMemoryLinkState, LinkStateFactory
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.serverapp import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from typing_extensions import override

from fcl_flower.flower.identity import RUN_ID, flower_identity, log


class KeptActors(RayBackend):
    """Flower's Ray backend, which goes on from one run to the next.

    Attributes:
        can_go_on: no actor has died, and none may still work for a run that is over.
    """

    def __init__(self, workers: int, gpus_per_client: float, app: ClientApp) -> None:
        """Start Ray and so many actors, with a CPU core and a share of a GPU each."""
        self._workers, self._app = workers, app
        self.can_go_on = True
        self._engine: threading.Thread | None = None
        resources: dict[str, ConfigRecordValues] = {
            **{"num_cpus": 1, "num_gpus": gpus_per_client}
        }
        super().__init__({"client_resources": resources})
        try:
            # A function without a name is sent whole: actors need not import this file.
            super().build(lambda: app)
        except Exception:
            ray.shutdown()
            raise

    @override
    def init_ray(self, backend_config: Any) -> None:
        # Without an environment of the actors' own, so that processes that Ray has
        # started ahead can be theirs; all have that of this process.
        ray.init(num_cpus=self._workers, include_dashboard=False, logging_level=ERROR)

    def close(self) -> None:
        """End the actors and Ray, whatever they are doing."""
        super().terminate()

    @override
    def build(self, app_fn: Any) -> None:
        """Do nothing: the actors are there."""

    @override
    def terminate(self) -> None:
        """Do nothing: the actors are for the next run, too."""

    @override
    def process_message(
        self, message: Message, context: Context
    ) -> tuple[Message, Context]:
        try:
            found: tuple[Message, Context] = super().process_message(message, context)
        except ray.exceptions.RayError as error:
            # A task's error is that of the client in it.
            self.can_go_on &= isinstance(error, ray.exceptions.RayTaskError)
            raise
        return found

    def run(
        self, run_server: Callable[[Grid], None], clients: int, settings: UserConfig
    ) -> None:
        """Simulate one run to its end, with the server's side in this process."""
        if self._engine:  # of the run before; it looks for its end once a second
            self._engine.join()
        states = LinkStateFactory(
            FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
        )
        run = _registered_run(states)
        grid = InMemoryGrid(states)
        grid.set_run(run)
        nodes = _register_nodes(clients, states)
        contexts, over = _contexts(nodes, settings), threading.Event()
        self._engine = threading.Thread(
            target=self._pass_messages, args=(nodes, states, contexts, over)
        )
        with flower_identity():
            self._engine.start()
            try:
                run_server(grid)
            finally:
                over.set()
                self.can_go_on &= not states.state().num_message_ins()

    def _pass_messages(
        self,
        nodes: dict[int, int],
        states: LinkStateFactory,
        contexts: dict[int, DeprecatedRunInfoStore],
        over: threading.Event,
    ) -> None:
        try:
            run_api(
                lambda: self._app,
                lambda: self,
                nodes,
                states,
                contexts,
                over,
                VceMetrics(),
            )
        except BaseException as error:
            log(ERROR, "Flower's engine has ended", exc_info=error)
            os._exit(1)  # the server would wait for answers that cannot come


def _registered_run(states: LinkStateFactory) -> Run:
    run = Run.create_empty(RUN_ID)
    run.primary_task_id = RUN_ID
    run.federation_id = NOOP_FEDERATION_ID
    state = states.state()
    assert isinstance(state, InMemoryLinkState)
    state.run_ids[RUN_ID] = RunRecord(run=run)
    state.task_store[RUN_ID] = Task(task_id=RUN_ID, run_id=RUN_ID)
    return run


def _contexts(
    nodes: dict[int, int], settings: UserConfig
) -> dict[int, DeprecatedRunInfoStore]:
    found = {}
    for node, client in nodes.items():
        place: UserConfig = {"partition-id": client, "num-partitions": len(nodes)}
        context = Context(RUN_ID, node, place, RecordDict(), dict(settings))
        found[node] = DeprecatedRunInfoStore(node, place)
        found[node].run_infos[RUN_ID] = RunInfo(context, dict(settings))
    return found
