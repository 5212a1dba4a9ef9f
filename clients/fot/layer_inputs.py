"""What enters the layers of a network, as columns of one matrix for each layer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fcl_flower.core.errors import ConfigError
from fcl_flower.models.heads import MultiHeadModel

LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d)
_WORDS = 8


def shared_layers(model: MultiHeadModel) -> dict[str, nn.Module]:
    """Return the layers whose weights clients share, by name.

    Raises:
        ConfigError: a shared weight of several axes is not of a linear layer or
            convolution, or the network does not call that layer as a module, so that
            nobody can tell what enters it.
    """
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
    """Note what enters layers, by name, each time that they are called."""
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
    """Return inputs of a layer as it multiplies them, shape (inputs, samples).

    Those of a convolution are patches, in the order of its flattened kernels; each
    group of channels has its own. With a bias the last row is 1.

    Args:
        layer: linear, or a convolution.
        x: what enters it, as it takes it.
    """
    if isinstance(layer, nn.Linear):
        rows = x.reshape(-1, x.shape[-1])
    elif isinstance(layer, nn.Conv1d | nn.Conv2d):
        rows = _patches(layer, x)
    if layer.bias is not None:
        rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
    return rows.T


def _patches(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Return patches, shape (samples * groups * positions, inputs).

    They are what a convolution answers whose kernels have a single 1 each: so stride,
    padding and dilation are the layer's own.
    """
    shape = layer.weight.shape[1:]
    size = shape.numel()
    units = torch.eye(size, device=x.device).reshape(size, *shape)
    kernels = {"weight": units.repeat(layer.groups, *[1] * len(shape))}
    if layer.bias is not None:
        kernels["bias"] = torch.zeros(layer.groups * size, device=x.device)
    found: Tensor = functional_call(layer, kernels, (x,))
    by_group = found.reshape(len(x), layer.groups, size, -1)
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
