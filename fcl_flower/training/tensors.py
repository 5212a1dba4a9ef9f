"""Conversion between NumPy arrays and torch tensors, in this module only."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn

from fcl_flower.core.errors import ContractError
from fcl_flower.core.types import AnyArray, Array, Arrays, SparseArray


def dense(tensor: AnyArray) -> Array:
    """Convert an array to a dense one; absent entries become zero."""
    return tensor.to_dense() if isinstance(tensor, SparseArray) else tensor


def to_torch(tensor: AnyArray, device: str = "cpu") -> torch.Tensor:
    """Copy an array to a dense torch tensor."""
    return torch.tensor(dense(tensor), device=device)


def to_numpy(tensor: torch.Tensor) -> Array:
    """Copy a tensor to an array, which no later training step changes."""
    return np.array(tensor.detach().cpu().numpy())


def arrays_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Copy named torch tensors to arrays."""
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}


def snapshot(model: nn.Module, names: Iterable[str]) -> dict[str, Array]:
    """Copy the named parameters and buffers of ``model`` to arrays."""
    state = model.state_dict()
    return {name: to_numpy(state[name]) for name in names}


def load(model: nn.Module, arrays: Arrays) -> None:
    """Copy named tensors into ``model``; the others keep their values.

    Raises:
        ContractError: a name or a shape is not the model's.
    """
    state = model.state_dict()
    with torch.no_grad():
        for name, tensor in arrays.items():
            if name not in state or tuple(state[name].shape) != tuple(tensor.shape):
                raise ContractError(
                    f"tensor {name!r} of shape {tuple(tensor.shape)} does not fit "
                    f"{type(model).__name__}"
                )
            target, values = state[name], dense(tensor)
            # Received arrays are read-only, which torch does not take.
            if target.device.type == "cpu":
                np.copyto(target.numpy(), values, casting="unsafe")
            else:
                target.copy_(torch.as_tensor(np.array(values)))
