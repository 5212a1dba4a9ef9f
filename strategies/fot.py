"""FOT, server side: means of models that keep off the subspace of old tasks' inputs.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289, as their released code
computes: FedProject in every round, GPSE (the extraction of the global principal
subspace) at the end of a task.

A layer maps its inputs x, shape (inputs,), to W x. For a convolution W is the matrix of
its flattened kernels, shape (outputs, channels * positions), and x a patch. Let the
columns of U be an orthonormal basis of old inputs. Then a change g of W becomes ``g - g
U U^T``. So ``(W + g) x = W x`` holds for each x that they span.

The networks of the released code have no biases. Here a bias is the weight of one more
input that is always 1. So outputs stay the same with a bias too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Metrics, Params, Report, ServerStrategy, Updates
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors


class FotParams(Params):
    """Hyper-parameters of federated orthogonal training."""

    energy: float = Field(0.87, gt=0, lt=1)
    """The share of a layer's inputs, by their squares, that the first task's subspace
    has to hold, in (0, 1) (the paper's epsilon). No later update changes the outputs in
    that subspace. The released code has 0.87 for CIFAR-100, 0.95 for 5-Datasets, 0.94
    to 0.96 for MNIST and 0.9 for an ImageNet subset."""
    energy_step: float = Field(0.001, ge=0, lt=1)
    """The growth of ``energy`` with each later task, in [0, 1); above 1 it stays at 1.
    The default is the released code's for CIFAR-100; it has 0 for MNIST."""
    sketch_width: float = Field(1.0, gt=0, le=10)
    """The number of columns of a layer's sketch, as a multiple of its inputs, in (0,
    10]. The released code has 1, but 5 for the linear layers of its CIFAR-100
    network."""


ALGORITHM = Algorithm(
    name="fot",
    server="strategies.fot:Fot",
    client="clients.fot:Fot",
    params_type=FotParams,
    summary="FedAvg whose updates leave alone what old tasks' inputs span, by layer",
    paper="Bakman et al., ICLR 2024",
)


BASE, SUBSPACE = "base", "subspace"
"""The groups that the server sends: the model, and U by layer."""

SKETCHES, OUTSIDE = "sketches", "sketches/outside"
"""The groups that a client sends beside its model, by layer. The first is a sketch of
the part of its inputs A outside of U, shape (inputs, columns). The second is ``|A - U
U^T A|^2 / |A|^2``."""

WEIGHT, BIAS = ".weight", ".bias"


class HasShape(Protocol):
    """An array, or a torch tensor."""

    @property
    def shape(self) -> Sequence[int]:
        """The sizes of its axes."""


def layer_inputs(tensors: Mapping[str, HasShape]) -> dict[str, int]:
    """Count the inputs of each layer of a model, by the layer's name.

    A layer has a weight of at least two axes, with its outputs on the first.
    """
    return {
        name.removesuffix(WEIGHT): math.prod(tensor.shape[1:])
        + (name.removesuffix(WEIGHT) + BIAS in tensors)
        for name, tensor in tensors.items()
        if name.endswith(WEIGHT) and len(tensor.shape) > 1
    }


def sketch_columns(inputs: int, width: float) -> int:
    """Count the columns of a sketch: ``width * inputs``, rounded up."""
    return math.ceil(width * inputs)


def without_subspace(
    changed: Arrays, before: Arrays, subspace: Arrays
) -> dict[str, Array]:
    """Remove the part in the subspace from a model's change.

    The subspace has U by layer, shape (inputs, directions). A layer without any
    direction keeps its change, and so do tensors of no layer.
    """
    projected = {name: np.asarray(tensor) for name, tensor in changed.items()}
    for layer, columns in subspace.items():
        basis = np.asarray(columns, np.float64)
        if not basis.shape[1]:
            continue
        old = _matrix(before, layer)
        change = _matrix(changed, layer) - old
        kept = old + change - (change @ basis) @ basis.T
        weight = projected[layer + WEIGHT]
        flat = kept[:, : weight[0].size]
        projected[layer + WEIGHT] = flat.reshape(weight.shape).astype(weight.dtype)
        if layer + BIAS in projected:
            bias = projected[layer + BIAS]
            projected[layer + BIAS] = kept[:, -1].astype(bias.dtype)
    return projected


def extended(basis: Array, sketch: Array, outside: float, energy: float) -> Array:
    """Extend a basis by the principal directions of a task's inputs.

    The share ``outside`` of the squares of inputs A, shape (inputs, samples), lies
    outside of the old basis U: ``|A - U U^T A|^2 / |A|^2``. The function adds left
    singular vectors of ``A - U U^T A`` until ``energy`` of all squares is inside. They
    must hold

        (outside - (1 - energy)) / outside

    of its squares; none is added if that is not above 0. The vectors are nearly those
    of a sketch ``(A - U U^T A) R`` with random R (Halko et al., SIAM Review 2011). The
    released code takes that ratio of norms that are not squared, and always adds one
    vector.

    Args:
        basis: U, shape (inputs, directions), orthonormal.
        sketch: shape (inputs, columns); its part in U is removed.
        outside: in [0, 1].
        energy: in (0, 1].

    Returns:
        float32, shape (inputs, directions), orthonormal; at most ``inputs`` directions.
    """
    old = np.asarray(basis, np.float64)
    rest = np.asarray(sketch, np.float64)
    rest = rest - old @ (old.T @ rest)
    vectors, values, _ = np.linalg.svd(rest, full_matrices=False)
    held = np.cumsum(values**2)
    if outside <= 1 - energy or not held[-1] > 0:
        return basis
    share = (outside - (1 - energy)) / outside
    count = int(np.searchsorted(held, share * held[-1])) + 1
    both, _ = np.linalg.qr(np.concatenate([old, vectors[:, :count]], axis=1))
    return np.asarray(both, np.float32)


def no_directions(inputs: Mapping[str, int]) -> dict[str, Array]:
    """Create the subspaces before the first task: bases without columns."""
    return {layer: np.zeros((count, 0), np.float32) for layer, count in inputs.items()}


def _matrix(arrays: Arrays, layer: str) -> Array:
    weight = np.asarray(arrays[layer + WEIGHT], np.float64)
    flat = weight.reshape(len(weight), -1)
    if layer + BIAS not in arrays:
        return flat
    bias = np.asarray(arrays[layer + BIAS], np.float64)
    return np.concatenate([flat, bias[:, None]], axis=1)


_COUNTS = "sketches/counts"


class Fot(ServerStrategy[FotParams]):
    """A strategy with one model, and for each layer a basis of old tasks' inputs.

    A client receives the model in every round, and the bases in its last round of a
    task. It also receives the bases for an evaluation after it, as the two requests
    look the same. In that round it sends sketches of its layers' inputs beside its
    model. The sketches are added up, and extend the bases at the end of the task. A
    client that is absent from then on counts by the sketches of its own last round. A
    client that fails there has none.

    State:

    - ``base``, and ``subspace``: U by layer.
    - ``sketches``: the sum of the task's sketches so far.
    - ``sketches/outside``: the sum of their shares outside of U, weighed by examples.
    - ``sketches/counts``: the number of these examples, and of tasks in U.
    """

    groups = {}  # a task has to end for all before its subspace counts
    predicts = (BASE,)

    @override
    def init(self, model: Arrays) -> Payload:
        inputs = layer_inputs(model)
        if not inputs:
            raise ConfigError(
                "model: got a network whose clients share no trained layer, expected "
                "one that has layers: FOT projects their updates"
            )
        state = {BASE: model, SUBSPACE: no_directions(inputs)}
        return {**state, **_nothing_sent(tasks=0)}

    @override
    def send(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        bases = {n: u for n, u in state[SUBSPACE].items() if u.shape[1]}
        sent = {SUBSPACE: bases} if stage.ends_task and bases else {}
        return {BASE: state[BASE], **sent}

    @override
    def check_update(self, state: Payload, update: Update) -> None:
        expected = {BASE: state[BASE]}
        if SKETCHES in update.payload:
            width = self.params.sketch_width
            bases = {n: np.asarray(basis) for n, basis in state[SUBSPACE].items()}
            expected[SKETCHES] = {
                layer: _of_shape(len(basis), sketch_columns(len(basis), width))
                for layer, basis in bases.items()
            }
            expected[OUTSIDE] = dict.fromkeys(bases, np.asarray(0, np.float32))
        same_tensors(update.payload, expected)
        for layer, share in update.payload.get(OUTSIDE, {}).items():
            if not 0 <= float(np.asarray(share)) <= 1:
                raise WireError(
                    f"{OUTSIDE}/{layer}: expected a share in [0, 1], got {share}"
                )

    @override
    def combine(self, state: Payload, stage: TaskStage, updates: Updates) -> Payload:
        base = state[BASE]
        mean = self.aggregation.combine_groups(updates, {BASE: base})[BASE]
        base = without_subspace(mean, base, state[SUBSPACE])
        ended = [
            update
            for update in updates.values()
            if (update.stage or stage).ends_task and SKETCHES in update.payload
        ]
        new = {**state, BASE: base, **_added(state, ended)}
        return self._with_task(new) if stage.ends_task else new

    @override
    def report(self, state: Payload, stage: TaskStage, metrics: Metrics) -> Report:
        """Report the share of its inputs' directions that is taken, for each layer."""
        return {
            f"subspace/{layer}": basis.shape[1] / basis.shape[0]
            for layer, basis in state[SUBSPACE].items()
        }

    def _with_task(self, state: Payload) -> Payload:
        counts = state[_COUNTS]
        tasks, examples = (int(np.asarray(counts[n])) for n in ("tasks", "examples"))
        if not examples:
            return state
        energy = min(self.params.energy + tasks * self.params.energy_step, 1.0)
        subspace = {
            layer: extended(
                np.asarray(basis),
                np.asarray(state[SKETCHES][layer]),
                float(np.asarray(state[OUTSIDE][layer])) / examples,
                energy,
            )
            for layer, basis in state[SUBSPACE].items()
        }
        return {**state, SUBSPACE: subspace, **_nothing_sent(tasks + 1)}


def _nothing_sent(tasks: int) -> Payload:
    counts = {"tasks": np.asarray(tasks), "examples": np.asarray(0)}
    return {SKETCHES: {}, OUTSIDE: {}, _COUNTS: counts}


def _added(state: Payload, updates: list[Update]) -> Payload:
    sketches, outside = state[SKETCHES], state[OUTSIDE]
    counts = state[_COUNTS]
    examples = np.asarray(counts["examples"])
    for update in updates:
        weight = update.num_examples
        # All sketches have one scale, but stand for different numbers of samples.
        sketches = _sum(sketches, update.payload[SKETCHES], weight**0.5)
        outside = _sum(outside, update.payload[OUTSIDE], weight)
        examples = examples + weight
    return {
        SKETCHES: sketches,
        OUTSIDE: outside,
        _COUNTS: {**counts, "examples": examples},
    }


def _of_shape(*shape: int) -> Array:
    return np.broadcast_to(np.float32(0), shape)


def _sum(total: Arrays, arrays: Arrays, weight: float) -> dict[str, Array]:
    return {
        name: np.asarray(total.get(name, 0.0)) + weight * np.asarray(tensor, np.float64)
        for name, tensor in arrays.items()
    }
