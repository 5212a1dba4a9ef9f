"""One network for all messages of a thread, lent as it was at first.

A copy for each message costs the memory of a whole network anew, again and again. What
a learner does to it is nearly always to change the values in its tensors, and those are
copied back in place.
"""

import copy
import threading
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from fcl_flower.models.heads import MultiHeadModel

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type),
    *(FunctionType, BuiltinFunctionType),
    *(torch.dtype, torch.device),
)
_TORCHS_OWN = frozenset(vars(nn.Module()))
"""Attributes in which PyTorch keeps parameters, buffers, modules and hooks."""
_Marks: TypeAlias = dict[nn.Module, dict[str, Any]]


class LentNetwork(threading.local):
    """A network that is lent to one learner after the other, each thread its own.

    Two messages that are answered at the same time would change each other's values.
    Values, modes, flags and plain attributes are put back. Where a learner has done
    anything else to the network, such as another layer, a hook or weights of another
    memory, the next one gets a new copy; so does each where the modules of the network
    have attributes that may be changed and not compared, such as lists.
    """

    def __init__(self, initial: MultiHeadModel) -> None:
        """Keep a network, which nobody may change; called in each thread that lends."""
        self._initial = initial
        self._lent: MultiHeadModel | None = None
        self._marks: _Marks = {}
        self._tensors: list[tuple[Tensor, Tensor, int, bool]] = []

    def lend(self) -> MultiHeadModel:
        """Return the network as it was at first, the caller's to change.

        What was lent before is taken back. Parameters that are frozen may be shared
        with others: nobody trains them.
        """
        if self._lent is None or not self._restored():
            self._lent = self._copy()
        return self._lent

    def _copy(self) -> MultiHeadModel:
        frozen = {
            id(tensor): tensor
            for tensor in self._initial.parameters()
            if not tensor.requires_grad
        }
        made = copy.deepcopy(self._initial, frozen)
        self._marks = _marks(made)
        self._tensors = [
            (own, first, own.data_ptr(), own.requires_grad)
            for own, first in zip(_tensors(made), _tensors(self._initial), strict=True)
        ]
        return made

    def _restored(self) -> bool:
        """Put the lent network back; return whether it is as it was at first."""
        if not all(_put_back(*marked) for marked in self._marks.items()):
            return False
        if any(_altered(own, first, at) for own, first, at, _ in self._tensors):
            return False
        with torch.no_grad():
            for own, first, _, trained in self._tensors:
                own.requires_grad_(trained)
                own.grad = None
                if own is not first:
                    own.copy_(first)
        return True


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _altered(own: Tensor, first: Tensor, place: int) -> bool:
    """Return whether a tensor is no longer the memory, or the leaf, that it was."""
    hooks = own._backward_hooks or getattr(own, "_post_accumulate_grad_hooks", None)
    return bool(
        own.data_ptr() != place
        or own.shape != first.shape
        or own.stride() != first.stride()
        or own.dtype != first.dtype
        or own.device != first.device
        or hooks
        or not own.is_leaf
    )


def _marks(network: nn.Module) -> _Marks:
    """Return what every module of a network consists of, to compare later."""
    return {
        module: {name: _mark(value) for name, value in vars(module).items()}
        for module in network.modules()
    }


def _mark(value: object) -> object:
    """Return what an attribute of PyTorch's own is compared with later."""
    if isinstance(value, Mapping):
        return dict(value)
    return frozenset(value) if isinstance(value, set) else value


def _put_back(module: nn.Module, marks: Mapping[str, Any]) -> bool:
    """Put plain attributes back; return whether the others are what they were."""
    found = vars(module)
    for name in found.keys() - marks.keys():
        del found[name]
    for name, mark in marks.items():
        if _plain(mark):
            found[name] = mark
        elif name not in _TORCHS_OWN or not _same(found[name], mark):
            return False
    return True


def _plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_plain, value))
    return isinstance(value, _PLAIN)


def _same(value: object, mark: object) -> bool:
    if not isinstance(mark, dict):
        return value == mark
    return (
        isinstance(value, Mapping)
        and list(value) == list(mark)
        and all(value[key] is mark[key] for key in mark)
    )
