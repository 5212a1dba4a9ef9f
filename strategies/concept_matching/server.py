"""Concept Matching, server side: one model for each concept hidden in the data.

Jiang, Sen and Borcea 2025, section III.C and algorithm 1. Symbols: w_1 to w_K are the
groups ``base/0`` to ``base/K-1``, theta_n is the update's ``base`` of client n, w'_j
the mean of cluster j. The server looks at nothing but weights and numbers of examples.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Metrics, Report, ServerStrategy, Updates
from fcl_flower.core.diagnostics import Clustering, Diagnostic, Points
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.concept_matching import ConceptMatchingParams, maths

RECORD = "meta/record"
ROUND = "meta/round"
_LARGEST = float(np.finfo(np.float32).max)


class ConceptMatching(ServerStrategy[ConceptMatchingParams]):
    """A strategy with K concept models; a client receives all and sends one back.

    State:

    - ``base/0`` to ``base/K-1``.
    - ``meta/record``: ``distance``, shape (K,), of each concept model's last accepted
      update; ``longest``, the longest of all such distances ever.
    - ``meta/round``: the last round by ascending client. ``client`` are the numbers.
      ``cluster`` is -1 for noise, which is left out. ``origin`` is the nearest concept
      model before the update. ``reached`` is the concept model that the client's
      cluster replaced, -1 for none. ``map`` has the first two principal coordinates of
      the models, as the clustering sees them. ``silhouette`` is one number.
    """

    needs_rounds = True
    robust_aggregation = True

    @override
    def init(self, model: Arrays) -> Payload:
        own, rule = self.params.aggregation, self.aggregation.rule
        if own == "median" and rule not in ("mean", own):
            expected = f"'mean' with federation.aggregation {rule!r}"
            raise config_error("strategy.aggregation", own, expected)
        count = self.params.concepts
        concepts = [model] * count
        if self.params.initial == "independent":
            concepts[1:] = [self._shuffled(model, k) for k in range(1, count)]
        none = np.zeros(0, np.int64)
        return {
            **{f"base/{k}": concept for k, concept in enumerate(concepts)},
            RECORD: {"distance": np.full(count, np.inf), "longest": np.asarray(0.0)},
            ROUND: {
                **dict.fromkeys(("client", "cluster", "origin", "reached"), none),
                "map": np.zeros((0, 2)),
                "silhouette": np.asarray(np.nan),
            },
        }

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {group: state[group] for group in self._groups}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {"base": state["base/0"]})
        for name, tensor in update.payload["base"].items():
            # Squares of float32 values are finite in float64; float64's may not be.
            values = np.asarray(tensor)
            if values.dtype == np.float64 and np.abs(values).max(initial=0) > _LARGEST:
                raise WireError(f"base/{name}: holds values beyond {_LARGEST:.1e}")

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        concepts = [state[group] for group in self._groups]
        models = [update.payload["base"] for update in updates.values()]
        examples = np.array([float(u.num_examples) for u in updates.values()])
        steps = maths.distances(models, concepts, self.params.distance)
        origin, moved = steps.argmin(axis=1), steps.min(axis=1)
        # Beside one model that is far off all others would look alike. Where most have
        # converged the median is tiny, but a concept that still learns is no noise.
        longest = float(np.asarray(state[RECORD]["longest"]))
        usual = max(float(np.median(moved)), longest) or np.inf
        near = np.flatnonzero(moved <= self.params.outlier * usual)
        points = self._points([models[i] for i in near], concepts, origin[near])
        labels = np.full(len(models), maths.NOISE)
        labels[near], silhouette = maths.cluster(
            points,
            origin[near],
            self.params,
            self.context.derive("k-means", stage.round),
        )
        policy, metric = self.aggregation, self.params.distance
        if self.params.aggregation == "median":
            policy = replace(policy, rule="median")
        clusters = (np.flatnonzero(labels == n) for n in range(labels.max() + 1))
        merged = [policy.combine([models[i] for i in c], examples[c]) for c in clusters]
        taken, record = maths.match(
            maths.distances(merged, concepts, metric),
            lambda number: maths.distances(merged, [merged[number]], metric)[:, 0],
            np.asarray(state[RECORD]["distance"]),
            self.params.matching,
            self.params.slack,
        )
        longest = max(longest, record[taken[taken != maths.NONE]].max(initial=0))
        # Noise, -1, reads the last entry.
        reached = np.append(taken, maths.NONE)[labels]
        plane = np.zeros((len(models), 2))
        plane[near, : points.shape[1]] = points[:, :2]
        return {
            **state,
            **{f"base/{k}": merged[j] for j, k in enumerate(taken) if k != maths.NONE},
            RECORD: {"distance": record, "longest": np.asarray(longest)},
            ROUND: {
                "client": np.array(list(updates), np.int64),
                "cluster": labels,
                "origin": origin,
                "reached": reached,
                "map": plane,
                "silhouette": np.asarray(silhouette),
            },
        }

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        """Report the last round's clusters, and how well the matching worked.

        The table ``map`` is of the clients. The numbers are of the round: ``clusters``,
        ``silhouette`` (if any), ``updated`` (concept models), ``refused`` (clusters
        that updated none) and ``kept``, the share of clustered clients whose cluster
        reached their origin.
        """
        last = {name: np.asarray(values) for name, values in state[ROUND].items()}
        report: dict[str, float | Diagnostic] = {}
        if len(last["client"]):
            names = ("cluster", "origin", "reached", "map")
            frame = Clustering(
                round=stage.round,
                clients=last["client"].tolist(),
                **{name: last[name].tolist() for name in names},
            )
            report["map"] = Points(
                title="Map of the client models",
                note="Each point is the model of a client after its training: near "
                "points have similar weights.",
                frames=[frame],
            )
        grouped = last["cluster"] != maths.NOISE
        clusters = len(np.unique(last["cluster"][grouped]))
        updated = len(np.unique(last["reached"][last["reached"] != maths.NONE]))
        counts = clusters, updated, clusters - updated
        report |= zip(
            ("clusters", "updated", "refused"), map(float, counts), strict=True
        )
        if np.isfinite(last["silhouette"]):
            report["silhouette"] = float(last["silhouette"])
        if grouped.any():
            kept = last["reached"] == last["origin"]
            report["kept"] = float(kept[grouped].mean())
        return report

    @property
    def _groups(self) -> list[str]:
        return [f"base/{k}" for k in range(self.params.concepts)]

    def _shuffled(self, model: Arrays, concept: int) -> Arrays:
        rng = np.random.default_rng(self.context.derive("concept", concept))
        return {
            name: rng.permutation(np.asarray(tensor).reshape(-1)).reshape(tensor.shape)
            if tensor.dtype.kind == "f"
            else tensor
            for name, tensor in model.items()
        }

    def _points(
        self, models: Sequence[Arrays], starts: Sequence[Arrays], origin: maths.Labels
    ) -> maths.Matrix:
        if len(models) > self.params.exact_clients:
            seed = self.context.derive("sketch")
            sketches = maths.sketched([*models, *starts], self.params.sketch, seed)
            models, starts = sketches[: len(models)], sketches[len(models) :]
        if self.params.steps == "length":
            return maths.embedding(maths.gram(models))
        return maths.embedding(maths.gram_of_directions(models, starts, origin))
