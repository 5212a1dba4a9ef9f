"""A strategy of this project in a Flower ServerApp of your own.

    python examples/foreign_server_app.py

You see a line of log a round, then the test accuracy and the norm of the weights by
round. The server is yours: it decides on the initial weights and the number of rounds,
looks at the global model after each round, and gets a Flower `Result`. The clients are
this project's ClientApp, `fcl_flower.federation.client_app:app`, which reads the same
run configuration. Here both run in one process; in a Flower project the two apps stand
in ``pyproject.toml`` and ``flwr run`` starts them.
"""

from tempfile import mkdtemp

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp

from fcl_flower.config.run_config import RunConfig
from fcl_flower.federation.server_app import flower_strategy
from fcl_flower.flower.identity import flower_identity
from fcl_flower.runtime.in_process import InProcessGrid

ROUNDS = 6

app = ServerApp()


def norm(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server: here, the norm of its weights."""
    squares = sum(float((a.numpy().astype(float) ** 2).sum()) for a in arrays.values())
    return MetricRecord({"norm": float(np.sqrt(squares))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn two tasks one after the other with EWC, three rounds each."""
    strategy = flower_strategy("ewc", RunConfig.of(context.run_config))
    result = strategy.start(grid, num_rounds=ROUNDS, timeout=60, evaluate_fn=norm)
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: test accuracy {metrics['accuracy']:.3f}")
    for server_round, metrics in result.evaluate_metrics_serverapp.items():
        print(f"round {server_round}: norm of the weights {metrics['norm']:.2f}")


if __name__ == "__main__":
    config = RunConfig.from_settings(
        strategy="ewc", dataset="digits", clients=2, tasks=2, output=mkdtemp()
    )
    grid = InProcessGrid([11, 12], config.flat())
    with flower_identity():
        app(grid, Context(1, 0, {}, RecordDict(), config.flat()))
