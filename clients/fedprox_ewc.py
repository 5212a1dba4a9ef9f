"""FedProx with Elastic Weight Consolidation: two penalties that add up."""

from clients.ewc import Ewc
from clients.fedprox import FedProx
from strategies.fedprox_ewc import FedProxEwcParams


class FedProxEwc(FedProx[FedProxEwcParams], Ewc[FedProxEwcParams]):
    """Add ``mu / 2 * ||w - w_global||^2 + strength / 2 * sum F (w - anchor)^2``.

    The first term holds the client near the global model, the second near its own last
    task.
    """
