"""An algorithm of your own: FedAvg with momentum on the server (FedAvgM).

Hsu, Qi and Brown, 2019, https://arxiv.org/abs/1909.06335: with d, the weighted mean
change of the clients' models, the server keeps v <- beta * v + d and moves the model by
w <- w + v. Clients train as in FedAvg.

    python examples/custom_algorithm.py --rounds 3
"""

import argparse
from collections.abc import Mapping

import numpy as np
from pydantic import Field

import fcl_flower as fcl
from fcl_flower.core.types import Arrays, Payload
from strategies.fedavg import FedAvg


class FedAvgMParams(fcl.Params):
    """Parameters of both sides.

    Attributes:
        beta: momentum, in [0, 1); 0 is FedAvg.
    """

    beta: float = Field(0.9, ge=0, lt=1)


class ServerMomentum(FedAvg):
    """FedAvg's server with a velocity beside the model.

    State: ``base``, the model, and ``velocity``, v; only ``base`` is sent.
    """

    def init(self, model: Arrays) -> Payload:
        """Return the state before round 1."""
        velocity = {name: np.zeros(w.shape, w.dtype) for name, w in model.items()}
        return {"base": model, "velocity": velocity}

    def configure_train(
        self, state: Payload, stage: fcl.TaskStage, client: int
    ) -> Payload:
        """Return what a client receives."""
        return {"base": state["base"]}

    def check_update(self, state: Payload, update: fcl.Update) -> None:
        """Refuse an update that does not have the tensors of the model."""
        super().check_update({"base": state["base"]}, update)

    def aggregate_train(
        self,
        state: Payload,
        stage: fcl.TaskStage,
        updates: Mapping[int, fcl.Update],
    ) -> Payload:
        """Return the state after a round."""
        old = state["base"]
        mean = super().aggregate_train({"base": old}, stage, updates)["base"]
        base, velocity = {}, {}
        for name, w in old.items():
            change = mean[name] - w
            v = self.params.beta * state["velocity"][name] + change
            velocity[name] = v.astype(w.dtype)
            base[name] = (w + velocity[name]).astype(w.dtype)
        return {"base": base, "velocity": velocity}


FEDAVGM = fcl.Algorithm(
    name="fedavgm",
    server=ServerMomentum,
    client="clients.fedavg:Sgd",
    params_type=FedAvgMParams,
    summary="FedAvg with momentum on the server",
    paper="Hsu et al., 2019",
    counterpart="local",
)


def main() -> None:
    """Run FedAvg and FedAvgM on the same scenario."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beta", type=float, default=0.5)
    given = parser.parse_args()
    shared = {"dataset": "digits", "clients": 3, "tasks": 2, "seed": 1}
    shared["rounds"] = given.rounds

    plain = fcl.simulate("fedavg", **shared)
    momentum = fcl.simulate(FEDAVGM, strategy={"beta": given.beta}, **shared)

    for name, result in (("FedAvg", plain), ("FedAvgM", momentum)):
        print(f"{name:8} accuracy {result.average_accuracy:.3f}")


if __name__ == "__main__":
    main()
