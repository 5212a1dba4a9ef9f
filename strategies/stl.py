"""Single-task learning: declaration; the client does all the work."""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class StlParams(Params):
    """Hyper-parameters of single-task learning."""

    members: int = Field(1, ge=1, le=100)
    """The number of networks that learn each task, in different orders of its samples.
    They predict together: a deep ensemble (Lakshminarayanan et al., NeurIPS 2017)."""


ALGORITHM = Algorithm(
    name="stl",
    server="strategies.local:NoOpStrategy",
    client="clients.stl:SingleTask",
    params_type=StlParams,
    summary="a fresh model for each task: the single-task bound",
    single_task=True,
)
