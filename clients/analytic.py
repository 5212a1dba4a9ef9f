"""Analytic learning, client side: sums over the features of a frozen encoder.

The methods are AFL (He et al., CVPR 2025) and AFCL (arXiv:2505.12245). The random
projection is that of RanPAC (McDonnell et al., NeurIPS 2023) and of STSA
(arXiv:2506.01327).
"""

import copy
import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.algorithms.base import ClientLearner, Turn
from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Arrays, Payload, Update
from fcl_flower.data.examples import Examples, concat
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.feature_cache import FEATURES
from fcl_flower.training.tensors import to_numpy, to_torch
from strategies.analytic import AnalyticParams
from strategies.analytic import sums as forms

_CHUNK = 256


class Analytic(ClientLearner[AnalyticParams]):
    """A learner that sends the sums over a task once, and predicts with a solved head.

    State: ``memory/sent``, a record of the data whose sums were sent. ``data`` has a
    number for each of these data sets. ``valid`` has the number of the validation
    samples that came with it, or 0. Windows of a hidden concept share validation
    samples, which count once.
    """

    @override
    def prepare(self) -> None:
        """Draw the random projection, the same for every client."""
        self._projection: forms.Matrix | None = None
        if self.params.lift == "relu":
            rng = np.random.default_rng(derive(self.context.seed, "projection"))
            shape = (self.model.features, self.params.width)
            self._projection = rng.standard_normal(shape)

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, _, stage, data = turn
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
        seed = self.context.derive("subsets", int(number) >> 1)
        rng = np.random.default_rng(seed)
        valid_number = _identity(data.valid)
        valid_numbers = np.asarray(before.get("valid", np.zeros_like(sent)))
        counts = valid_number not in valid_numbers[sent != number]
        samples, held = data.train, data.valid
        if not counts:
            held = Examples(held.x[:0], held.y[:0])
        if self.params.penalty:
            # With a fixed penalty nothing is chosen by validation samples.
            samples = concat([samples, held])
        elif len(held.y):
            payload["valid"] = self._sums(held, data.classes, rng)
        payload["sums"] = self._sums(samples, data.classes, rng)
        if not again:
            sent = np.append(sent, number)
            valid_numbers = np.append(
                valid_numbers, valid_number if counts else np.uint64(0)
            )
        kept = {**state, "memory/sent": {"data": sent, "valid": valid_numbers}}
        return kept, Update(payload, count)

    @override
    def predict(
        self, state: Payload, received: Payload, task: int, x: Tensor
    ) -> Tensor:
        """Compute logits of the head of all classes, or of the task's own.

        A class of which the server knows no sample has a very low logit. Without a head
        all logits are 0.
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
        """Compute features of inputs, shape (N, D), each of length 1."""
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
    """The network of `Analytic.predict`: a double-precision head on unit features."""

    def __init__(
        self, model: MultiHeadModel, projection: forms.Matrix | None, head: Arrays
    ) -> None:
        """Take the random projection, shape (features, width), where there is one."""
        super().__init__()
        self.body = copy.deepcopy(model.body).eval().requires_grad_(False)
        matrix = None if projection is None else torch.from_numpy(projection)
        self.register_buffer("projection", matrix)
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
    """Compute the body's outputs in evaluation mode, shape (N, D), each of length 1."""
    model.eval()
    body = model.body

    def by_chunks(x: Tensor) -> Tensor:
        parts = [body(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK)]
        return torch.cat([x.new_empty(0, model.features).float(), *parts])

    outputs = FEATURES.features(body, x, by_chunks)
    return _unit(to_numpy(outputs).astype(np.float64))


_NONE = np.empty(0, np.uint64)


def _identity(*data: Examples) -> np.uint64:
    digest = hashlib.blake2b(digest_size=8)
    for part in (tensor for examples in data for tensor in examples):
        digest.update(repr(part.shape).encode())
        digest.update(to_numpy(part).tobytes())
    return np.uint64(int.from_bytes(digest.digest(), "big"))


def _unit(h: forms.Matrix) -> forms.Matrix:
    length = np.linalg.norm(h, axis=1, keepdims=True)
    unit: forms.Matrix = h / np.where(length > 0, length, 1.0)
    return unit
