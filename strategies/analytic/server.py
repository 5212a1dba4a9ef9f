"""Analytic learning, server side: add up what clients know, and solve.

AFL (He et al., CVPR 2025), AFCL (arXiv:2505.12245) and STSA (arXiv:2506.01327). What
came of each client and task is kept by itself, so that it counts once however often it
comes, and can be taken out again.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from typing_extensions import override

from fcl_flower.aggregation.policy import shares_counted
from fcl_flower.algorithms.base import (
    Metrics,
    ServerContext,
    ServerStrategy,
    SumsUpdates,
)
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update, specs
from fcl_flower.core.update_checks import fits
from strategies.analytic import AnalyticParams
from strategies.analytic.heads import Head, ValidationSums, solve
from strategies.analytic.sums import Matrix, Sums, add_up, between, samples_in, square

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
    """Refuse what no samples can have made; its values may be anything.

    An eigenvalue of N samples may be ``rounding`` N below zero.
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
    """Lay out ``gram``: its names and shapes, without memory of their own."""
    return {
        "cross": _shaped(classes, features + 1),
        "gram": _shaped(features * (features + 1) // 2),
    }


def _expected(
    arrays: Arrays, params: AnalyticParams, classes: int, features: int
) -> Mapping[str, Matrix]:
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


SOLVED = "meta/solved"
_KEY = re.compile(r"sums/(\d+)/(\d+)/([0-9a-f]{16})")


class Analytic(ServerStrategy[AnalyticParams], SumsUpdates):
    """Keep sums by client, task and data; send a head of the classes so far.

    State: ``sums/C/T/ID`` and, where the penalty is to be chosen, ``valid/C/T/ID`` (see
    `sums`), of the data ID of task T of client C; ``head``, or ``head/C/T`` where each
    task has its own (`weight`, `bias`); ``meta/solved`` (`penalty`, the median over
    heads, `samples`, and `same_classes`: pairs of classes of two tasks that were
    joined). Of sums over all clients alone there are ``sums/all`` and ``valid/all``
    instead.

    With a limit of examples (`Aggregation.examples_limit`) a client's task counts by no
    more samples than that: its sums are added up in part.
    """

    groups = {}
    weighs_examples = False

    def __init__(self, params: AnalyticParams, context: ServerContext) -> None:
        """Read how many classes and features there are."""
        super().__init__(params, context)
        self._classes = context.model.classes
        self._features = (
            params.width if params.lift == "relu" else context.model.features
        )

    @override
    def init(self, model: Arrays) -> Payload:
        return {}

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        if self.context.model.single_head:
            sent = {"head": state["head"]} if "head" in state else {}
        else:
            mine = f"head/{client}/"
            sent = {
                f"head/{group.removeprefix(mine)}": arrays
                for group, arrays in state.items()
                if group.startswith(mine)
            }
        # Kept in double precision, which predictions do not need.
        return {
            group: {n: np.asarray(a).astype(np.float32) for n, a in arrays.items()}
            for group, arrays in sent.items()
        }

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        if not payload:
            return
        groups = {"meta", "sums"} if self.params.penalty else {"meta", "sums", "valid"}
        if not {"meta", "sums"} <= payload.keys() <= groups:
            raise WireError(f"groups {sorted(payload)}: expected {sorted(groups)}")
        if payload["meta"].keys() != {"data"}:
            raise WireError(f"meta: got {sorted(payload['meta'])}, expected data alone")
        number = {"data": np.zeros((), np.uint64)}
        fits("meta", payload["meta"], number, sparse=False)
        for group in groups & payload.keys() - {"meta"}:
            arrays = payload[group]
            check(group, arrays, self.params, self._classes, self._features)

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        new: dict[str, Arrays] = {}
        for client, update in updates.items():
            if not update.payload:
                continue
            task = (update.stage or stage).task
            data = int(np.asarray(update.payload["meta"]["data"]))
            for group in _GROUPS:
                if group in update.payload:
                    key = f"{group}/{client}/{task}/{data:016x}"
                    new[key] = update.payload[group]
        if new.keys() <= state.keys():
            return state
        # What came before stays: the same data give the same sums.
        return self._solved({**new, **_kept(state)})

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
        return dict.fromkeys(groups, gram_form(self._classes, self._features))

    @override
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        kept = _kept(state)
        for group, arrays in total.payload.items():
            if not np.asarray(arrays["cross"])[:, -1].any():
                continue  # of no sample: everybody has sent these data before
            check(
                *(group, arrays, self.params, self._classes, self._features),
                rounding=QUANTISED,
            )
            before = kept.get(f"{group}/{_ALL}")
            kept[f"{group}/{_ALL}"] = arrays if before is None else _sum(before, arrays)
        return self._solved(kept)

    @override
    def forget(self, state: Payload, client: int, task: int | None) -> Payload:
        gone = [
            (of_client, of_task, data)
            for of_client, of_task, data in _keys(state)
            if of_client == client and task in (None, of_task)
        ]
        if not gone:
            what = "client" if task is None else f"task {task} of client"
            clients = sorted({key[0] for key in _keys(state)})
            raise config_error(
                what, client, f"one that has sent sums: clients {clients}"
            )
        names = {f"{group}/{c}/{t}/{data}" for c, t, data in gone for group in _GROUPS}
        left = {g: arrays for g, arrays in _kept(state).items() if g not in names}
        return self._solved(left)

    @override
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float]:
        solved = state.get(SOLVED, {})
        return {name: float(np.asarray(value)) for name, value in solved.items()}

    @override
    def remarks(self) -> Mapping[str, str]:
        return {"features": "the network's own, which is not trained"}

    def _solved(self, kept: Payload) -> Payload:
        keys = _keys(kept)
        by_head: dict[str, list[str]] = {}
        owners: dict[str, int] = {}
        if f"sums/{_ALL}" in kept:
            by_head["head"], owners["head"] = [_ALL], _NOBODY
        elif not keys:
            return {}
        for client, task, data in keys:
            name = "head" if self.context.model.single_head else f"head/{client}/{task}"
            by_head.setdefault(name, []).append(f"{client}/{task}/{data}")
            owners[name] = client
        shares = self._shares(kept, keys)
        held = {
            name: ValidationSums(
                *(self._sums(kept, group, of, shares) for group in ("sums", "valid"))
            )
            for name, of in by_head.items()
        }
        heads, penalties, joined = solve(
            held,
            self.params.head,
            self.params.penalty,
            owners=list(owners.values()),
            matching=self.params.matching == "tested",
        )
        samples = sum(one.train.total + one.valid.total for one in held.values())
        groups = [f"{group}/{c}/{t}/{data}" for group in _GROUPS for c, t, data in keys]
        groups += [f"{group}/{_ALL}" for group in _GROUPS]
        return {
            **{group: kept[group] for group in groups if group in kept},
            **{name: _arrays(head) for name, head in heads.items()},
            SOLVED: {
                "penalty": np.asarray(np.median(penalties)),
                "samples": np.asarray(samples),
                "same_classes": np.asarray(joined),
            },
        }

    def _shares(
        self, kept: Payload, keys: Sequence[tuple[int, int, str]]
    ) -> dict[str, float]:
        totals: Counter[tuple[int, int]] = Counter()
        for client, task, data in keys:
            for group in _GROUPS:
                if (name := f"{group}/{client}/{task}/{data}") in kept:
                    totals[client, task] += int(samples_in(kept[name]))
        limit = self.aggregation.examples_limit
        shares = shares_counted([*totals.values()], limit)
        of_task = dict(zip(totals, shares, strict=True))
        return {f"{c}/{t}/{data}": of_task[c, t] for c, t, data in keys} | {_ALL: 1.0}

    def _sums(
        self, kept: Payload, group: str, keys: Sequence[str], shares: dict[str, float]
    ) -> Sums:
        there = [key for key in keys if f"{group}/{key}" in kept]
        return add_up(
            [kept[f"{group}/{key}"] for key in there],
            self._classes,
            self._features,
            [shares[key] for key in there],
        )


_GROUPS = ("sums", "valid")
_ALL = "all"
_NOBODY = -1


def _keys(state: Payload) -> list[tuple[int, int, str]]:
    found = [match for group in state if (match := _KEY.fullmatch(group))]
    return sorted((int(m[1]), int(m[2]), m[3]) for m in found)


def _kept(state: Payload) -> dict[str, Arrays]:
    return {
        group: arrays
        for group, arrays in state.items()
        if group.startswith(tuple(f"{name}/" for name in _GROUPS))
    }


def _sum(some: Arrays, more: Arrays) -> Arrays:
    return {name: np.asarray(some[name]) + np.asarray(more[name]) for name in some}


def _arrays(head: Head) -> Arrays:
    return {"weight": head.weight, "bias": head.bias}
