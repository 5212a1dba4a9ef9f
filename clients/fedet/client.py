"""FedET, client side: an Enhancer Group learns new classes and keeps its old ones.

Liu et al., IJCAI 2023, section 3.1, algorithm 1 and equations 1 to 5. A group H^j is
all of the model that is trained: Enhancers and head. Symbols: H_old is ``enhancers/j``
at the server, H^t is a temporary group, S the sample memory, U the data set of the
distillation.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import override

from clients.fedet.maths import augmented, label_loss, label_statistics
from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.algorithms.exemplars import remember_fraction, replay_samples
from fcl_flower.algorithms.local_training import fit_classes
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.privacy.accounting import SPENT, gaussian_epsilon
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.training.distillation import DistillationSet, distill, predict_logits
from fcl_flower.training.feature_cache import frozen_features
from fcl_flower.training.tensors import load, snapshot, to_numpy, to_torch
from strategies.fedet import FedEtParams
from strategies.fedet.trainer import Router

KNOWN = "meta/known"
NEVER = -1e4
"""The logit of a class that a group does not know; it is finite, so that losses are."""


class FedEt(ClientLearner[FedEtParams]):
    """A learner that trains temporary groups, consolidates them and sends changed ones.

    State: the groups as they were last received, their classes, ``router``, and
    ``memory`` (S).
    """

    balances = ("weights", "batches")
    augments = True

    @override
    def prepare(self) -> None:
        """Keep the initial values of a group, the same for every task and client."""
        self._fresh = snapshot(self.model, self.model.shared_names())

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        kept, params = {**state, **received}, self.params
        known, router = self._known(kept), self._router(kept)
        seed = self.context.derive("fedet", stage.round)
        memory, share = kept.get("memory", {}), params.buffer_fraction
        memory = remember_fraction(memory, data.train, share, seed, task=stage.task)
        old = replay_samples(memory, self.context.device, without=stage.task)
        samples = replay_samples(memory, self.context.device)
        scores = router.scores(data.train.x)
        routed = assign_group(scores, self._chosen(scores))
        # If a class goes to another group, its samples in memory go with it.
        knows = known.T.to(routed.device, copy=True)
        knows[data.train.y, routed] = True
        again = router.scores(samples.x) if len(samples.y) else scores[:0]
        replayed_for = assign_group(again, knows[samples.y])
        trained = {n for n, p in self.model.named_parameters() if p.requires_grad}
        payload: dict[str, Arrays] = {}
        metrics: dict[str, float] = {}
        lost = float(np.asarray(kept.get(SPENT, {}).get("labels", 0.0)))
        for j in torch.unique(routed).tolist():
            part = _at(data.train, routed == j)
            new = torch.unique(part.y)
            before = torch.nonzero(known[j])[:, 0].to(new.device)
            before = before[~torch.isin(before, new)]
            mine = _at(samples, (replayed_for == j) & knows[samples.y, j])
            start = kept[f"enhancers/{j}"] if known[j].any() else {}
            load(self.model, start if start and self._warm else self._fresh)
            lesson = replace(
                data,
                train=concat([part, _at(old, torch.isin(old.y, new))]),
                valid=_at(data.valid, torch.isin(data.valid.y, new)),
            )
            learned = fit_classes(self, turn._replace(data=lesson), trained, new)
            scalars = learned.metrics()
            if start and len(before):
                used = self._distilled_on(mine, part, before, derive(seed, "u", j))
                order = derive(seed, "group", j)
                error = self._consolidate(start, used, before, new, order)
                scalars["distilled"] = error
            for name, value in scalars.items():
                share = value * len(part.y) / len(routed)
                metrics[name] = metrics.get(name, 0.0) + share
            payload[f"enhancers/{j}"] = snapshot(self.model, self._fresh)
            payload[f"meta/{j}"] = label_statistics(
                to_numpy(torch.cat([part.y, mine.y])),
                to_numpy(part.y),
                data.classes,
                params,
                secret_generator(seed, "disclosed", j),
            )
            lost += label_loss(len(part.y) + len(mine.y), len(part.y), params)
        if lost:
            kept[SPENT] = {"labels": np.asarray(lost)}
            delta = self.context.privacy.delta
            metrics["label_epsilon"] = gaussian_epsilon(lost, delta)
        return {**kept, "memory": memory}, Update(payload, len(data.train.y), metrics)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of the group that the router chooses; the task is not used.

        A class that the group does not know has the logit `NEVER`.
        """
        kept = {**state, **received}
        known = self._known(kept).to(x.device)
        logits = torch.full((len(x), known.shape[1]), NEVER, device=x.device)
        if not known.any():
            return logits
        routed = assign_group(self._router(kept).scores(x), known.any(1))
        entered = frozen_features(self.model, x)
        for j in torch.unique(routed).tolist():
            mine = torch.nonzero(routed == j)[:, 0]
            load(self.model, kept[f"enhancers/{j}"])
            answers = predict_logits(self.model, entered[mine])
            logits[mine] = answers.masked_fill(~known[j], NEVER)
        return logits

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        kept = {**state, **received}
        known = self._known(kept)
        groups = {}
        for j in torch.nonzero(known.any(1))[:, 0].tolist():
            arrays = kept[f"enhancers/{j}"]
            groups[j] = {n: to_torch(a) for n, a in arrays.items()}
        router = self._router(kept).module()
        return EnhancerGroups(self.model.network(0), groups, known, router)

    @property
    def _warm(self) -> bool:
        return self.params.start == "group"

    def _known(self, kept: Payload) -> Tensor:
        """Read the classes that each group knows, bool, shape (J, classes)."""
        return torch.from_numpy(np.asarray(kept[KNOWN]["classes"]).astype(bool))

    def _router(self, kept: Payload) -> Router:
        return Router(self.model, kept.get("router", {}), self.params.groups)

    def _chosen(self, scores: Tensor) -> Tensor:
        """Choose the groups that learn from the task, bool, shape (J,); at least one.

        Samples of the other groups go to the best of the chosen ones, so no class is
        lost.
        """
        counts = torch.bincount(scores.argmax(1), minlength=self.params.groups)
        least = min(self.params.least_share * len(scores), float(counts.max()))
        return (counts > 0) & (counts >= least)

    def _distilled_on(
        self, mine: Examples, part: Examples, old: Tensor, seed: int
    ) -> Examples:
        is_old = torch.isin(mine.y, old)
        past, present = _at(mine, is_old), _at(mine, ~is_old)
        # The memory may have no new class for this group: another group may have it.
        if self.params.distil_on == "task" or not len(mine.y):
            present = part
        a_class = len(present.y) / max(1, len(torch.unique(present.y)))
        a_class_before = len(past.y) / max(1, len(torch.unique(past.y)))
        wanted = round(a_class / a_class_before) - 1 if len(past.y) else 0
        copies = min(max(wanted, 1), self.params.copies)
        return concat([augmented(past, copies, seed), present])

    def _consolidate(
        self, start: Arrays, used: Examples, old: Tensor, new: Tensor, seed: int
    ) -> float:
        x = frozen_features(self.model, used.x)
        f_t = predict_logits(self.model, x)
        temporary = snapshot(self.model, self._fresh)
        load(self.model, start)
        targets = distillation_targets(predict_logits(self.model, x), f_t, old, new)
        if self._warm:
            load(self.model, temporary)
        classes = torch.cat([old, new])
        weight = self.params.label_weight
        lesson = DistillationSet(x, targets, classes, used.y, weight)
        epochs = self.params.distil_epochs
        return distill(self.model, lesson, self.context.training, epochs, seed)


class EnhancerGroups(nn.Module):
    """A frozen encoder, with the Enhancers and heads of some groups of classes."""

    def __init__(
        self,
        network: nn.Module,
        groups: Mapping[int, Mapping[str, Tensor]],
        known: Tensor,
        router: nn.Module,
    ) -> None:
        """Take the tensors of each group, and the classes that each group knows.

        ``known`` is bool, shape (J, classes); ``router`` rates the J groups.
        """
        super().__init__()
        self.network, self.router = network, router
        self.register_buffer("known", known)
        self.known: Tensor
        self._names = {j: [*tensors] for j, tensors in groups.items()}
        for j, tensors in groups.items():
            for name, tensor in tensors.items():
                self.register_buffer(_flat(j, name), tensor)

    @override
    def forward(self, x: Tensor) -> Tensor:
        routed = assign_group(self.router(x), self.known.any(1))[:, None]
        logits = torch.full_like(routed, NEVER, dtype=torch.float32)
        logits = logits.expand(-1, self.known.shape[1])
        for j, names in self._names.items():
            tensors = {
                name.replace("heads.0.", "head."): self.get_buffer(_flat(j, name))
                for name in names
            }
            answers = functional_call(self.network, tensors, (x,))
            answers = answers.masked_fill(~self.known[j], NEVER)
            logits = torch.where(routed == j, answers, logits)
        return logits


def _flat(group: int, name: str) -> str:
    return f"enhancers_{group}_{name.replace('.', '_')}"


def assign_group(scores: Tensor, allowed: Tensor) -> Tensor:
    """Choose the best open group for each sample, int64, shape (N,).

    ``scores`` have shape (N, J). ``allowed`` says which groups are open, shape (J,), or
    (N, J) for each sample. A sample without an open group gets group 0.
    """
    return scores.masked_fill(~allowed, -torch.inf).argmax(1)


def distillation_targets(
    f_old: Tensor, f_t: Tensor, old: Tensor, new: Tensor
) -> Tensor:
    """Compute the targets of the double distillation (equations 1 and 5).

    The logits of the m old classes come from H_old, those of the n new ones from H^t.
    The mean over these classes is subtracted from each. A class of neither has 0. All
    logits have shape (N, classes); ``old`` and ``new`` are the places of classes,
    disjoint.
    """
    targets = torch.zeros_like(f_old)
    for logits, classes in ((f_old, old), (f_t, new)):
        part = logits[:, classes]
        targets[:, classes] = part - part.mean(1, keepdim=True)
    return targets


def _at(examples: Examples, chosen: Tensor) -> Examples:
    if not len(examples.y):
        return examples
    return Examples(examples.x[chosen], examples.y[chosen])
