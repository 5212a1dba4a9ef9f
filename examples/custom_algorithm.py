"""An algorithm of your own: FedAvg with momentum on the server (FedAvgM).

Hsu, Qi and Brown, 2019, https://arxiv.org/abs/1909.06335: with d, the weighted mean
change of the clients' models, the server keeps v <- beta * v + d and moves the model by
w <- w + v. Clients train as in FedAvg.

    python examples/custom_algorithm.py

You see the progress of two runs, then the average accuracy of FedAvg and of FedAvgM.
"""

import argparse
from collections.abc import Mapping

import numpy as np
from pydantic import Field

import fcl_flower as fcl
from fcl_flower.core.types import Arrays, Payload
from fcl_flower.core.update_checks import same_tensors
from strategies.fedavg import FedAvg


class FedAvgMParams(fcl.Params):
    """Parameters of both sides."""

    beta: float = Field(0.9, ge=0, lt=1)
    """Momentum, in [0, 1); 0 is FedAvg, exactly."""


class ServerMomentum(fcl.ServerStrategy[FedAvgMParams]):
    """FedAvg's server with a velocity beside the model.

    State: ``base``, the model, and ``velocity``, v, in float64; only ``base`` is sent.
    """

    def init(self, model: Arrays) -> Payload:
        """Return the state before round 1."""
        velocity = {name: np.zeros(w.shape, np.float64) for name, w in model.items()}
        return {"base": model, "velocity": velocity}

    def send(self, state: Payload, stage: fcl.TaskStage, client: int) -> Payload:
        """Return what a client receives."""
        return {"base": state["base"]}

    def check_update(self, state: Payload, update: fcl.Update) -> None:
        """Refuse an update that does not have the tensors of the model."""
        same_tensors(update.payload, {"base": state["base"]})

    def combine(
        self,
        state: Payload,
        stage: fcl.TaskStage,
        updates: Mapping[int, fcl.Update],
    ) -> Payload:
        """Return the state after a round.

        As d is the clients' mean minus w, the new model w + v is that mean plus
        beta * v: in this order no rounding parts beta = 0 from FedAvg.
        """
        fedavg = FedAvg(fcl.Params(), self.context)
        mean = fedavg.combine({"base": state["base"]}, stage, updates)["base"]
        base, velocity = {}, {}
        for name, old in state["base"].items():
            m, w = np.asarray(mean[name], np.float64), np.asarray(old)
            step = self.params.beta * np.asarray(state["velocity"][name])
            base[name] = (m + step).astype(w.dtype)
            velocity[name] = m - w + step
        return {"base": base, "velocity": velocity}


FEDAVGM = fcl.Algorithm(
    name="fedavgm",
    server=ServerMomentum,
    client="fcl_flower.algorithms.local_training:LocalTraining",
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
