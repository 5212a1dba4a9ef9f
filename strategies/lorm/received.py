"""What an update of LoRM must be before anything is merged with it."""

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import AnyArray, Array, Arrays, Payload, Update, specs
from fcl_flower.core.update_checks import fits
from strategies.lorm.merging import symmetric
from strategies.lorm.payloads import (
    ADAPTERS,
    BIAS,
    GRAMS,
    HEAD,
    HEADS,
    TOKENS,
    WEIGHT,
    trained_factor,
)

GROUPS = ("adapters", "grams", "heads")
_MOST_TOKENS = 2**16  # of a sample: far beyond what any encoder reads
_ROUNDING = 1e-4  # of float32 sums, as a share of the largest eigenvalue


def check_update(state: Payload, update: Update) -> None:
    """Refuse an update that does not fit the server's state.

    Args:
        state: the server's.
        update: ``adapters`` (of each layer the factor of this round), ``grams`` (as in
            `strategies.lorm.payloads`, and ``head``, the `upper_half` of the mean Gram
            matrix of the features) and ``heads`` (``classes``, int64, ascending, and
            their rows).

    Raises:
        WireError: a group, name, shape or dtype is another one, the factor is that of
            another turn, or what should be a Gram matrix cannot be one.
    """
    payload = update.payload
    if payload.keys() != {*GROUPS}:
        raise WireError(f"groups {sorted(payload)}: expected {', '.join(GROUPS)}")
    factor = trained_factor(state)
    turn = {name: t for name, t in state[ADAPTERS].items() if name.endswith(factor)}
    _same("adapters", payload["adapters"], turn)
    _check_grams(state, payload["grams"], update.num_examples)
    _check_heads(state[HEADS], payload["heads"])


def _check_grams(state: Payload, grams: Arrays, examples: int) -> None:
    features = np.asarray(state[HEADS][WEIGHT]).shape[1]
    half = np.zeros(features * (features + 1) // 2, np.float32)
    _same("grams", grams, {**state[GRAMS], HEAD: half})
    for name, found in grams.items():
        values = np.asarray(found)
        if name == HEAD:
            _check_gram(values)
        elif name == TOKENS:
            if not 0 <= int(values) <= _MOST_TOKENS * examples:
                raise WireError(
                    f"grams/{name}: expected 0 to {_MOST_TOKENS} an example, got "
                    f"{int(values)} of {examples}"
                )
        elif not (values >= 0).all():
            raise WireError(f"grams/{name}: expected squares, which are at least 0")


def _check_gram(half: Array) -> None:
    """Refuse what cannot be a Gram matrix; as half of one it is symmetric."""
    gram = symmetric(half.astype(np.float64))
    if not np.isfinite(gram).all() or not (np.diag(gram) >= 0).all():
        raise WireError(f"grams/{HEAD}: expected squares on the diagonal, at least 0")
    values = np.linalg.eigvalsh(gram)
    if not values[0] >= -_ROUNDING * max(values[-1], 0.0):
        raise WireError(f"grams/{HEAD}: expected a positive semidefinite matrix")


def _check_heads(heads: Arrays, sent: Arrays) -> None:
    count, features = np.asarray(heads[WEIGHT]).shape
    spec = specs(sent).get("classes")
    if spec is None or spec.sparse or spec.dtype != np.int64:
        raise WireError("heads/classes: expected a dense tensor of int64")
    if len(spec.shape) != 1 or not 0 < spec.shape[0] <= count:
        raise WireError(f"heads/classes: expected 1 to {count} integers")
    found = np.asarray(sent["classes"])
    if found.min() < 0 or found.max() >= count or (np.diff(found) <= 0).any():
        raise WireError("heads/classes: expected ascending places of the head")
    rows = {
        "classes": found,
        WEIGHT: np.zeros((found.size, features), np.float32),
        BIAS: np.zeros(found.size, np.float32),
    }
    _same("heads", sent, rows)


def _same(group: str, sent: Arrays, expected: Arrays) -> None:
    if sent.keys() != expected.keys():
        odd = sorted(sent.keys() ^ expected.keys())
        raise WireError(f"{group}: tensors {odd} are missing or unknown")
    wanted: dict[str, AnyArray] = dict(expected)
    fits(group, sent, wanted, sparse=False)
