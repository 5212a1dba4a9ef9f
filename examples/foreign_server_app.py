"""A strategy of this project in a Flower ServerApp of your own.

    python examples/foreign_server_app.py

You see a line of log a round, then the test accuracy and the norm of the weights by
round. The server is yours: it decides on the initial weights and the number of rounds,
looks at the global model after each round, and gets a Flower `Result`. The clients are
this project's ClientApp, `fcl_flower.flower_app.client_app:app`, which the server tells
what the run is. Here Flower simulates both on this machine; in a Flower project the two
apps stand in ``pyproject.toml`` and ``flwr run`` starts them.
"""

from tempfile import mkdtemp

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fcl_flower.config.run_config import RunConfig
from fcl_flower.flower_app.client_app import app as client_app
from fcl_flower.flower_app.strategy import flower_strategy

CLIENTS, ROUNDS = 2, 6

app = ServerApp()


def norm(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on the server: here, the norm of its weights."""
    squares = sum(float((a.numpy().astype(float) ** 2).sum()) for a in arrays.values())
    return MetricRecord({"norm": float(np.sqrt(squares))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Learn two tasks one after the other with EWC, three rounds each."""
    config = RunConfig.from_settings(
        dataset="digits", clients=CLIENTS, tasks=2, output=mkdtemp()
    )
    strategy = flower_strategy("ewc", config)
    result = strategy.start(grid, num_rounds=ROUNDS, timeout=300, evaluate_fn=norm)
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: test accuracy {metrics['accuracy']:.3f}")
    for server_round, metrics in result.evaluate_metrics_serverapp.items():
        print(f"round {server_round}: norm of the weights {metrics['norm']:.2f}")


if __name__ == "__main__":
    run_simulation(app, client_app, CLIENTS)
