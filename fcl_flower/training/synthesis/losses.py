"""What a sample made from a model must fulfil."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fcl_flower.training.distillation import divergence


def disagreement(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean divergence over samples, 0 where both choose the same class.

    TARGET's equation of the boundary: the indicator is 1 where the argmax of teacher
    and student differ. Their code, and LANDER's, has it 1 where they are the same.

    Args:
        student: logits, shape (batch, classes).
        teacher: likewise.
    """
    differ = (student.argmax(1) != teacher.argmax(1)).float()
    return (differ * divergence(student, teacher, 1.0)).mean()


def beyond(radius: float, projected: Tensor, anchors: Tensor) -> Tensor:
    """Return how far features lie beyond a radius around anchors; 0 within.

    LANDER's bounding loss as in its code: the mean squared difference of a whole batch,
    less the radius.

    Args:
        radius: at least 0.
        projected: shape (batch, D).
        anchors: that of each sample's class, of the same shape.
    """
    return torch.relu(mse_loss(projected, anchors) - radius)


class NormStatistics:
    """How far a batch lies from the data that a network's batch normalisation has seen.

    Yin et al., CVPR 2020, https://arxiv.org/abs/1912.08795, equation 4: for each layer
    the Euclidean norm of the difference of means, and of that of variances.
    """

    def __init__(self) -> None:
        """Know of no layer yet."""
        self._found: list[Tensor] = []

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Take note of what enters the layers of ``network`` for a while."""
        layers = [one for one in network.modules() if isinstance(one, nn.BatchNorm2d)]
        hooks = [layer.register_forward_hook(self._note) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def distance(self) -> Tensor | float:
        """Return the sum over the layers of the last pass, and forget it."""
        found = sum(self._found)
        self._found = []
        return found

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean = inputs[0].mean((0, 2, 3))
        variance = inputs[0].var((0, 2, 3), correction=0)
        self._found += [
            torch.linalg.vector_norm(mean - layer.running_mean),
            torch.linalg.vector_norm(variance - layer.running_var),
        ]
