"""FOT, client side: plain training, and sketches of the inputs of layers.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289. As in the authors' released
code the inputs are those of the client's network after its last round of training.

A sketch is random, and takes up many vectors a few at a time. Halko et al., SIAM Review
2011, https://arxiv.org/abs/0909.4061: for random R the left singular vectors of ``A R``
are nearly those of A, shape (inputs, samples).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import override

from fcl_flower.algorithms.local_training import LocalTraining, Turn
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.types import Array, Payload, Update
from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import dense, to_numpy
from strategies.fot import (
    OUTSIDE,
    SKETCHES,
    SUBSPACE,
    FotParams,
    layer_inputs,
    sketch_columns,
)

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)
_WORDS = 8


def shared_layers(model: MultiHeadModel) -> dict[str, nn.Module]:
    """Find the layers whose weights clients share, by name."""
    layers = dict[str, nn.Module]()
    state = model.state_dict()
    for name in model.shared_names():
        if state[name].dim() < 2:
            continue
        owner, _, kind = name.rpartition(".")
        layer = model.get_submodule(owner)
        if kind != "weight" or not isinstance(layer, LINEAR):
            raise _unfit(name)
        layers[owner] = layer
    model.eval()
    with torch.no_grad(), recorded(layers) as seen:
        model(_one_input(model), 0)
    for owner in layers:
        if not seen[owner]:
            raise _unfit(f"{owner}.weight")
    return layers


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """Record the inputs of layers, by name, at each call."""
    seen = dict[str, list[Tensor]]()

    def note(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        seen[name] = []
        return layer.register_forward_pre_hook(
            lambda _, inputs: seen[name].append(inputs[0].detach())
        )

    handles = [note(name, layer) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def columns(layer: nn.Module, x: Tensor) -> Tensor:
    """Lay out inputs of a layer as its weights multiply them, shape (inputs, samples).

    Inputs of a convolution are patches, in the order of its flattened kernels. Each
    group of channels has its own. With a bias the last row is 1.
    """
    if isinstance(layer, nn.Linear):
        rows = x.reshape(-1, x.shape[-1])
    elif isinstance(layer, nn.Conv1d | nn.Conv2d):
        rows = _patches(layer, x)
    if layer.bias is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    return rows.T


def _patches(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Lay out patches, shape (samples * groups * positions, inputs).

    They are the outputs of a convolution whose kernels have a single 1 each. So stride,
    padding and dilation are the layer's own.
    """
    shape = layer.weight.shape[1:]
    size = shape.numel()
    units = torch.eye(size, device=x.device).reshape(size, *shape)
    kernels = {"weight": units.repeat(layer.groups, *[1] * len(shape))}
    if layer.bias is not None:
        kernels["bias"] = torch.zeros(layer.groups * size, device=x.device)
    patches: Tensor = functional_call(layer, kernels, (x,))
    by_group = patches.reshape(len(x), layer.groups, size, -1)
    return by_group.transpose(2, 3).reshape(-1, size)


def _one_input(model: MultiHeadModel) -> Tensor:
    device = next(model.parameters()).device
    if model.input_shape == (-1,):
        return torch.ones((1, _WORDS), dtype=torch.int64, device=device)
    return torch.zeros((1, *model.input_shape), device=device)


def _unfit(name: str) -> ConfigError:
    return ConfigError(
        f"model: got the shared weight {name}, expected only those of linear layers "
        "and convolutions that are called as modules: FOT has to know what enters them"
    )


class Sketch:
    """A sketch ``(A - U U^T A) R / sqrt(samples * columns)``; A comes in parts.

    R is standard normal. So the squares of a sketch are about the mean square of a
    sample's part outside of U. They do not grow with the number of samples.
    """

    def __init__(self, basis: Array, columns: int) -> None:
        """Begin without samples; U, shape (inputs, directions), is orthonormal."""
        self._basis = np.asarray(basis, np.float64)
        self._sum = np.zeros((len(basis), columns))
        self._samples = 0
        self._squares = 0.0
        self._outside = 0.0

    def add(self, inputs: Array, rng: np.random.Generator) -> None:
        """Add samples, shape (inputs, samples), with their rows of R."""
        vectors = np.asarray(inputs, np.float64)
        outside = vectors - self._basis @ (self._basis.T @ vectors)
        self._sum += outside @ rng.standard_normal((vectors.shape[1], self.columns))
        self._samples += vectors.shape[1]
        self._squares += float(np.square(vectors).sum())
        self._outside += float(np.square(outside).sum())

    @property
    def columns(self) -> int:
        """The number of its columns."""
        return int(self._sum.shape[1])

    @property
    def values(self) -> Array:
        """The sketch, float32, shape (inputs, columns); zeros without samples."""
        scale = np.sqrt(max(self._samples, 1) * self.columns)
        return np.asarray(self._sum / scale, np.float32)

    @property
    def outside(self) -> Array:
        """The share ``|A - U U^T A|^2 / |A|^2``, float32; 0 where A is 0."""
        share = self._outside / self._squares if self._squares else 0.0
        return np.asarray(min(share, 1.0), np.float32)


CHUNK = 64


class Fot(LocalTraining[FotParams]):
    """A learner that also sends sketches of layers' inputs in a task's last round."""

    @override
    def prepare(self) -> None:
        self._layers = shared_layers(self.model)

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, update = super().train(turn)
        if not turn.stage.ends_task:
            return state, update
        return state, update.with_groups(self._sketches(turn))

    def _sketches(self, turn: Turn) -> Payload:
        """Sketch the inputs of the layers.

        The random numbers stay secret, since with them one might solve for the inputs.
        """
        context, (_, received, stage, data) = self.context, turn
        rng = secret_generator(context.seed, "sketch", context.client, stage.round)
        bases, tensors = received.get(SUBSPACE, {}), self.model.state_dict()
        shared = {name: tensors[name] for name in self.model.shared_names()}
        sketches = {
            name: Sketch(
                dense(bases.get(name, np.zeros((count, 0)))),
                sketch_columns(count, self.params.sketch_width),
            )
            for name, count in layer_inputs(shared).items()
        }
        for name, inputs in self._inputs(data.train, stage.task):
            sketches[name].add(inputs, rng)
        return {
            SKETCHES: {name: sketch.values for name, sketch in sketches.items()},
            OUTSIDE: {name: sketch.outside for name, sketch in sketches.items()},
        }

    def _inputs(self, examples: Examples, task: int) -> Iterator[tuple[str, Array]]:
        model = self.model
        model.eval()
        x = frozen_features(model, examples.x)
        for chunk, _ in batches(Examples(x, examples.y), CHUNK):
            with torch.no_grad(), recorded(self._layers) as seen:
                model(chunk, task)
            for name, layer in self._layers.items():
                vectors = torch.cat(
                    [columns(layer, x_layer) for x_layer in seen[name]], 1
                )
                yield name, to_numpy(vectors)
