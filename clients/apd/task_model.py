"""The torch side of one task of APD: FedWeIT's, with weight decay and a pull.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432: theta_t = sigma * M_t + tau_t,
with M_t = sigmoid(v_t), one entry for each output channel. With sigma~ of the task's
group in the place of other clients' adapters this is `TaskModel`, which shrinks tau and
holds old tasks.
"""

import torch
from torch import Tensor
from typing_extensions import override

from clients.fedweit.task_model import TaskModel, TaskTensors
from fcl_flower.models.heads import MultiHeadModel
from strategies.fedweit import FedWeitParams


class ApdModel(TaskModel):
    """Minimise what `TaskModel` does, weight decay, and a distance of sigma.

    Weight decay is that of the authors' code.
    """

    def __init__(
        self,
        model: MultiHeadModel,
        params: FedWeitParams,
        task: int,
        tensors: TaskTensors,
        *,
        weight_decay: float,
        mu: float,
    ) -> None:
        """Turn ``tensors`` into leaves; sigma now is what mu pulls it back to."""
        self.weight_decay, self.mu = weight_decay, mu
        self.start = {name: sigma.clone() for name, sigma in tensors.base.items()}
        super().__init__(model, params, task, tensors)

    @override
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return super().loss(x, y) + self.decay() + self.pull()

    def decay(self) -> Tensor | float:
        """Return weight_decay / 2 (|tau|^2 + |v|^2), in the first task + |sigma|^2.

        Later sigma is held by the old tasks.
        """
        if not self.weight_decay:
            return 0.0
        tensors = self.tensors
        decayed = [*tensors.adapters.values(), *tensors.masks.values()]
        if not tensors.old:
            decayed += tensors.base.values()
        squares = torch.stack([values.square().sum() for values in decayed])
        return self.weight_decay / 2 * squares.sum()

    def pull(self) -> Tensor | float:
        """Return mu / 2 |sigma - sigma at the start|^2 (FedProx, equation 2)."""
        if not self.mu:
            return 0.0
        base = self.tensors.base
        moved = [
            (base[name] - start).square().sum() for name, start in self.start.items()
        ]
        return self.mu / 2 * torch.stack(moved).sum()
