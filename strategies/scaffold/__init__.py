"""SCAFFOLD: declaration and hyper-parameters.

Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378.
"""

from typing import Literal

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class ScaffoldParams(Params):
    """Hyper-parameters of SCAFFOLD."""

    variate: Literal["steps", "start"] = Field("steps")
    """What a client's control variate becomes: the mean gradient over the ``steps`` of
    a round (option II), or that over all of its samples at the received model, from
    which it will ``start`` (option I)."""


ALGORITHM = Algorithm(
    name="scaffold",
    server="strategies.scaffold.server:Scaffold",
    client="clients.scaffold:Scaffold",
    params_type=ScaffoldParams,
    summary="FedAvg whose clients correct their gradients by control variates",
    paper="Karimireddy et al., ICML 2020",
)
