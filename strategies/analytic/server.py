"""Analytic learning, server side: add up the clients' sums, and solve for heads.

AFL (He et al., CVPR 2025), AFCL (arXiv:2505.12245) and STSA (arXiv:2506.01327). The
sums of each client and task are kept apart. So they count once however often they come,
and can be removed again.
"""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from typing_extensions import override

from fcl_flower.aggregation.policy import shares_counted
from fcl_flower.algorithms.base import (
    Metrics,
    Report,
    ServerStrategy,
    SumsUpdates,
    Updates,
)
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update, specs
from fcl_flower.core.update_checks import fits, same_tensors
from strategies.analytic import AnalyticParams, sums
from strategies.analytic.heads import HeadSums, solve

_SLACK = 1e-6
"""The length above 1 that a feature may have after its rounding to float32."""
_ROUNDING = 1e-12
"""The rounding of sums in double precision."""
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
    """Refuse sums that no samples can have; the values may be anything.

    An eigenvalue of N samples may be ``rounding`` N below zero.
    """
    expected = _expected(arrays, params, classes, features)
    same_tensors({group: arrays}, {group: expected})
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
        # The square of a finite value may be infinite; then it is too large anyway.
        with np.errstate(over="ignore"):
            scatter = np.square(np.asarray(arrays["within"])).sum()
        if not scatter <= longest.sum():
            raise WireError(f"{group}/within: expected features of length 1 at most")
    if "gram" in arrays:
        _check_gram(f"{group}/gram", np.asarray(arrays["gram"]), cross, rounding)


def _expected(
    arrays: Arrays, params: AnalyticParams, classes: int, features: int
) -> Arrays:
    if params.form == "class-sums":
        return {"parts": _shaped(params.subsets, classes, features + 1)}
    if params.form == "gram" or (params.form == "exact" and "within" not in arrays):
        return _gram_form(classes, features)
    factor = specs(arrays).get("within")
    rows = factor.shape[0] if factor is not None and factor.shape else 0
    most = params.rank if params.form == "low-rank" else features // 2
    within = _shaped(min(rows, most), features)
    return {"cross": _shaped(classes, features + 1), "within": within}


def _gram_form(classes: int, features: int) -> Arrays:
    half = features * (features + 1) // 2
    return {"cross": _shaped(classes, features + 1), "gram": _shaped(half)}


def _shaped(*shape: int) -> sums.Matrix:
    """Lay out a tensor without memory of its own."""
    return np.broadcast_to(np.zeros((), np.float64), shape)


def _check_gram(
    name: str, upper: sums.Matrix, cross: sums.Matrix, rounding: float
) -> None:
    """Refuse a Gram matrix that does not go with the sums of the classes.

    The scatter about the means of the classes has no negative eigenvalue. With one, the
    server could not solve for anything.
    """
    if not np.isfinite(upper).all():
        raise WireError(f"{name}: holds NaN or infinite values")
    full, total = sums.symmetric(upper), cross[:, -1].sum()
    if not np.trace(full) <= (1 + _SLACK) * total:
        raise WireError(f"{name}: expected features of length 1 at most")
    within = full - sums.between(cross)
    within[np.diag_indices(len(within))] += rounding * total
    try:
        np.linalg.cholesky(within)
    except np.linalg.LinAlgError as error:
        raise WireError(f"{name}: no samples have this Gram matrix") from error


SOLVED = "meta/solved"
_GROUPS = ("sums", "valid")
_ALL = "all"
_NOBODY = -1
_KEY = re.compile(r"sums/((\d+)/(\d+)/[0-9a-f]{16})")


class Analytic(ServerStrategy[AnalyticParams], SumsUpdates):
    """A strategy that keeps sums by client, task and data, and sends solved heads.

    State, for the data ID of task T of client C (for sums see `sums`):

    - ``sums/C/T/ID``, and ``valid/C/T/ID`` where the penalty is to be chosen.
    - ``sums/all`` and ``valid/all`` instead, with sums over all clients alone.
    - ``head``, or ``head/C/T`` where each task has its own (`weight`, `bias`).
    - ``meta/solved``: `penalty`, the median over heads; `samples`; and `same_classes`,
      the pairs of classes of two tasks that were joined.

    With a limit of examples (`Aggregation.examples_limit`) a client's task counts by at
    most that many samples: a part of its sums is added up.
    """

    groups = {"sums": "sum"}

    @override
    def prepare(self) -> None:
        """Compute the numbers of classes and features."""
        params, model = self.params, self.context.model
        features = params.width if params.lift == "relu" else model.features
        self._shape = (model.classes, features)

    @override
    def init(self, model: Arrays) -> Payload:
        return {}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        own = f"head/{client}/"
        start = "head" if self.context.model.single_head else own
        # The state is in double precision, which predictions do not need.
        return {
            group.replace(own, "head/"): {
                name: np.asarray(tensor).astype(np.float32)
                for name, tensor in arrays.items()
            }
            for group, arrays in state.items()
            if group.startswith(start)
        }

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        if not payload:
            return
        groups = {"meta", "sums"} if self.params.penalty else {"meta", *_GROUPS}
        if not {"meta", "sums"} <= payload.keys() <= groups:
            raise WireError(f"groups {sorted(payload)}: expected {sorted(groups)}")
        if payload["meta"].keys() != {"data"}:
            raise WireError(f"meta: got {sorted(payload['meta'])}, expected data alone")
        number = {"data": np.zeros((), np.uint64)}
        fits("meta", payload["meta"], number, sparse=False)
        for group in payload.keys() - {"meta"}:
            check(group, payload[group], self.params, *self._shape)

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        new: dict[str, Arrays] = {}
        for client, update in updates.items():
            task = (update.stage or stage).task
            for group in update.payload.keys() & {*_GROUPS}:
                data = int(np.asarray(update.payload["meta"]["data"]))
                new[f"{group}/{client}/{task}/{data:016x}"] = update.payload[group]
        if new.keys() <= state.keys():
            return state
        # Earlier sums stay, since the same data give the same sums.
        return self._solved({**new, **state})

    @override
    def check_summable(self) -> None:
        if self.params.form != "gram":
            raise config_error(
                "strategy.form",
                self.params.form,
                "'gram' with secure aggregation, for sums of one size",
            )
        if not self.context.model.single_head:
            raise config_error(
                "model.head",
                "multi",
                "'single' with secure aggregation, as each task's head needs its own "
                "sums",
            )

    @override
    def summands(self, state: Payload) -> Payload:
        groups = _GROUPS[:1] if self.params.penalty else _GROUPS
        return dict.fromkeys(groups, _gram_form(*self._shape))

    @override
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        kept = dict(state)
        for group, arrays in total.payload.items():
            if not np.asarray(arrays["cross"])[:, -1].any():
                continue  # no samples: all clients have sent these data before
            check(group, arrays, self.params, *self._shape, rounding=QUANTISED)
            before = kept.get(f"{group}/{_ALL}", {})
            kept[f"{group}/{_ALL}"] = {
                name: np.asarray(before[name]) + np.asarray(tensor)
                if before
                else tensor
                for name, tensor in arrays.items()
            }
        return self._solved(kept)

    @override
    def forget(self, state: Payload, client: int, task: int | None) -> Payload:
        sent = _keys(state)
        gone = {
            f"{group}/{key}"
            for owner, its_task, key in sent
            for group in _GROUPS
            if owner == client and task in (None, its_task)
        }
        if not gone:
            what = "client" if task is None else f"task {task} of client"
            clients = sorted({owner for owner, *_ in sent})
            raise config_error(
                what, client, f"one that has sent sums: clients {clients}"
            )
        return self._solved({g: arrays for g, arrays in state.items() if g not in gone})

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        solved = state.get(SOLVED, {})
        return {name: float(np.asarray(value)) for name, value in solved.items()}

    @override
    def remarks(self) -> Mapping[str, str]:
        return {"features": "the network's own, which is not trained"}

    def _solved(self, state: Payload) -> Payload:
        """Solve for the heads of the sums in a state; return the state with both."""
        keys = _keys(state)
        if f"sums/{_ALL}" in state:
            keys = [(_NOBODY, 0, _ALL)]
        if not keys:
            return {}
        shares = self._shares(state, keys)
        by_head: dict[str, list[str]] = {}
        owners: dict[str, int] = {}
        for client, task, key in keys:
            name = "head" if self.context.model.single_head else f"head/{client}/{task}"
            by_head.setdefault(name, []).append(key)
            owners[name] = client

        def added(group: str, own_keys: list[str]) -> sums.Sums:
            there = [key for key in own_keys if f"{group}/{key}" in state]
            return sums.add_up(
                [state[f"{group}/{key}"] for key in there],
                *self._shape,
                [shares[key] for key in there],
            )

        held = [
            HeadSums(*(added(group, own_keys) for group in _GROUPS))
            for own_keys in by_head.values()
        ]
        heads, penalties, joined = solve(
            held,
            self.params.head,
            self.params.penalty,
            owners=[*owners.values()],
            matching=self.params.matching == "tested",
        )
        samples = sum(
            head_sums.train.total + head_sums.valid.total for head_sums in held
        )
        groups = [f"{group}/{key}" for group in _GROUPS for *_, key in keys]
        return {
            **{group: state[group] for group in groups if group in state},
            **{name: head._asdict() for name, head in zip(by_head, heads, strict=True)},
            SOLVED: {
                "penalty": np.asarray(np.median(penalties)),
                "samples": np.asarray(samples),
                "same_classes": np.asarray(joined),
            },
        }

    def _shares(
        self, state: Payload, keys: list[tuple[int, int, str]]
    ) -> Mapping[str, float]:
        totals: Counter[tuple[int, int]] = Counter()
        for client, task, key in keys:
            for group in _GROUPS:
                if (name := f"{group}/{key}") in state:
                    totals[client, task] += int(sums.samples_in(state[name]))
        limit = 0.0 if _ALL in keys[0] else self.aggregation.examples_limit
        shares = shares_counted([*totals.values()], limit)
        by_task = dict(zip(totals, shares, strict=True))
        return {key: by_task[client, task] for client, task, key in keys}


def _keys(state: Payload) -> list[tuple[int, int, str]]:
    """List the keys of sums, ascending: client, task and ``C/T/ID``."""
    matches = [match for group in state if (match := _KEY.fullmatch(group))]
    return sorted((int(m[2]), int(m[3]), m[1]) for m in matches)
