"""Concept Matching, server side: one model for each concept hidden in the data.

Jiang, Sen and Borcea 2025, section III.C and algorithm 1. Symbols: w_1 to w_K are the
groups ``base/0`` to ``base/K-1``, theta_n is what client n sends in ``base``, w'_j the
mean of cluster j. The server looks at nothing but weights and numbers of examples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import Group, Metrics, ServerStrategy
from fcl_flower.core.diagnostics import Clustering, Diagnostic, Points
from fcl_flower.core.errors import WireError, config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.concept_matching import ConceptMatchingParams
from strategies.concept_matching.maths import (
    NOISE,
    NONE,
    Labels,
    Matrix,
    cluster,
    distances,
    embedding,
    gram,
    gram_of_directions,
    match,
    sketched,
)

RECORD = "meta/record"
ROUND = "meta/round"
_LARGEST = float(np.finfo(np.float32).max)


class ConceptMatching(ServerStrategy[ConceptMatchingParams]):
    """Keep K concept models; each client receives all and sends one model back.

    State: ``base/0`` to ``base/K-1``; ``meta/record`` (``distance``, shape (K,): of
    each concept model's last accepted update; ``longest`` of all of them ever); and
    ``meta/round``, the last round by ascending client: ``client``, ``cluster`` (-1:
    noise, left out), ``origin`` (the nearest concept model before the update),
    ``reached`` (the concept model that the client's cluster replaced, -1: none),
    ``map`` (first two principal coordinates of the models, as the clustering sees them)
    and ``silhouette``.
    """

    groups = {"base": Group(model=True)}
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
            RECORD: _record(np.full(count, np.inf), longest=0.0),
            ROUND: _round_record(none, none, none, none, np.zeros((0, 2)), np.nan),
        }

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return {group: state[group] for group in self._groups}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, {"base": state["base/0"]})
        for name, tensor in update.payload["base"].items():
            # Squares of float32 values are finite in float64; those of float64 not.
            values = np.asarray(tensor)
            if values.dtype == np.float64 and np.abs(values).max(initial=0) > _LARGEST:
                raise WireError(f"base/{name}: holds values beyond {_LARGEST:.1e}")

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        concepts = [state[group] for group in self._groups]
        models = [update.payload["base"] for update in updates.values()]
        examples = np.array([float(u.num_examples) for u in updates.values()])
        steps = distances(models, concepts, self.params.distance)
        origin, moved = steps.argmin(axis=1), steps.min(axis=1)
        # Beside one model that is far off all others would look alike. Where most have
        # converged the median is tiny: what a concept still learns is no noise.
        longest = float(np.asarray(state[RECORD]["longest"]))
        usual = max(float(np.median(moved)), longest) or np.inf
        near = np.flatnonzero(moved <= self.params.outlier * usual)
        points = self._points([models[i] for i in near], concepts, origin[near])
        labels = np.full(len(models), NOISE)
        labels[near], silhouette = cluster(
            points,
            origin[near],
            self.params.clustering,
            at_most=self.params.concepts,
            separation=self.params.separation,
            subdivision=self.params.subdivision,
            neighbourhood=self.params.neighbourhood,
            seed=derive(self.context.seed, "k-means", stage.round),
        )
        merged: list[Arrays] = []
        policy = self._policy
        for number in range(labels.max() + 1):
            members = np.flatnonzero(labels == number)
            cluster_models = [models[i] for i in members]
            merged.append(policy.combine(cluster_models, examples[members]))
        metric = self.params.distance
        taken, record = match(
            distances(merged, concepts, metric),
            lambda number: distances(merged, [merged[number]], metric)[:, 0],
            np.asarray(state[RECORD]["distance"]),
            self.params.matching,
            self.params.slack,
        )
        longest = max(longest, record[taken[taken != NONE]].max(initial=0))
        reached = np.append(taken, NONE)[labels]  # noise, -1, reads the last entry
        plane = np.zeros((len(models), 2))
        plane[near, : points.shape[1]] = points[:, :2]
        clients = np.array(list(updates), np.int64)
        return {
            **state,
            **{f"base/{k}": merged[j] for j, k in enumerate(taken) if k != NONE},
            RECORD: _record(record, longest),
            ROUND: _round_record(clients, labels, origin, reached, plane, silhouette),
        }

    @override
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float | Diagnostic]:
        """Report who went where in the last round, and how well that worked.

        Of the clients: ``map``. Of the round: ``clusters``, ``silhouette`` (if any),
        ``updated`` (concept models), ``refused`` (clusters that updated none) and
        ``kept``, the share of clustered clients whose cluster reached their origin.
        """
        last = {name: np.asarray(values) for name, values in state[ROUND].items()}
        found: dict[str, float | Diagnostic] = {}
        if len(last["client"]):
            found["map"] = Points(
                title="Map of the client models",
                note="Each point is the model of a client after its training: near "
                "points have similar weights.",
                frames=[
                    Clustering(
                        round=stage.round,
                        clients=last["client"].tolist(),
                        cluster=last["cluster"].tolist(),
                        origin=last["origin"].tolist(),
                        reached=last["reached"].tolist(),
                        map=last["map"].tolist(),
                    )
                ],
            )
        grouped = last["cluster"] != NOISE
        clusters = len(np.unique(last["cluster"][grouped]))
        updated = len(np.unique(last["reached"][last["reached"] != NONE]))
        found["clusters"] = float(clusters)
        found["updated"] = float(updated)
        found["refused"] = float(clusters - updated)
        if np.isfinite(last["silhouette"]):
            found["silhouette"] = float(last["silhouette"])
        if grouped.any():
            kept = last["reached"] == last["origin"]
            found["kept"] = float(kept[grouped].mean())
        return found

    @property
    def _policy(self) -> Aggregation:
        """How the models of a cluster become one."""
        if self.params.aggregation == "mean":
            return self.aggregation
        return replace(self.aggregation, rule="median")

    @property
    def _groups(self) -> list[str]:
        return [f"base/{k}" for k in range(self.params.concepts)]

    def _shuffled(self, model: Arrays, concept: int) -> Arrays:
        """Draw another network with the same distribution of weights."""
        rng = np.random.default_rng(derive(self.context.seed, "concept", concept))
        return {
            name: rng.permutation(np.asarray(tensor).reshape(-1)).reshape(tensor.shape)
            if tensor.dtype.kind == "f"
            else tensor
            for name, tensor in model.items()
        }

    def _points(
        self, models: Sequence[Arrays], starts: Sequence[Arrays], origin: Labels
    ) -> Matrix:
        if len(models) > self.params.exact_clients:
            seed = derive(self.context.seed, "sketch")
            sketches = sketched([*models, *starts], self.params.sketch, seed)
            models, starts = sketches[: len(models)], sketches[len(models) :]
        if self.params.steps == "length":
            return embedding(gram(models))
        return embedding(gram_of_directions(models, starts, origin))


def _record(distance: Array, longest: float) -> Arrays:
    return {"distance": distance, "longest": np.asarray(longest)}


def _round_record(
    client: Array,
    cluster: Array,
    origin: Array,
    reached: Array,
    plane: Array,
    silhouette: float,
) -> Arrays:
    return {
        "client": client,
        "cluster": cluster,
        "origin": origin,
        "reached": reached,
        "map": plane,
        "silhouette": np.asarray(silhouette),
    }
