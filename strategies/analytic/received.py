"""What sums must be before they are added to others: those of some samples."""

from collections.abc import Mapping

import numpy as np

from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Arrays, specs
from fcl_flower.core.update_checks import fits
from strategies.analytic import AnalyticParams
from strategies.analytic.sums import Matrix, between, square

_SLACK = 1e-6
"""How much longer than 1 a feature may be, which was rounded to float32."""
_ROUNDING = 1e-12
"""That of sums in double precision."""
QUANTISED = 1e-9
"""The rounding of sums that were added up in 32 bits behind the binary point."""


def check(
    group: str,
    arrays: Arrays,
    params: AnalyticParams,
    classes: int,
    features: int,
    rounding: float = _ROUNDING,
) -> None:
    """Refuse what no samples can have made.

    Args:
        group: named in the message.
        arrays: what came; its values may be anything.
        params: what was asked for.
        classes: C.
        features: D.
        rounding: how far below zero an eigenvalue of N samples may be, in parts of N.

    Raises:
        WireError: a tensor is missing, unknown or of another shape or dtype; numbers
            of samples are none, or features are longer than 1.
    """
    expected = _expected(arrays, params, classes, features)
    if arrays.keys() != expected.keys():
        odd = sorted(arrays.keys() ^ expected.keys())
        raise WireError(f"{group}: tensors {odd} are missing or unknown")
    fits(group, arrays, expected, sparse=False)
    name = "parts" if params.form == "class-sums" else "cross"
    cross = np.asarray(arrays[name]).reshape(-1, features + 1)
    counts = cross[:, -1]
    if not np.isfinite(cross).all():
        raise WireError(f"{group}/{name}: holds NaN or infinite values")
    whole = (counts >= 0) & (counts == np.rint(counts)) & (counts <= 2**40)
    if not whole.all() or not counts.any():
        raise WireError(f"{group}/{name}: expected numbers of samples")
    longest = (1 + _SLACK) * counts
    if not (np.linalg.norm(cross[:, :-1], axis=1) <= longest).all():
        raise WireError(f"{group}/{name}: expected features of length 1 at most")
    if "within" in arrays:
        # A square may be infinite where the value is not, and is too large, too.
        with np.errstate(over="ignore"):
            scatter = np.square(np.asarray(arrays["within"])).sum()
        if not scatter <= longest.sum():
            raise WireError(f"{group}/within: expected features of length 1 at most")
    if "gram" in arrays:
        _check_gram(f"{group}/gram", np.asarray(arrays["gram"]), cross, rounding)


def gram_form(classes: int, features: int) -> Mapping[str, Matrix]:
    """Return tensors of the names and shapes of ``gram``, without memory of their own.

    Args:
        classes: C.
        features: D.
    """
    return {
        "cross": _shaped(classes, features + 1),
        "gram": _shaped(features * (features + 1) // 2),
    }


def _expected(
    arrays: Arrays, params: AnalyticParams, classes: int, features: int
) -> Mapping[str, Matrix]:
    """Return tensors of the right names and shapes, without memory of their own."""
    if params.form == "class-sums":
        return {"parts": _shaped(params.subsets, classes, features + 1)}
    if params.form == "gram" or (params.form == "exact" and "within" not in arrays):
        return gram_form(classes, features)
    factor = specs(arrays).get("within")
    rows = factor.shape[0] if factor is not None and factor.shape else 0
    most = params.rank if params.form == "low-rank" else features // 2
    within = _shaped(min(rows, most), features)
    return {"cross": _shaped(classes, features + 1), "within": within}


def _shaped(*shape: int) -> Matrix:
    return np.broadcast_to(np.zeros((), np.float64), shape)


def _check_gram(name: str, upper: Matrix, cross: Matrix, rounding: float) -> None:
    """Refuse a Gram matrix that does not go with the sums of the classes.

    The scatter about the means of the classes has no negative eigenvalue; with one, the
    server could not solve for anything.
    """
    if not np.isfinite(upper).all():
        raise WireError(f"{name}: holds NaN or infinite values")
    features, total = cross.shape[1] - 1, cross[:, -1].sum()
    full = square(upper, features)
    if not np.trace(full) <= (1 + _SLACK) * total:
        raise WireError(f"{name}: expected features of length 1 at most")
    within = full - between(cross)
    within[np.diag_indices(features)] += rounding * total
    try:
        np.linalg.cholesky(within)
    except np.linalg.LinAlgError as error:
        raise WireError(f"{name}: no samples have this Gram matrix") from error
