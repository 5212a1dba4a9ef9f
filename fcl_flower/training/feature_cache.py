"""Features of inputs, computed once in a process as long as they fit into memory.

Whoever never trains a body meets the same inputs again: a task's training samples in
every round, and its test samples in every evaluation.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from torch import Tensor, nn

from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.tensors import to_numpy

_SAMPLED = 64
"""Values of every tensor that tell bodies apart."""


class FeatureCache:
    """Features by the weights and inputs that made them; what is used least leaves."""

    def __init__(self, limit: int) -> None:
        """Make an empty cache for ``limit`` bytes of features."""
        self._limit = limit
        self._held: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0

    def features(
        self,
        body: nn.Module,
        x: Tensor,
        compute: Callable[[Tensor], Tensor],
        *,
        frozen: bool = False,
    ) -> Tensor:
        """Compute ``compute(x)``, or find it: it must follow from the body and ``x``.

        Args:
            body: in evaluation mode.
            x: inputs, shape (N, *input_shape).
            compute: from inputs to features; its result must not be changed in place.
                Called with one input in any case.
            frozen: it follows from those weights alone that are not trained.
        """
        about = repr((body, x.shape, x.dtype, str(x.device)))
        digest = hashlib.blake2b(about.encode())
        digest.update(to_numpy(x).tobytes())
        # A setting that no weight shows, it shows in what becomes of one input.
        digest.update(to_numpy(compute(x[:1])).tobytes())
        trained = {n for n, p in body.named_parameters() if frozen and p.requires_grad}
        for name, tensor in body.state_dict().items():
            if name not in trained:
                flat = tensor.reshape(-1)
                sampled = flat[:: max(1, len(flat) // _SAMPLED)]
                digest.update(f"{name}{tuple(tensor.shape)}".encode())
                digest.update(to_numpy(sampled.float()).tobytes())
        key = digest.digest()
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        found = compute(x)
        self._held[key] = found
        self._bytes += found.nbytes
        while self._bytes > self._limit:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone.nbytes
        return found


def memory(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Count the bytes of memory of this machine, or of its container where less."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(file.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def share(total: int, processes: int) -> int:
    """Count the bytes that one of some processes may hold: an eighth is for all.

    256 MB in any case, which are 2,700 images of 65 tokens of width 384.
    """
    return max(2**28, total // (8 * processes))


FEATURES: Final = FeatureCache(share(memory(), os.cpu_count() or 1))
"""That of this process; there may be one for each core."""


def frozen_features(model: MultiHeadModel, x: Tensor) -> Tensor:
    """Compute ``model.frozen_features(x)``, once; not to be changed in place."""
    if not len(x) or not hasattr(model.body, "frozen_features"):
        return model.frozen_features(x)
    return FEATURES.features(model.body, x, model.frozen_features, frozen=True)
