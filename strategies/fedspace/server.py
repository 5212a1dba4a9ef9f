"""FedSpace, server side: a mean model that moves slowly, and prototypes of classes.

Shenaj et al., CVPR workshops 2023, https://arxiv.org/abs/2304.03626, as the authors'
code computes it.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from fcl_flower.aggregation.interpolation import interpolate
from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.hooks import KnowsModel, SumsUpdates
from fcl_flower.core.errors import WireError
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.fedspace import FedSpaceParams

PROTOTYPES = "prototypes"


class FedSpace(ServerStrategy[FedSpaceParams], SumsUpdates, KnowsModel):
    """Keep one global model and a prototype of each class; every client receives both.

    With the means of a round, to which a client counts by its examples and to a
    prototype only if it holds the class,

        w <- w + server_rate * (mean of w_k - w)
        p_c <- p_c + prototype_rate * (mean of p_kc - p_c), or that mean if c is new
        r <- mean of r_k.

    State: ``base``; ``prototypes`` with ``means``, p, float32, shape (classes,
    features), 0 where there is none; ``held``, float32, shape (classes,), 1 where there
    is one; ``radius``, r, float32, shape (). An update has the same of one client.
    """

    combines = True
    differences = ("base",)
    predicts_with = ("base",)

    @override
    def init(self, model: Arrays) -> Payload:
        nothing = {
            "means": np.zeros((self.classes, self.features), np.float32),
            "held": np.zeros(self.classes, np.float32),
            "radius": np.zeros((), np.float32),
        }
        return {"base": model, PROTOTYPES: nothing}

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        return state

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        same_tensors(update.payload, state)
        sent = {n: np.asarray(a) for n, a in update.payload[PROTOTYPES].items()}
        held = sent["held"]
        if not np.isin(held, (0, 1)).all():
            raise WireError(f"{PROTOTYPES}/held: expected 0 and 1 alone")
        if sent["means"][held == 0].any():
            expected = "expected 0 for a class that is not held"
            raise WireError(f"{PROTOTYPES}/means: {expected}")
        _check_radius(sent["radius"])

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        trained = {c: one for c, one in updates.items() if one.num_examples}
        if not trained:
            return state
        base = self.aggregation.combine_groups(trained, {"base": state["base"]})
        counts = [update.num_examples for update in trained.values()]
        held_alone = [_of_held(one.payload[PROTOTYPES]) for one in trained.values()]
        none_yet = {**state[PROTOTYPES], "held": np.zeros(self.classes, np.float32)}
        found = self.aggregation.combine(held_alone, counts, none_yet)
        return self._next(state, base, found)

    @override
    def summands(self, state: Payload) -> Payload:
        return state

    @override
    def aggregate_sum(self, state: Payload, stage: TaskStage, total: Update) -> Payload:
        if not total.num_examples:
            return state
        found = {n: np.asarray(a) for n, a in total.payload[PROTOTYPES].items()}
        share = found["held"]  # of the examples: those of clients that hold a class
        if share.min() < 0 or share.max() > 1:
            raise WireError(f"{PROTOTYPES}/held: expected means of at most 1")
        _check_radius(found["radius"])
        # Who does not hold a class has added zeros.
        means = found["means"] / np.where(share > 0, share, 1)[:, None]
        return self._next(state, total.payload, {**found, "means": means})

    def _next(self, state: Payload, base: Payload, found: Arrays) -> Payload:
        """Return the state after a round.

        Args:
            state: before it.
            base: with the mean of the models.
            found: means of prototypes over those that hold a class; ``held`` is above 0
                where anybody does.
        """
        params, old = self.params, state[PROTOTYPES]
        now, known = np.asarray(found["held"]) > 0, np.asarray(old["held"]) > 0
        before, mean = np.asarray(old["means"]), np.asarray(found["means"])
        moved = before + params.prototype_rate * (mean - before)
        means = np.where(known[:, None], moved, mean)
        keeps = params.absent_classes == "kept"
        means = np.where(now[:, None], means, before if keeps else 0)
        held = now | known if keeps else now
        prototypes = {
            "means": means.astype(np.float32),
            "held": held.astype(np.float32),
            "radius": np.asarray(found["radius"], np.float32),
        }
        new = {"base": base["base"]}
        moved_model = interpolate(state, new, params.server_rate, ("base",))
        return {**moved_model, PROTOTYPES: prototypes}


def _of_held(sent: Arrays) -> Arrays:
    """Return a client's prototypes without those of classes that it does not hold."""
    means, held = np.asarray(sent["means"]), np.asarray(sent["held"]) > 0
    rows = np.broadcast_to(held[:, None], means.shape)
    ones = np.ones(held.shape, np.float32)
    return {
        "means": SparseArray.of_mask(means, rows),
        "held": SparseArray.of_mask(ones, held),
        "radius": np.asarray(sent["radius"]),
    }


def _check_radius(radius: npt.NDArray[np.float32]) -> None:
    """Refuse a radius below 0."""
    if radius < 0:
        raise WireError(f"{PROTOTYPES}/radius: expected at least 0, got {radius:.3g}")
