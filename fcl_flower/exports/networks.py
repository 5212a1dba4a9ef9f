"""The network that predicts a task, as one module: raw samples in, logits out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.core.schedule import derive
from fcl_flower.data.examples import Examples
from fcl_flower.models.heads import CLOSED, MultiHeadModel, Network
from fcl_flower.models.normalisation import Normalisation
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.prediction.model import Model
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.place import place_of

_TOLERANCE: Final = 1e-4
_TRIED = 8
"""The number of random samples on which a module is compared with the learner."""
_WORDS = 12
"""The number of tokens of the longest random text."""


class RawNetwork(nn.Module):
    """A network that takes raw samples and returns the logits of the named classes.

    Images are uint8, shape (N, H, W, C) with C of 1 or 3. Series and rows of a table
    are float32. Texts are token numbers, int64, shape (N, tokens), padded with 0. The
    logits have shape (N, classes).
    """

    def __init__(
        self,
        network: nn.Module,
        input_shape: Sequence[int],
        rows: Sequence[int],
        normalisation: Normalisation,
    ) -> None:
        """Keep a module from prepared inputs to logits, without a copy.

        ``rows`` are the positions of the named classes among the logits.
        """
        super().__init__()
        self.network = network
        self._normalisation = normalisation
        self._channels = input_shape[0] if len(input_shape) == 3 else 0
        self.register_buffer("rows", torch.tensor(rows))
        self.rows: Tensor

    @override
    def forward(self, x: Tensor) -> Tensor:
        if self._channels:
            x = self._normalisation.standardized(x.permute(0, 3, 1, 2).float() / 255)
            x = x.expand(-1, self._channels, -1, -1)
        logits: Tensor = self.network(x)
        return logits[:, self.rows]


class Masked(nn.Module):
    """A network of which some logits are `CLOSED`."""

    def __init__(self, network: nn.Module, closed: Tensor) -> None:
        """Close the logits at which ``closed``, bool of shape (classes,), is true."""
        super().__init__()
        self.network = network
        self.register_buffer("closed", closed)
        self.closed: Tensor

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits.masked_fill(self.closed, CLOSED)


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A network that predicts one task without the method that has learned it.

    Attributes:
        model: the model to which it belongs.
        task: task from 0; None where a single head answers for all tasks.
        network: module from prepared inputs to all logits of a head.
        names: names of the classes that have a logit.
        rows: positions of these classes among the logits, in the same order.
        inputs: prepared samples on which the network was compared with the learner.
        logits: the learner's logits of these samples.
        raw: the first of these samples as `whole` takes them.
        accuracy: fraction of right answers on the task's test samples, where known.
        tested: number of these test samples.
    """

    model: Model
    task: int | None
    network: nn.Module
    names: tuple[str, ...]
    rows: tuple[int, ...]
    inputs: Tensor
    logits: Tensor
    raw: Tensor
    accuracy: float | None
    tested: int

    @property
    def whole(self) -> RawNetwork:
        """The network from raw samples to the logits of the named classes."""
        run = self.model.run
        return RawNetwork(
            self.network, run.spec.input_shape, self.rows, run.normalisation
        )

    @property
    def sizes(self) -> tuple[dict[int, Any]]:
        """The sizes of the input that are free: of the batch, and of a text."""
        free = {0: torch.export.Dim("batch")}
        if self.model.run.spec.modality == "text":
            params = self.model.run.model_params
            most = params.max_tokens if isinstance(params, EncoderParams) else None
            free[1] = torch.export.Dim("tokens", min=1, max=most)
        return (free,)


def exported(model: Model, task: int | str | None) -> Exported:
    """Make a module that predicts a task as a model does.

    Args:
        model: the model.
        task: number from 0 or name; None where a single head answers for all tasks.
            With hidden concepts it is the number of a concept, whose validation
            samples choose the model.

    Raises:
        ConfigError: there is no such task, or only the learner itself can compute its
            logits.
    """
    run, about = model.run, model.about
    number, recent = _asked(model, task)
    raw = _random(model)
    inputs, test = _prepared(model, raw), _test(model, number)
    if test is not None and len(test.y):
        inputs = _joined(inputs, test.x)
    logits, weights = _prediction(model, inputs, number, recent)
    learner, received = model.learner, model.received
    if recent is not None:
        received = learner.select_model(model.state, received, recent)
    asked = run.spec.tasks - 1 if recent is not None else number
    network = learner.predictor(model.state, received, asked)
    network = network or _network(learner.model, asked, weights)
    if network is not None and run.config.model.mask_logits and about.tasks:
        closed = torch.ones(logits.shape[1], dtype=torch.bool)
        closed[list(about.tasks[number].labels)] = False
        network = Masked(network, closed)
    if network is None or not _agrees(network, inputs, logits):
        expected = "one whose learner makes a module of its own (`predictor`), as it "
        expected += "does not predict with its network as a whole"
        raise config_error("strategy", run.config.title, expected)
    single = run.config.model.head == "single"
    names = about.head if single else about.tasks[number].names
    rows = tuple(range(len(names))) if single else about.tasks[number].labels
    right = None
    if test is not None and len(test.y):
        right = float((logits[_TRIED:].argmax(1) == test.y).double().mean())
    return Exported(
        model=model,
        task=None if task is None else number,
        network=network.eval().requires_grad_(False),
        names=tuple(names),
        rows=tuple(rows),
        inputs=inputs,
        logits=logits,
        raw=raw,
        accuracy=right,
        tested=0 if test is None else len(test.y),
    )


def _asked(model: Model, task: int | str | None) -> tuple[int, Examples | None]:
    """Find the number of a task, and of a hidden concept also samples of it."""
    run = model.run
    if not run.spec.hidden_tasks:
        return model.number(task), None
    last = run.config.scenario.tasks - 1
    if not isinstance(task, int) or not 0 <= task <= last:
        raise config_error("task", task, f"the number of a concept, 0 to {last}")
    place = place_of(model.about.client or 0)
    return task, client_data(run, place, task + 1).examples(task, "valid")


def _test(model: Model, number: int) -> Examples | None:
    """Find the task's test samples; None where only the client has them."""
    run, client = model.run, model.about.client
    if run.spec.local_data or client is None:
        return None
    data = client_data(run, place_of(client), number + 1)
    return data.examples(number, "test")


def _random(model: Model) -> Tensor:
    """Draw raw samples for the comparison with the learner."""
    run = model.run
    shape = run.spec.input_shape
    rng = np.random.default_rng(derive(run.config.run.seed, "export"))
    if run.spec.modality == "images":
        channels, height, width = shape
        pixels = (_TRIED, height, width, 3 if channels == 3 else 1)
        return torch.from_numpy(rng.integers(0, 256, pixels, np.uint8))
    if run.spec.modality != "text":
        drawn = rng.standard_normal((_TRIED, *shape))
        return torch.from_numpy(drawn.astype(np.float32))
    body: Any = model.learner.model.body
    if isinstance(run.model_params, EncoderParams):
        longest = min(_WORDS, run.model_params.max_tokens)
        vocabulary = int(body.encoder.config.vocab_size)
    else:
        longest, vocabulary = _WORDS, len(body.table) - 1
    tokens = rng.integers(1, vocabulary + 1, (_TRIED, longest))
    lengths = rng.integers(1, longest + 1, (_TRIED, 1))
    return torch.from_numpy(np.where(np.arange(longest) < lengths, tokens, 0))


def _prepared(model: Model, raw: Tensor) -> Tensor:
    if model.run.spec.modality != "images":
        return raw
    pixels = raw.numpy()
    return model.reader.to_inputs(
        pixels[..., 0] if pixels.shape[3] == 1 else pixels, None
    )


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate inputs; texts of different lengths are padded."""
    if first.ndim == 2 and not first.is_floating_point():
        width = max(first.shape[1], second.shape[1])
        first, second = (
            nn.functional.pad(part, (0, width - part.shape[1]))
            for part in (first, second)
        )
    return torch.cat([first, second])


def _prediction(
    model: Model, inputs: Tensor, number: int, recent: Examples | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Predict, and note the weights with which the learner called its network.

    They are copied during the call, since some learners compose weights for the call
    alone. There are none if the network was not called as a whole.
    """
    weights: dict[str, Tensor] = {}

    def note(network: nn.Module, _: object) -> None:
        weights.update({n: t.clone() for n, t in network.state_dict().items()})

    handle = model.learner.model.register_forward_pre_hook(note)
    try:
        return model.logits(inputs, 0 if recent else number, recent), weights
    finally:
        handle.remove()


def _network(
    model: MultiHeadModel, task: int, weights: Mapping[str, Tensor]
) -> Network | None:
    if not weights:
        return None
    network, head = model.network(task), f"heads.{model.head_index(task)}."
    network.load_state_dict(
        {
            name.replace(head, "head."): tensor
            for name, tensor in weights.items()
            if name.startswith(("body.", head))
        }
    )
    return network


@torch.no_grad()
def _agrees(network: nn.Module, inputs: Tensor, expected: Tensor) -> bool:
    # A learner may compute the frozen part of an encoder by itself, and some processors
    # then round the last bit otherwise.
    logits = network.eval()(inputs)
    return logits.shape == expected.shape and torch.allclose(
        logits, expected, _TOLERANCE, _TOLERANCE
    )
