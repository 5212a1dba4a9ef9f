"""Replay: declaration and hyper-parameters; its server side is that of FedAvg."""

from pydantic import Field

from fcl_flower.algorithms.params import BudgetParams
from fcl_flower.algorithms.registry import class_incremental


class ReplayParams(BudgetParams):
    """Hyper-parameters of replay."""

    strength: float = Field(0.0, ge=0)
    """The weight of the L2 term that keeps the body's output near that of the received
    model, at least 0; 0 is replay alone."""


ALGORITHM = class_incremental(
    name="replay",
    client="clients.replay:Replay",
    params_type=ReplayParams,
    summary="FedAvg whose clients train on a few samples of old tasks again",
    paper="de Masson d'Autume et al., NeurIPS 2019",
    token_labels=True,
)
