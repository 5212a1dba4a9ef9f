"""The network whose gradient stands for an image: GLFC's gradient encoding network.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, section 3.3: a shallow network
that only the server and the clients have. Its form and its weights are those of the
released code, which has them of Zhu et al., NeurIPS 2019, https://arxiv.org/abs/1906.08935.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.core.seeds import derive
from fcl_flower.models.seeded import seeded

LAST = "fc"
"""The name of the last layer, whose gradient tells an image's label."""
_CHANNELS = 12


class EncodingNetwork(nn.Module):
    """Three convolutions with sigmoids and a linear layer, of random weights.

    From images (batch, C, H, W) to logits (batch, classes). It is never trained. The
    sigmoids make it twice differentiable, which a search for an image needs.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, seed: int) -> None:
        """Draw the weights from [-0.5, 0.5], the same for the same seed.

        Args:
            input_shape: of an image, (C, H, W).
            classes: number of logits.
            seed: of the run.

        Raises:
            ConfigError: samples are no images.
        """
        super().__init__()
        if len(input_shape) != 3:
            raise refuse(
                "model.input_shape",
                input_shape,
                "(C, H, W), since only images are found from their gradients",
            )
        layers: list[nn.Module] = []
        channels = input_shape[0]
        for stride in (2, 2, 1):
            layers += [nn.Conv2d(channels, _CHANNELS, 5, stride, 2), nn.Sigmoid()]
            channels = _CHANNELS
        with seeded(derive(seed, "encoding-network")):
            self.body = nn.Sequential(*layers, nn.Flatten())
            width = self.body(torch.zeros(1, *input_shape)).shape[1]
            self.fc = nn.Linear(width, classes)
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
        self.requires_grad_(False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes)."""
        logits: Tensor = self.fc(self.body(x))
        return logits


def sample_gradients(
    network: EncodingNetwork, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Return the gradient of each sample's cross-entropy by parameter.

    Differentiable in ``x``.

    Args:
        network: N samples are shown to it.
        x: images, shape (N, C, H, W).
        y: labels, int64, shape (N,).

    Returns:
        by name, shape (N, *shape of the parameter).
    """

    def loss(leaves: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(network, dict(leaves), (x[None],))
        return cross_entropy(logits, y[None])

    leaves = dict(network.named_parameters())
    found: dict[str, Tensor] = torch.func.vmap(
        torch.func.grad(loss), in_dims=(None, 0, 0)
    )(leaves, x, y)
    return found
