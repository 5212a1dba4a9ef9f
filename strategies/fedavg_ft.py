"""FedAvg with fine-tuning: declaration and hyper-parameters; its server is FedAvg's.

Yu, Bagdasaryan and Shmatikov, 2020, "Salvaging Federated Learning by Local Adaptation",
https://arxiv.org/abs/2002.04758 (fine-tuning, "FT").
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class FedAvgFtParams(Params):
    """Hyper-parameters of FedAvg with fine-tuning."""

    tuning_epochs: int = Field(5, ge=1)
    """The number of passes over the recent samples before a client predicts, where
    concepts are hidden; at least 1. Elsewhere it tunes as it trains."""
    subset: int = Field(64, ge=1)
    """The number of recent samples on which it then tunes, at least 1, as many as in
    Concept Matching. A client that has fewer takes all of its samples."""


ALGORITHM = Algorithm(
    name="fedavg-ft",
    client="clients.fedavg_ft:FedAvgFineTuned",
    params_type=FedAvgFtParams,
    summary="FedAvg whose clients predict with the model as their own samples tune it",
    paper="Yu et al., 2020",
    privacy_units=("client", "example"),
)
