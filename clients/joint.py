"""Joint training: the data of all tasks at once, the bound without forgetting.

Named MTL, multi-task learning, in FedET (Liu et al., IJCAI 2023, table 4): "train the
model with all classes in one task".
"""

from clients.fedavg import Sgd
from fcl_flower.algorithms.base import Params


class Joint(Sgd[Params]):
    """`Sgd` that is given all tasks in every round, and goes on across their borders.

    The optimizer begins anew where a task would.
    """

    needs_single_head = True
    joint = True
