"""A device that there is not: tensors that claim to be elsewhere, and are not.

On a machine without a GPU a forgotten ``.to(device)`` is never noticed. Here a tensor
on `NAME` computes as any other does, but refuses to meet one that stayed behind, as
CUDA would. It says that its device is PyTorch's ``meta``, which needs no driver.
"""

from contextlib import contextmanager
from importlib import import_module
from typing import ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

NAME = "meta"
ATEN = torch.ops.aten
TAKES_INDICES_OF_THE_CPU = {ATEN.index.Tensor, ATEN.index_put.default}
TAKES_INDICES_OF_THE_CPU |= {ATEN.index_put_.default, ATEN._index_put_impl_.default}
MOVES = {ATEN.copy_.default}


class _Elsewhere(torch.Tensor):
    """A tensor whose values are those of ``here``, a tensor on the CPU."""

    used: ClassVar[list[object]] = []

    @staticmethod
    def __new__(cls, here):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            here.shape,
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            device=NAME,
        )

    def __init__(self, here):
        self.here = here

    def __repr__(self):
        return f"elsewhere({self.here})"

    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), named=None):
        return dispatched(function, given, named or {})


class _Mode(TorchDispatchMode):
    """Makes new tensors on the device, which no tensor among the arguments asks for."""

    def __torch_dispatch__(self, function, types, given=(), named=None):
        return dispatched(function, given, named or {})


class _Values(TorchFunctionMode):
    """Takes values there and back, where PyTorch does so by no operation."""

    def __torch_function__(self, function, types, given=(), named=None):
        named = named or {}
        if function is torch.Tensor.tolist and isinstance(given[0], _Elsewhere):
            return given[0].here.tolist()
        like = given[0] if function is torch.Tensor.new_tensor else None
        if function is torch.tensor:
            goes = torch.device(named.get("device") or "cpu").type == NAME
        else:
            goes = isinstance(like, _Elsewhere)
        if not goes:
            return function(*given, **named)
        if like is not None:
            named, given = {"dtype": like.dtype, **named}, given[1:]
        return torch.tensor(*given, **{**named, "device": "cpu"}).to(NAME)


def dispatched(function, given, named):
    leaves, form = tree_flatten((given, named))
    away = [leaf for leaf in leaves if isinstance(leaf, _Elsewhere)]
    wanted = named.get("device")
    goes = bool(away) if wanted is None else torch.device(wanted).type == NAME
    if away:
        _Elsewhere.used.append(function)
        if wanted is None and function not in MOVES | TAKES_INDICES_OF_THE_CPU:
            tensors = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
            if any(not isinstance(t, _Elsewhere) and t.ndim for t in tensors):
                raise RuntimeError(f"{function}: tensors on two devices")
        leaves = [t.here if isinstance(t, _Elsewhere) else t for t in leaves]
    values, options = tree_unflatten(leaves, form)
    if wanted is not None:
        options["device"] = torch.device("cpu")
    found = function(*values, **options)
    if function in MOVES:
        return given[0]
    if not goes:
        return found
    # An operation in place returns the tensor that it was given.
    here = {id(t.here): t for t in away}
    return tree_map_only(
        torch.Tensor, lambda t: here[id(t)] if id(t) in here else _Elsewhere(t), found
    )


def _autocast(device_type, *given, autocast=torch.autocast, **named):
    return autocast("cpu" if device_type == NAME else device_type, *given, **named)


@contextmanager
def available(monkeypatch):
    """Let there be the device `NAME`; yields the operations that it was used for."""
    monkeypatch.setattr(
        import_module("torch.optim.optimizer"),
        "_get_fused_kernels_supported_devices",
        lambda: ["cpu", NAME],
    )
    monkeypatch.setattr(torch, "autocast", _autocast)
    monkeypatch.setattr(_Elsewhere, "used", [])
    with _Mode(), _Values():
        yield _Elsewhere.used
