"""The Gaussian mechanism on a whole update: clip the difference, then add noise.

McMahan et al., ICLR 2018, https://arxiv.org/abs/1710.06963, algorithm 1, with all noise
added by the client, before anything leaves it.
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

    All floating-point tensors are one vector: the difference from what was received,
    from zero where nothing was. It is brought to the norm ``clip`` at most, and every
    entry gets noise of the standard deviation ``noise_multiplier * clip``. What else
    depends on data does not travel: an entry that was not sent counts as not changed,
    whole numbers (BatchNorm counts its batches) stay as received, every client claims
    one example, and there are no metrics.

    A group of sparse tensors of which nothing was received is made sparse again, which
    is post-processing: entries within ``sqrt(2 ln D)`` standard deviations of zero, D
    of them in the tensor, do not stand out of the noise (Donoho and Johnstone,
    Biometrika 1994, the universal threshold) and are left out.

    Args:
        update: of a learner.
        received: what the learner was given for it.
        clip: C, above 0.
        noise_multiplier: z, above 0.
        rng: of the noise, secret (`secret_generator`).
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
                moved = np.asarray(tensor, np.float64) - np.asarray(start, np.float64)
                differences[group, name] = moved
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
        if name.endswith("running_var"):  # of BatchNorm, which takes its root
            whole = np.maximum(whole, 0.0)
        sent = whole.astype(tensor.dtype)
        if not isinstance(tensor, SparseArray):
            payload[group][name] = sent
        elif name in received.get(group, {}):
            payload[group][name] = SparseArray.of_mask(sent, np.ones(sent.shape, bool))
        else:
            least = deviation * math.sqrt(2 * math.log(max(tensor.size, 2)))
            payload[group][name] = SparseArray.of_nonzero(sent, least)
    return Update(payload, num_examples=1, stage=update.stage)


def _start(tensor: AnyArray, received: AnyArray | None) -> Array:
    if received is None:
        return np.zeros(tensor.shape, tensor.dtype)
    return received.to_dense() if isinstance(received, SparseArray) else received


def _clipping(differences: Mapping[tuple[str, str], Values], clip: float) -> float:
    """Find the factor that brings the norm of all differences to ``clip`` at most.

    Of a difference that is not finite nothing is kept. That it is not must not be told
    either, so that noise alone is sent.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(sum(float(np.square(d).sum()) for d in differences.values()))
    if math.isfinite(norm):
        return min(1.0, clip / norm) if norm else 1.0
    _LOG.warning("what was learned is not finite: noise is sent in its place")
    for difference in differences.values():
        difference[...] = 0.0
    return 0.0


SIMULATION: Final = "FCL_SIMULATION"
"""Name of what is set in the environment of a simulation's processes. A setting of the
run would come from the server, which must not choose the noise of its clients."""


def is_simulated() -> bool:
    """Tell whether this process belongs to a simulation."""
    return SIMULATION in os.environ


def secret_generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Make a generator that nobody else can repeat, outside of a simulation.

    In a simulation it follows from ``seed``, ``purpose`` and ``key`` (`derive`).
    """
    if is_simulated():
        return np.random.default_rng(derive(seed, purpose, *key))
    return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))


@contextmanager
def simulated() -> Iterator[None]:
    """Say for a while that this process is a simulation."""
    before = os.environ.get(SIMULATION)
    os.environ[SIMULATION] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SIMULATION]
        else:
            os.environ[SIMULATION] = before
