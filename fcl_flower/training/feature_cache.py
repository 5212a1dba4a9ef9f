"""A cache of features, which a process computes once while they fit into memory.

A frozen body sees the same inputs again and again: a task's training samples in every
round, and its test samples in every evaluation.
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
"""The number of values of each tensor that enter a body's key."""


class FeatureCache:
    """A cache of features by weights and inputs; the least recently used leave it."""

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
        """Return ``compute(x)`` from the cache, or compute and keep it.

        Args:
            body: body in evaluation mode, which with ``x`` determines the result.
            x: inputs, shape (N, *input_shape).
            compute: function from inputs to features, whose result must not be changed
                in place. Each call applies it to one input.
            frozen: whether the result depends only on weights that are not trained.
        """
        description = repr((body, x.shape, x.dtype, str(x.device)))
        digest = hashlib.blake2b(description.encode())
        digest.update(to_numpy(x).tobytes())
        # The features of one input reveal settings that no weight reveals.
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
        features = compute(x)
        self._held[key] = features
        self._bytes += features.nbytes
        while self._bytes > self._limit:
            _, removed = self._held.popitem(last=False)
            self._bytes -= removed.nbytes
        return features


def memory(file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Return the bytes of memory of this machine, or of its container if less."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(file.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def share(total: int, processes: int) -> int:
    """Return the bytes of features that one of ``processes`` may hold.

    All processes together may hold an eighth of ``total``. One process may hold at
    least 256 MB, which are 2,700 images of 65 tokens of width 384.
    """
    return max(2**28, total // (8 * processes))


FEATURES: Final = FeatureCache(share(memory(), os.cpu_count() or 1))
"""The cache of this process; each core may have such a process."""


def frozen_features(model: MultiHeadModel, x: Tensor) -> Tensor:
    """Compute ``model.frozen_features(x)`` once; do not change the result in place."""
    if not len(x) or not hasattr(model.body, "frozen_features"):
        return model.frozen_features(x)
    return FEATURES.features(model.body, x, model.frozen_features, frozen=True)
