"""LwF: declaration and hyper-parameters; its server side is that of FedAvg.

Li and Hoiem, ECCV 2016, https://arxiv.org/abs/1606.09282.
"""

from typing import Literal

from fcl_flower.algorithms.params import DistillationParams
from fcl_flower.algorithms.registry import class_incremental


class LwfParams(DistillationParams):
    """Hyper-parameters of learning without forgetting; 1 and 2 are the paper's."""

    contrast: Literal["new", "all"] = "new"
    """The classes of the labels' loss: the new ones, as if they had a head of their own
    (as in the paper), or all."""


ALGORITHM = class_incremental(
    name="lwf",
    client="clients.lwf:Lwf",
    params_type=LwfParams,
    summary="FedAvg whose clients answer for old classes as the old global model does",
    paper="Li and Hoiem, ECCV 2016",
)
