"""FedWeIT whose new tasks start from a matching task of another client; ours."""

from pydantic import Field

from fcl_flower.algorithms.registry import Algorithm
from strategies.fedweit import FedWeitParams
from strategies.fedweit.adapter_selection import SelectionRule


class FedWeitMatchParams(FedWeitParams):
    """Hyper-parameters beside those of FedWeIT."""

    knowledge: SelectionRule = "all"
    """All finished tasks by default, among which a client chooses."""
    kappa: float = Field(1.0, gt=0, le=1)
    """All channels by default, since the base travels once a task."""
    match_examples: int = Field(200, ge=1)
    """Training examples that candidates are tried on, at least 1."""


ALGORITHM = Algorithm(
    name="fedweit-match",
    server="strategies.fedweit_match.server:FedWeitMatch",
    client="clients.fedweit_match.client:FedWeitMatch",
    params_type=FedWeitMatchParams,
    summary="FedWeIT whose new tasks start from a matching task of another client",
    paper="ours, after FedWeIT",
    counterpart="fedweit",
)
