"""Where a server finds images from their gradients, and tries models on them.

GLFC's proxy server: Dong et al., CVPR 2022, https://arxiv.org/abs/2203.11473, section
3.3.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from typing_extensions import override

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.inversion.encoding_network import (
    LAST,
    EncodingNetwork,
    sample_gradients,
)
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import dense, load, to_numpy

_ROUNDING: Final = 0.05
"""More than probabilities are off after they travelled in fewer digits."""
_PRECISION: Final = {"ftol": 1e-12, "gtol": 1e-9}
"""Of a search: how little of the squared distance is still worth a step."""


class ProxyTrainer(ServerTrainer):
    """The encoding network that clients have too, and a model for any tensors.

    Attributes:
        encoded: float32 zeros by name, of the shapes of one image's gradient.
    """

    @override
    def __post_init__(self) -> None:
        """Draw the encoding network.

        Raises:
            ConfigError: the model takes no images.
        """
        super().__post_init__()
        model = self.model
        # In double precision, since the search squares small numbers.
        network = EncodingNetwork(model.input_shape, model.classes, self.seed)
        self.encoded: Arrays = {
            name: np.zeros(parameter.shape, np.float32)
            for name, parameter in network.named_parameters()
        }
        self._network = network.double().to(self.public.y.device)

    def labels_of(self, gradients: Arrays) -> Array:
        """Return the labels of images, int64, shape (N,), which their gradients tell.

        What enters the last layer is positive, so that among the rows of its weights'
        gradient the one of the label is the only negative one (Zhao et al., 2020,
        https://arxiv.org/abs/2001.02610).

        Args:
            gradients: see `reconstruct`.

        Raises:
            WireError: these are no gradients of single images.
        """
        rows = np.asarray(dense(gradients[f"{LAST}.weight"]), np.float64).sum(2)
        errors = np.asarray(dense(gradients[f"{LAST}.bias"]), np.float64)
        labels = np.asarray(rows.argmin(1), np.int64)
        # The gradient by a logit is its probability, less 1 at the label.
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
        """Return the images whose gradients are nearest to given ones.

        The squared distance is minimised by L-BFGS from an image of normal numbers,
        for all of them together.

        Args:
            gradients: by parameter of the encoding network, float32, (N, *shape).
            labels: of the images, int64, shape (N,).
            steps: of the search, at most.
            seed: of where it starts.

        Returns:
            float32, shape (N, C, H, W); not finite where gradients are those of no
            image.
        """
        device = next(self._network.parameters()).device
        wanted = {
            name: torch.tensor(
                dense(gradients[name]), dtype=torch.float64, device=device
            )
            for name in self.encoded
        }
        y = torch.tensor(labels, dtype=torch.int64, device=device)
        shape = (len(labels), *self.model.input_shape)

        def distance(values: Array) -> tuple[float, npt.NDArray[np.float64]]:
            x = torch.tensor(values.reshape(shape), device=device, requires_grad=True)
            found = sample_gradients(self._network, x, y)
            parts = [(found[name] - wanted[name]).square().sum() for name in wanted]
            total = torch.stack(parts).sum()
            (slope,) = torch.autograd.grad(total, x)
            return float(total.detach()), to_numpy(slope).ravel()

        start = np.random.default_rng(seed).standard_normal(shape).ravel()
        options = {"maxiter": steps, **_PRECISION}
        with np.errstate(all="ignore"):  # of what a hostile client may have sent
            found = minimize(
                distance, start, jac=True, method="L-BFGS-B", options=options
            )
            return np.asarray(found.x.reshape(shape), np.float32)

    def accuracy(
        self, tensors: Arrays, x: Array, labels: Array, classes: Array
    ) -> float:
        """Return the fraction of images that a model answers rightly.

        Args:
            tensors: the model's shared tensors.
            x: images, shape (N, C, H, W), N at least 1.
            labels: int64, shape (N,).
            classes: places of the logits that compete, int64, with all of ``labels``.
        """
        load(self.model, tensors)
        device = next(self.model.parameters()).device
        inputs = self.model.frozen_features(torch.tensor(x, device=device))
        logits = to_numpy(predict_logits(self.model, inputs))[:, classes]
        return float((classes[logits.argmax(1)] == labels).mean())
