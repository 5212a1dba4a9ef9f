"""GLFC's proxy server: finding images from their gradients, and testing models on them.

Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, section 3.3. A shallow network
that only the server and the clients have encodes an image as its gradient. Its form and
its weights are those of the released code, which takes them from Zhu et al., NeurIPS
2019, https://arxiv.org/abs/1906.08935.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.models.build import seeded
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import dense, load, to_numpy

LAST: Final = "fc"
"""The name of the last layer, whose gradient tells an image's label."""
_CHANNELS: Final = 12
_ROUNDING: Final = 0.05
"""The largest error of probabilities after they travelled in fewer digits."""
_PRECISION: Final = {"ftol": 1e-12, "gtol": 1e-9}
"""The tolerances of a search: how little of the squared distance is still worth a
step."""


class EncodingNetwork(nn.Module):
    """A network of three convolutions with sigmoids and a linear layer, untrained.

    The network maps images (batch, C, H, W) to logits (batch, classes). It is never
    trained. The sigmoids make it twice differentiable, which a search for an image
    needs.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, seed: int) -> None:
        """Draw the weights from [-0.5, 0.5], the same for the same seed."""
        super().__init__()
        if len(input_shape) != 3:
            raise config_error(
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
        """Compute logits, shape (batch, classes)."""
        logits: Tensor = self.fc(self.body(x))
        return logits


def sample_gradients(
    network: EncodingNetwork, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Compute the gradient of each sample's cross-entropy; differentiable in ``x``.

    Gradients are by parameter, shape (N, *shape of the parameter).
    """

    def loss(leaves: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = torch.func.functional_call(network, dict(leaves), (x[None],))
        return cross_entropy(logits, y[None])

    leaves = dict(network.named_parameters())
    gradients: dict[str, Tensor] = torch.func.vmap(
        torch.func.grad(loss), in_dims=(None, 0, 0)
    )(leaves, x, y)
    return gradients


class ProxyTrainer(ServerTrainer):
    """The encoding network that clients have too, and a model for any tensors.

    Attributes:
        encoded: float32 zeros by name, of the shapes of one image's gradient.
    """

    @override
    def __post_init__(self) -> None:
        """Draw the encoding network."""
        super().__post_init__()
        model = self.model
        # The network is in double precision, since the search squares small numbers.
        network = EncodingNetwork(model.input_shape, model.classes, self.seed)
        self.encoded: Arrays = {
            name: np.zeros(parameter.shape, np.float32)
            for name, parameter in network.named_parameters()
        }
        self._network = network.double().to(self.public.y.device)

    def labels_of(self, gradients: Arrays) -> Array:
        """Read the labels of images, int64, shape (N,), out of their gradients.

        The inputs of the last layer are positive. So among the rows of its weights'
        gradient only the label's is negative (Zhao et al., 2020,
        https://arxiv.org/abs/2001.02610).

        Raises:
            WireError: these are no gradients of single images.
        """
        rows = np.asarray(dense(gradients[f"{LAST}.weight"]), np.float64).sum(2)
        errors = np.asarray(dense(gradients[f"{LAST}.bias"]), np.float64)
        labels = np.asarray(rows.argmin(1), np.int64)
        # The gradient by a logit is its probability, minus 1 at the label.
        others = np.array(errors)
        others[np.arange(len(labels)), labels] += 1
        if (np.abs(others - 0.5) > 0.5 + _ROUNDING).any() or (
            np.abs(others.sum(1) - 1) > _ROUNDING
        ).any():
            raise WireError(f"{LAST}.bias: expected probabilities, less 1 at the label")
        return labels

    def reconstruct(
        self, gradients: Arrays, labels: Array, steps: int, seed: int
    ) -> Array:
        """Search for the images whose gradients are nearest to ``gradients``.

        L-BFGS minimises the squared distance, from images of normal numbers, for all of
        them together, in at most ``steps`` steps.

        Args:
            gradients: by parameter of the encoding network, float32, (N, *shape).
            labels: labels of the images, shape (N,).
            steps: largest number of steps.
            seed: seed of the first images.

        Returns:
            images, float32, (N, C, H, W); not finite where gradients are those of no
            image.
        """
        # Clients import this module for the encoding network, but need no SciPy.
        from scipy.optimize import minimize

        device = next(self._network.parameters()).device
        sent = {name: dense(gradients[name]) for name in self.encoded}
        wanted = {n: torch.tensor(g).to(device, torch.float64) for n, g in sent.items()}
        y = torch.tensor(labels, dtype=torch.int64, device=device)
        shape = (len(labels), *self.model.input_shape)

        def distance(values: Array) -> tuple[float, npt.NDArray[np.float64]]:
            x = torch.tensor(values.reshape(shape), device=device, requires_grad=True)
            reached = sample_gradients(self._network, x, y)
            parts = [(reached[name] - wanted[name]).square().sum() for name in wanted]
            total = torch.stack(parts).sum()
            (slope,) = torch.autograd.grad(total, x)
            return float(total.detach()), to_numpy(slope).ravel()

        start = np.random.default_rng(seed).standard_normal(shape).ravel()
        options = {"maxiter": steps, **_PRECISION}
        with np.errstate(all="ignore"):  # a hostile client may have sent anything
            search = minimize(
                distance, start, jac=True, method="L-BFGS-B", options=options
            )
            return np.asarray(search.x.reshape(shape), np.float32)

    def accuracy(
        self, tensors: Arrays, x: Array, labels: Array, classes: Array
    ) -> float:
        """Compute the fraction of images that a model answers correctly.

        Only the logits at the places ``classes`` compete; all labels are among them.
        """
        load(self.model, tensors)
        device = next(self.model.parameters()).device
        inputs = self.model.frozen_features(torch.tensor(x, device=device))
        logits = to_numpy(predict_logits(self.model, inputs))[:, classes]
        return float((classes[logits.argmax(1)] == labels).mean())
