"""The same federation in plain Flower: its FedAvg, and a ClientApp of one function.

A client trains on the same data with the same code as ours does, and keeps nothing
between two messages. The server writes the moments of every round into a file, with
what the clients told.
"""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from typing_extensions import override

from fcl_flower.algorithms.base import Turn
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.types import TaskStage
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.place import Place
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot

server_app = ServerApp()
client_app = ClientApp()


class Timed(FedAvg):
    """Flower's FedAvg, which also notes when it asks and is answered."""

    rounds: list[dict[str, Any]]

    @override
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.rounds.append({"asked": time.time()})
        return messages

    @override
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        self.rounds[-1]["answered"] = time.time()
        told = [answer.content.metric_records["metrics"] for answer in answers]
        self.rounds[-1]["clients"] = [dict(one) for one in told]
        return super().aggregate_train(server_round, answers)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Train for as many rounds as ours does; evaluate nothing."""
    run = Built(resolve(RunConfig.of(context.run_config)))
    model = run.model()
    first = snapshot(model, model.shared_names())
    strategy = Timed(
        fraction_train=run.config.federation.client_fraction,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=run.config.scenario.clients,
    )
    strategy.rounds = []
    strategy.start(
        grid,
        ArrayRecord({name: Array(np.asarray(value)) for name, value in first.items()}),
        num_rounds=run.config.federation.rounds_per_task,
    )
    Path(run.config.run.output).write_text(json.dumps(strategy.rounds))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one epoch from the model that arrived."""
    place = Place("", NodeConfig.of(context.node_config))
    spec = resolve(RunConfig.of(context.run_config), place.node.num_partitions)
    run = Built(spec.on_node(place.node))
    number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
    stage = TaskStage(number, 0, starts_task=True, ends_task=True)
    data = client_data(run, place, 1).training(stage)
    received = message.content.array_records["arrays"]
    learner = run.learner(place.number)
    base = {name: array.numpy() for name, array in received.items()}
    _, update = learner.train(Turn({}, {"base": base}, stage, data))
    arrays = {n: Array(np.asarray(v)) for n, v in update.payload["base"].items()}
    told = MetricRecord({**update.metrics, "num-examples": update.num_examples})
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": told})
    return Message(content, reply_to=message)
