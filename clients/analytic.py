"""Analytic learning, client side: sums over the features of a frozen encoder.

AFL (He et al., CVPR 2025), AFCL (arXiv:2505.12245); the random projection of RanPAC
(McDonnell et al., NeurIPS 2023), which STSA (arXiv:2506.01327) has, too.
"""

import copy
import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.base import ClientContext, ClientLearner
from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, TaskStage, Update
from fcl_flower.data.examples import Examples, TaskData, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import FEATURES
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.analytic import AnalyticParams
from strategies.analytic import sums as forms

_CHUNK = 256


class Analytic(ClientLearner[AnalyticParams]):
    """Send the sums over a task once; predict with the head that comes back.

    State: ``memory/sent``, of the data whose sums were sent: ``data``, their numbers,
    and ``valid``, that of the validation samples which came with each, or 0. Windows of
    a hidden concept have the same ones, which count once.
    """

    def __init__(
        self, params: AnalyticParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Draw the random projection, the same for every client."""
        super().__init__(params, model, context)
        self._projection: forms.Matrix | None = None
        if params.lift == "relu":
            rng = np.random.default_rng(derive(context.seed, "projection"))
            shape = (model.features, params.width)
            self._projection = rng.standard_normal(shape)

    @override
    def train(
        self, state: Payload, received: Payload, stage: TaskStage, data: TaskData
    ) -> tuple[Payload, Update]:
        count = len(data.train.y)
        number = _identity(data.train, data.valid)
        before = state.get("memory/sent", {})
        sent = np.asarray(before.get("data", _NONE))
        again = number in sent
        if not count or (again and not stage.starts_task):
            return state, Update({}, count)
        if count < self.params.min_samples:
            raise config_error(
                "strategy.min_samples",
                self.params.min_samples,
                f"at most {count}, the training samples of task {stage.task}, if their "
                "sum shall be sent: it shows features of so few",
            )
        payload: dict[str, Arrays] = {"meta": {"data": np.asarray(number)}}
        seed = derive(
            self.context.seed, "subsets", self.context.client, int(number) >> 1
        )
        rng = np.random.default_rng(seed)
        of_held = _identity(data.valid)
        beside = np.asarray(before.get("valid", np.zeros_like(sent)))
        counts = of_held not in beside[sent != number]
        known, held = data.train, data.valid
        if not counts:
            held = Examples(held.x[:0], held.y[:0])
        if self.params.penalty:
            # Nothing is to be chosen by validation samples.
            known = concat([known, held])
        elif len(held.y):
            payload["valid"] = self._sums(held, data.classes, rng)
        payload["sums"] = self._sums(known, data.classes, rng)
        if not again:
            sent = np.append(sent, number)
            beside = np.append(beside, of_held if counts else np.uint64(0))
        kept = {**state, "memory/sent": {"data": sent, "valid": beside}}
        return kept, Update(payload, count)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of the head of all classes, or of the task's own.

        A class of which the server knows no sample has a very low one; without a head
        all are 0.
        """
        head = received.get("head" if self.model.single_head else f"head/{task}")
        if head is None:
            return x.new_zeros(len(x), self.model.classes, dtype=torch.float32)
        weight, bias = np.asarray(head["weight"]), np.asarray(head["bias"])
        logits = self.features(x) @ weight.T.astype(np.float64) + bias
        return torch.tensor(logits, dtype=torch.float32, device=x.device)

    @override
    def predictor(self, state: Payload, received: Payload, task: int) -> nn.Module:
        head = received.get("head" if self.model.single_head else f"head/{task}")
        if head is None:
            lifted = self._projection is not None
            width = self.params.width if lifted else self.model.features
            classes = self.model.classes
            head = {"weight": np.zeros((classes, width)), "bias": np.zeros(classes)}
        return ExactHead(self.model, self._projection, head)

    def features(self, x: Tensor) -> forms.Matrix:
        """Compute features of inputs, of length 1, shape (N, D)."""
        h = unit_features(self.model, x)
        if self._projection is None:
            return h
        return _unit(np.maximum(h @ self._projection, 0.0))

    def _sums(
        self, examples: Examples, classes: int, rng: np.random.Generator
    ) -> Arrays:
        h, y = self.features(examples.x), to_numpy(examples.y)
        params = self.params
        if params.form == "gram":
            return forms.gram(h, y, classes)
        if params.form == "low-rank":
            return forms.low_rank(h, y, classes, params.rank)
        if params.form == "class-sums":
            return forms.class_sums(h, y, classes, params.subsets, rng)
        return forms.exact(h, y, classes)


class ExactHead(nn.Module):
    """A head, in double precision, on unit features: what `Analytic.predict` does."""

    def __init__(
        self, model: MultiHeadModel, projection: forms.Matrix | None, head: Arrays
    ) -> None:
        """Take the random projection, shape (features, width), where there is one."""
        super().__init__()
        self.body = copy.deepcopy(model.body).eval().requires_grad_(False)
        found = None if projection is None else torch.from_numpy(projection)
        self.register_buffer("projection", found)
        self.projection: Tensor | None
        for name in ("weight", "bias"):
            self.register_buffer(name, to_torch(head[name]).double())
        self.weight: Tensor
        self.bias: Tensor

    @override
    def forward(self, x: Tensor) -> Tensor:
        h = self._unit(self.body(x).double())
        if self.projection is not None:
            h = self._unit(torch.relu(h @ self.projection))
        return (h @ self.weight.T + self.bias).float()

    def _unit(self, h: Tensor) -> Tensor:
        length = h.square().sum(1, keepdim=True).sqrt()
        return h / torch.where(length > 0, length, 1.0)


@torch.no_grad()
def unit_features(model: MultiHeadModel, x: Tensor) -> forms.Matrix:
    """Compute what the body, in evaluation mode, makes of inputs: length 1, (N, D)."""
    model.eval()
    body = model.body

    def by_chunks(x: Tensor) -> Tensor:
        parts = [body(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK)]
        return torch.cat([x.new_empty(0, model.features).float(), *parts])

    known = FEATURES.features(body, x, by_chunks)
    return _unit(to_numpy(known).astype(np.float64))


_NONE = np.empty(0, np.uint64)


def _identity(*data: Examples) -> np.uint64:
    found = hashlib.blake2b(digest_size=8)
    for part in (tensor for examples in data for tensor in examples):
        found.update(repr(part.shape).encode())
        found.update(to_numpy(part).tobytes())
    return np.uint64(int.from_bytes(found.digest(), "big"))


def _unit(h: forms.Matrix) -> forms.Matrix:
    length = np.linalg.norm(h, axis=1, keepdims=True)
    found: forms.Matrix = h / np.where(length > 0, length, 1.0)
    return found
