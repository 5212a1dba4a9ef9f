"""FedSpace: declaration and hyper-parameters.

Shenaj et al., CVPR workshops 2023, https://arxiv.org/abs/2304.03626; the defaults are
those of the authors' configurations (https://github.com/LTTM/FedSpace).
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class FedSpaceParams(Params):
    """Hyper-parameters of FedSpace; in brackets the names in the authors' code."""

    rotations: bool = True
    """Whether clients also learn each image turned by 90, 180 and 270 degrees, every
    turn of a class as a class of its own; needs square images."""
    temperature: float = Field(0.1, gt=0)
    """By which logits are divided, above 0 (temp)."""
    prototype_weight: float = Field(0.01, ge=0)
    """Weight of the loss on what is drawn around prototypes, at least 0
    (lambda_proto_aug); 0 draws nothing."""
    representation_weight: float = Field(0.01, ge=0)
    """Weight of the contrastive loss, at least 0 (lambda_repr_loss); 0 draws
    nothing."""
    representation_temperature: float = Field(1.0, gt=0)
    """By which its similarities are divided, above 0 (repr_loss_temp)."""
    prototype_rate: float = Field(0.1, gt=0, le=1)
    """How far a known prototype moves to the mean of a round, in (0, 1] (ema_global);
    with 1 it is that mean."""
    absent_classes: Literal["kept", "dropped"] = "kept"
    """What becomes of the prototype of a class that no client of a round has samples
    of: it is ``kept``, as a memory has to be, or ``dropped``, as in the authors'
    code."""
    server_rate: float = Field(0.5, gt=0, le=1)
    """How far the server's model moves to the mean of a round, in (0, 1]
    (global_weight); with 1 it is that mean."""


ALGORITHM = Algorithm(
    name="fedspace",
    server="strategies.fedspace.server:FedSpace",
    client="clients.fedspace.client:FedSpace",
    params_type=FedSpaceParams,
    summary="a slower FedAvg that shares prototypes of classes and replays them",
    paper="Shenaj et al., CVPR workshops 2023",
    defaults={"scenario.name": "class-incremental"},
)
