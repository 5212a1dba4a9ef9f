"""The Gaussian mechanism on a whole update: clip the difference, then add noise.

It is algorithm 1 of McMahan et al., ICLR 2018, https://arxiv.org/abs/1710.06963, except
that the client adds all noise before anything leaves it.
"""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from typing import Final

import numpy as np
import numpy.typing as npt

from fcl_flower.core.schedule import derive
from fcl_flower.core.types import AnyArray, Array, Payload, SparseArray, Update

Values = npt.NDArray[np.float64]
_LOG = getLogger(__name__)


def privatize(
    update: Update,
    received: Payload,
    clip: float,
    noise_multiplier: float,
    rng: np.random.Generator,
) -> Update:
    """Hide the data of the client that made an update.

    The differences of all floating-point tensors from the received ones, or from zero
    for tensors that were not received, are one vector. Its norm is clipped to ``clip``,
    and every entry gets noise of the standard deviation ``noise_multiplier * clip``.
    Nothing else that depends on data is sent. An absent entry counts as unchanged,
    integers (BatchNorm's counts of batches) stay as received, the number of examples
    is 1, and there are no metrics.

    A sparse tensor that was not received becomes sparse again, which is
    post-processing. Entries are left out within ``sqrt(2 ln D)`` standard deviations of
    zero, for D entries of the tensor: they do not stand out of the noise (the universal
    threshold, Donoho and Johnstone, Biometrika 1994).

    Args:
        update: update of a learner.
        received: tensors that the server sent for it.
        clip: largest norm C, above 0.
        noise_multiplier: z, above 0.
        rng: secret generator of the noise (`secret_generator`).
    """
    starts: dict[tuple[str, str], Array] = {}
    differences: dict[tuple[str, str], Values] = {}
    for group, arrays in update.payload.items():
        for name, tensor in arrays.items():
            start = _start(tensor, received.get(group, {}).get(name))
            starts[group, name] = start
            if tensor.dtype.kind == "f":
                if isinstance(tensor, SparseArray):
                    tensor = tensor.overwrite(start)
                change = np.asarray(tensor, np.float64) - np.asarray(start, np.float64)
                differences[group, name] = change
    scale = _clipping(differences, clip)
    deviation = noise_multiplier * clip
    payload: dict[str, dict[str, AnyArray]] = {group: {} for group in update.payload}
    for (group, name), start in starts.items():
        tensor = update.payload[group][name]
        if (group, name) not in differences:
            payload[group][name] = np.asarray(start, tensor.dtype)
            continue
        noise = rng.normal(0.0, deviation, tensor.shape)
        whole = start + (scale * differences[group, name] + noise)
        if name.endswith("running_var"):  # BatchNorm takes its square root
            whole = np.maximum(whole, 0.0)
        noisy = whole.astype(tensor.dtype)
        if not isinstance(tensor, SparseArray):
            payload[group][name] = noisy
        elif name in received.get(group, {}):
            everywhere = np.ones(noisy.shape, bool)
            payload[group][name] = SparseArray.of_mask(noisy, everywhere)
        else:
            threshold = deviation * math.sqrt(2 * math.log(max(tensor.size, 2)))
            payload[group][name] = SparseArray.of_nonzero(noisy, threshold)
    return Update(payload, num_examples=1, stage=update.stage)


def _start(tensor: AnyArray, received: AnyArray | None) -> Array:
    if received is None:
        return np.zeros(tensor.shape, tensor.dtype)
    return received.to_dense() if isinstance(received, SparseArray) else received


def _clipping(differences: Mapping[tuple[str, str], Values], clip: float) -> float:
    """Compute the factor that clips the norm of all differences to ``clip``.

    Differences that are not finite are set to zero, so that noise alone is sent: the
    server must not learn that they were not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(sum(float(np.square(d).sum()) for d in differences.values()))
    if math.isfinite(norm):
        return min(1.0, clip / norm) if norm else 1.0
    _LOG.warning("the update is not finite: noise is sent in its place")
    for difference in differences.values():
        difference[...] = 0.0
    return 0.0


SIMULATION: Final = "FCL_SIMULATION"
"""The environment variable of a simulation's processes.

It is no setting of the run, since these come from the server, which must not choose the
noise of its clients.
"""


def is_simulated() -> bool:
    """Tell whether this process belongs to a simulation."""
    return SIMULATION in os.environ


def secret_generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Make a secret generator, which nobody else can repeat.

    In a simulation the generator follows from ``seed``, ``purpose`` and ``key``, as in
    `derive`, and is no secret.
    """
    if is_simulated():
        return np.random.default_rng(derive(seed, purpose, *key))
    return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))


@contextmanager
def simulated() -> Iterator[None]:
    """Mark this process as a simulation within the context."""
    previous = os.environ.get(SIMULATION)
    os.environ[SIMULATION] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[SIMULATION]
        else:
            os.environ[SIMULATION] = previous
