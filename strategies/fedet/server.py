"""FedET, server side: groups that several clients changed are consolidated into one.

Liu et al., IJCAI 2023, section 3.2, equations 6 to 8. A round is the paper's "server
waiting time": what arrives within ``--timeout`` is distilled together.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Group, ServerContext, ServerStrategy
from fcl_flower.core.errors import WireError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import (
    AnyArray,
    Array,
    Arrays,
    Payload,
    TaskStage,
    Update,
    specs,
)
from fcl_flower.core.update_checks import fits
from strategies.fedet import FedEtParams
from strategies.fedet.maths import (
    GroupUpdate,
    auxiliary,
    discriminant,
    distillation_targets,
    domains,
    entropy_weights,
    nearest_mean,
    wanted_distribution,
)

if TYPE_CHECKING:
    from strategies.fedet.trainer import FedEtTrainer

KNOWN, CHANGED, HELD = "meta/known", "meta/changed", "meta/held"
ROUTER_EPOCHS = 20
"""Passes over the public data to train the network that sends samples to groups."""
_NOISE = 10
"""Standard deviations that honest noise never exceeds."""
_ROUNDING = 1e-5
_GROUP = re.compile(r"(enhancers|meta)/(0|[1-9][0-9]{0,5})")


class FedEt(ServerStrategy[FedEtParams]):
    """Keep J groups; a client receives those that changed since it last took part.

    State: ``enhancers/0`` to ``enhancers/J-1``; ``router`` (where J > 1);
    ``meta/known`` (``classes``, uint8, (J, classes): what each group knows);
    ``meta/changed`` (``round``, (J,): the last in which a group changed, 0 for never);
    ``meta/held`` (by client, the last round that it took part in).
    """

    groups = {"enhancers": Group(model=True)}
    robust_aggregation = True

    def __init__(self, params: FedEtParams, context: ServerContext) -> None:
        """Make the trainer."""
        super().__init__(params, context)
        self.trainer: FedEtTrainer = context.trainer()

    @override
    def init(self, model: Arrays) -> Payload:
        count = self.params.groups
        classes = len(np.asarray(model["heads.0.bias"]))
        state: dict[str, Arrays] = {f"enhancers/{j}": model for j in range(count)}
        if count > 1:
            state["router"] = self._router()
        return {
            **state,
            KNOWN: {"classes": np.zeros((count, classes), np.uint8)},
            CHANGED: {"round": np.zeros(count, np.int64)},
            HELD: {},
        }

    @override
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        held = (
            np.asarray(state[HELD][str(client)]) if str(client) in state[HELD] else None
        )
        since = 0 if held is None else int(held)
        changed = np.asarray(state[CHANGED]["round"])
        sent = {
            f"enhancers/{j}": state[f"enhancers/{j}"]
            for j in range(self.params.groups)
            # In that round it had what the rounds before had changed.
            if changed[j] > 0 and changed[j] >= since
        }
        if held is None and "router" in state:
            sent["router"] = state["router"]
        return {**sent, KNOWN: state[KNOWN]}

    @override
    def on_state_lost(self, state: Payload, client: int) -> Payload:
        held = {c: at for c, at in state[HELD].items() if c != str(client)}
        return {**state, HELD: held}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        payload = update.payload
        classes = np.asarray(state[KNOWN]["classes"]).shape[1]
        found = [_GROUP.fullmatch(group) for group in payload]
        numbers = {int(m[2]) for m in found if m}
        wanted = {f"{kind}/{j}" for j in numbers for kind in ("enhancers", "meta")}
        if not payload or payload.keys() != wanted:
            raise WireError(f"groups {sorted(payload)}: expected enhancers and meta")
        if max(numbers) >= self.params.groups:
            raise WireError(f"enhancers/{max(numbers)}: unknown group")
        for j in sorted(numbers):
            tensors, expected = payload[f"enhancers/{j}"], state[f"enhancers/{j}"]
            if tensors.keys() != expected.keys():
                odd = sorted(tensors.keys() ^ expected.keys())
                raise WireError(f"enhancers/{j}: tensors {odd} are missing or unknown")
            fits(f"enhancers/{j}", tensors, expected, sparse=False)
            self._check_statistics(f"meta/{j}", payload[f"meta/{j}"], classes)

    @override
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
        known = np.asarray(state[KNOWN]["classes"]).astype(bool)
        changed = np.asarray(state[CHANGED]["round"]).copy()
        new: dict[str, Arrays] = {}
        for j in range(self.params.groups):
            uploads = [
                _upload(update.payload, j)
                for update in updates.values()
                if f"enhancers/{j}" in update.payload
            ]
            if not uploads:
                continue
            new[f"enhancers/{j}"] = (
                uploads[0].tensors
                if len(uploads) < self.params.least_uploads
                else self._consolidated(
                    state[f"enhancers/{j}"],
                    np.asarray(known[j], bool),
                    uploads,
                    stage,
                    j,
                )
            )
            known[j, np.concatenate([upload.classes for upload in uploads])] = True
            changed[j] = stage.round
        held = {str(client): np.asarray(stage.round) for client in updates}
        return {
            **state,
            **new,
            KNOWN: {"classes": known.astype(np.uint8)},
            CHANGED: {"round": changed},
            HELD: {**state[HELD], **held},
        }

    @override
    def remarks(self) -> Mapping[str, str]:
        public, params = len(self.trainer.labels), self.params
        labelled = bool((self.trainer.labels >= 0).any())
        found = {}
        if params.consolidation == "mean" or not public:
            why = "" if public else ", since there are no public data"
            found["consolidation"] = f"mean of the tensors, by entropy{why}"
        else:
            and_labels = " and their labels" * (labelled and params.label_weight > 0)
            found["consolidation"] = (
                f"distillation on {public} public samples{and_labels}"
            )
            if params.distribution == "withheld":
                found["distribution"] = "withheld: auxiliary data are drawn evenly"
            elif not labelled:
                found["distribution"] = (
                    "of no use: no public sample is of a known class"
                )
        if params.distribution == "noised":
            found["distribution"] = "noised"
        if params.entropy != "exact":
            found["entropy"] = (
                "withheld: all clients weigh the same"
                if params.entropy == "withheld"
                else "noised"
            )
        return found

    def _router(self) -> Arrays:
        trainer, count = self.trainer, self.params.groups
        features = trainer.features() if len(trainer.labels) else np.zeros((0, 1))
        seed = derive(self.context.seed, "domains")
        groups = domains(features, trainer.classes, count, seed)
        if self.params.router == "network":
            return trainer.train_router(groups[trainer.classes], ROUTER_EPOCHS)
        linear = discriminant if self.params.router == "discriminant" else nearest_mean
        return {**linear(features, trainer.classes)._asdict(), "groups": groups}

    def _consolidated(
        self,
        old: Arrays,
        known: Array,
        uploads: list[GroupUpdate],
        stage: TaskStage,
        j: int,
    ) -> Arrays:
        weights = entropy_weights([upload.entropy for upload in uploads])
        sent = [upload.tensors for upload in uploads]
        averaged = self.aggregation.combine(sent, weights, old)
        trainer = self.trainer
        if self.params.consolidation == "mean" or not len(trainer.labels):
            return averaged
        learned = np.zeros(len(known), bool)
        learned[np.concatenate([upload.classes for upload in uploads])] = True
        kept = known & ~learned
        seed = derive(self.context.seed, "auxiliary", stage.round, j)
        chosen = auxiliary(
            trainer.labels,
            wanted_distribution(uploads, kept, learned),
            self.params.auxiliary,
            seed,
        )
        f_old = trainer.logits(old, chosen)
        answers = [{"f": trainer.logits(tensors, chosen)} for tensors in sent]
        # In double precision, as the sum of equation 6.
        start = {"f": f_old.astype(np.float64)}
        f_new = self.aggregation.combine(answers, weights, start)["f"]
        targets = distillation_targets(f_old, f_new, kept, learned)
        classes = np.flatnonzero(kept | learned)
        return trainer.distill(
            averaged,
            chosen,
            targets,
            classes,
            self.params.server_epochs,
            self.params.label_weight,
        )

    def _check_statistics(self, group: str, statistics: Arrays, classes: int) -> None:
        expected: dict[str, AnyArray] = {"classes": np.zeros(0, np.int64)}
        if self.params.distribution != "withheld":
            expected["distribution"] = np.zeros(classes, np.float32)
        if self.params.entropy != "withheld":
            expected["entropy"] = np.zeros((), np.float32)
        if statistics.keys() != expected.keys():
            odd = sorted(statistics.keys() ^ expected.keys())
            raise WireError(f"{group}: tensors {odd} are missing or unknown")
        spec = specs(statistics)["classes"]
        integers = spec.dtype == np.int64 and not spec.sparse
        if not integers or len(spec.shape) != 1 or not 0 < spec.shape[0] <= classes:
            raise WireError(f"{group}/classes: expected 1 to {classes} integers")
        expected["classes"] = np.zeros(spec.shape, np.int64)
        fits(group, statistics, expected, sparse=False)
        values = np.asarray(statistics["classes"])
        if values.min() < 0 or values.max() >= classes or (np.diff(values) <= 0).any():
            raise WireError(f"{group}/classes: expected ascending places of the head")
        if "distribution" in statistics:
            shares = np.asarray(statistics["distribution"])
            if not (shares >= 0).all() or not abs(float(shares.sum()) - 1) < 1e-3:
                raise WireError(f"{group}/distribution: expected shares that sum to 1")
        if "entropy" in statistics:
            self._check_entropy(group, float(np.asarray(statistics["entropy"])), values)

    def _check_entropy(self, group: str, entropy: float, classes: Array) -> None:
        noised = self.params.entropy == "noised"
        most = np.log(classes.size) + (_NOISE * self.params.noise if noised else 0.0)
        if not 0 <= entropy <= most + _ROUNDING:
            raise WireError(
                f"{group}/entropy: expected 0 to {most:.4g} for {classes.size} "
                f"classes, got {entropy:.4g}"
            )


def _upload(payload: Payload, j: int) -> GroupUpdate:
    statistics = payload[f"meta/{j}"]
    distribution = statistics.get("distribution")
    entropy = statistics.get("entropy")
    return GroupUpdate(
        payload[f"enhancers/{j}"],
        np.asarray(statistics["classes"]),
        None if distribution is None else np.asarray(distribution).astype(np.float64),
        None if entropy is None else float(np.asarray(entropy)),
    )
