"""FedET, server side: groups that several clients changed are consolidated into one.

Liu et al., IJCAI 2023, section 3.2, equations 6 to 8. A round is the paper's "server
waiting time": uploads that arrive within ``--timeout`` are distilled together.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import ServerStrategy, Updates
from fcl_flower.core.errors import WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import head_places, same_tensors
from strategies.fedet import FedEtParams, maths

if TYPE_CHECKING:
    from strategies.fedet.trainer import FedEtTrainer

KNOWN, CHANGED, HELD = "meta/known", "meta/changed", "meta/held"
ROUTER_EPOCHS = 20
"""The number of passes over the public data that train the router network."""
_NOISE = 10
"""The number of standard deviations that honest noise never exceeds."""
_ROUNDING = 1e-5
_GROUP = re.compile(r"(enhancers|meta)/(0|[1-9][0-9]{0,5})")


class FedEt(ServerStrategy[FedEtParams]):
    """A strategy with J groups; a client receives those that are new to it.

    State:

    - ``enhancers/0`` to ``enhancers/J-1``, and ``router`` where J > 1.
    - ``meta/known``: ``classes``, uint8, (J, classes), the classes that each group
      knows.
    - ``meta/changed``: ``round``, (J,), the last round in which a group changed, 0 for
      never.
    - ``meta/held``: by client, the last round in which it took part.
    """

    groups = {"enhancers": "model"}
    needs_rounds = True
    robust_aggregation = True

    @override
    def prepare(self) -> None:
        self.trainer: FedEtTrainer = self.context.trainer()

    @override
    def init(self, model: Arrays) -> Payload:
        count = self.params.groups
        classes = len(np.asarray(model["heads.0.bias"]))
        return {
            **{f"enhancers/{j}": model for j in range(count)},
            **({"router": self._router()} if count > 1 else {}),
            KNOWN: {"classes": np.zeros((count, classes), np.uint8)},
            CHANGED: {"round": np.zeros(count, np.int64)},
            HELD: {},
        }

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        held = state[HELD].get(str(client))
        since = 0 if held is None else int(np.asarray(held))
        changed = np.asarray(state[CHANGED]["round"])
        # In its last round a client had the changes of earlier rounds, not of that one.
        news = np.flatnonzero((changed > 0) & (changed >= since)).tolist()
        sent = {f"enhancers/{j}": state[f"enhancers/{j}"] for j in news}
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
        matches = [_GROUP.fullmatch(group) for group in payload]
        numbers = {int(m[2]) for m in matches if m}
        wanted = {f"{kind}/{j}" for j in numbers for kind in ("enhancers", "meta")}
        if not payload or payload.keys() != wanted:
            raise WireError(f"groups {sorted(payload)}: expected enhancers and meta")
        if max(numbers) >= self.params.groups:
            raise WireError(f"enhancers/{max(numbers)}: unknown group")
        for j in sorted(numbers):
            group = f"enhancers/{j}"
            same_tensors({group: payload[group]}, {group: state[group]})
            self._check_statistics(f"meta/{j}", payload[f"meta/{j}"], classes)

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        known = np.asarray(state[KNOWN]["classes"]).astype(bool)
        changed = np.asarray(state[CHANGED]["round"]).copy()
        new: dict[str, Arrays] = {}
        for j in range(self.params.groups):
            group = f"enhancers/{j}"
            uploads = [u.payload for u in updates.values() if group in u.payload]
            if not uploads:
                continue
            sent = [payload[group] for payload in uploads]
            statistics = [payload[f"meta/{j}"] for payload in uploads]
            learned = np.zeros(known.shape[1], bool)
            learned[
                np.concatenate([np.asarray(upload["classes"]) for upload in statistics])
            ] = True
            new[group] = sent[0]
            if len(uploads) >= self.params.least_uploads:
                seed = self.context.derive("auxiliary", stage.round, j)
                kept = known[j] & ~learned
                old = state[group]
                new[group] = self._consolidated(
                    old, sent, statistics, kept, learned, seed
                )
            known[j] |= learned
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
        remarks = {}
        if params.consolidation == "mean" or not public:
            why = "" if public else ", since there are no public data"
            remarks["consolidation"] = f"mean of the tensors, by entropy{why}"
        else:
            labels = " and their labels" * (labelled and params.label_weight > 0)
            remarks["consolidation"] = (
                f"distillation on {public} public samples{labels}"
            )
            if params.distribution == "withheld":
                remarks["distribution"] = "withheld: auxiliary data are drawn evenly"
            elif not labelled:
                remarks["distribution"] = (
                    "of no use: no public sample is of a known class"
                )
        if params.distribution == "noised":
            remarks["distribution"] = "noised"
        if params.entropy != "exact":
            withheld = "withheld: all clients weigh the same"
            remarks["entropy"] = withheld if params.entropy == "withheld" else "noised"
        return remarks

    def _router(self) -> Arrays:
        trainer, count = self.trainer, self.params.groups
        features = trainer.features() if len(trainer.labels) else np.zeros((0, 1))
        seed = self.context.derive("domains")
        groups = maths.domains(features, trainer.classes, count, seed)
        if self.params.router == "network":
            return trainer.train_router(groups[trainer.classes], ROUTER_EPOCHS)
        by_mean = self.params.router == "prototype"
        linear = maths.nearest_mean if by_mean else maths.discriminant
        return {**linear(features, trainer.classes), "groups": groups}

    def _consolidated(
        self,
        old: Arrays,
        sent: Sequence[Arrays],
        statistics: Sequence[Arrays],
        kept: Array,
        learned: Array,
        seed: int,
    ) -> Arrays:
        """Merge uploads of a group, with its classes ``kept`` and ``learned``."""
        entropies = [upload.get("entropy") for upload in statistics]
        weights = maths.entropy_weights(
            [None if h is None else float(np.asarray(h)) for h in entropies]
        )
        averaged = self.aggregation.combine(sent, weights, old)
        trainer, params = self.trainer, self.params
        if params.consolidation == "mean" or not len(trainer.labels):
            return averaged
        shares = [
            np.asarray(upload["distribution"]).astype(np.float64)
            for upload in statistics
            if "distribution" in upload
        ]
        wanted = maths.wanted_distribution(shares, kept, learned)
        chosen = maths.auxiliary(trainer.labels, wanted, params.auxiliary, seed)
        f_old = trainer.logits(old, chosen)
        answers = [{"f": trainer.logits(tensors, chosen)} for tensors in sent]
        # The sum of equation 6 is in double precision.
        start = {"f": f_old.astype(np.float64)}
        f_new = self.aggregation.combine(answers, weights, start)["f"]
        return trainer.distill(
            averaged,
            chosen,
            maths.distillation_targets(f_old, f_new, kept, learned),
            np.flatnonzero(kept | learned),
            params.server_epochs,
            params.label_weight,
        )

    def _check_statistics(self, group: str, statistics: Arrays, count: int) -> None:
        params = self.params
        expected: dict[str, Array] = {"classes": np.zeros(1, np.int64)}
        if "classes" in statistics:
            expected["classes"] = head_places(group, statistics, count)
        if params.distribution != "withheld":
            expected["distribution"] = np.zeros(count, np.float32)
        if params.entropy != "withheld":
            expected["entropy"] = np.zeros((), np.float32)
        same_tensors({group: statistics}, {group: expected})
        if "distribution" in statistics:
            shares = np.asarray(statistics["distribution"])
            if not (shares >= 0).all() or not abs(float(shares.sum()) - 1) < 1e-3:
                raise WireError(f"{group}/distribution: expected shares that sum to 1")
        if "entropy" in statistics:
            entropy = float(np.asarray(statistics["entropy"]))
            size = len(expected["classes"])
            noise = _NOISE * params.noise if params.entropy == "noised" else 0.0
            most = np.log(size) + noise
            if not 0 <= entropy <= most + _ROUNDING:
                raise WireError(
                    f"{group}/entropy: expected 0 to {most:.4g} for {size} classes, "
                    f"got {entropy:.4g}"
                )
