"""FedProx with Elastic Weight Consolidation: two penalties that add up."""

from clients.ewc import Ewc
from clients.fedprox import FedProx
from strategies.fedprox_ewc import FedProxEwcParams


class FedProxEwc(FedProx[FedProxEwcParams], Ewc[FedProxEwcParams]):
    """A learner with the proximal term of FedProx and the penalty of EWC.

    The penalty is ``mu / 2 * ||w - w_global||^2 + strength / 2 * sum F (w -
    anchor)^2``. The first term holds the client near the global model, the second near
    its own last task.
    """
