"""FOT, server side: means of models that keep off the subspace of old tasks' inputs.

Bakman et al., ICLR 2024, https://arxiv.org/abs/2309.01289: FedProject in every round,
GPSE (the extraction of the global principal subspace) at the end of a task.
"""

from collections.abc import Mapping

import numpy as np
from typing_extensions import override

from fcl_flower.algorithms.base import Metrics, ServerStrategy
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import Array, Arrays, Payload, TaskStage, Update
from fcl_flower.core.update_checks import same_tensors
from strategies.fot import FotParams
from strategies.fot.subspace import (
    BASE,
    OUTSIDE,
    SKETCHES,
    SUBSPACE,
    extended,
    layer_inputs,
    no_directions,
    sketch_columns,
    without_subspace,
)

_COUNTS = "sketches/counts"


class Fot(ServerStrategy[FotParams]):
    """Keep one global model, and for each of its layers a basis of old tasks' inputs.

    A client receives the model in every round, and the bases in its last of a task
    (also for an evaluation after it, as nothing tells the two apart), in which it sends
    sketches of its layers' inputs beside its model. They are added up, and extend the
    bases at the end of the task. Of a client that is absent from then on the sketches
    of its own last round count; of one that fails there, none.

    State: ``base``; ``subspace`` (U by layer); of the task so far the sums of
    ``sketches``, of their shares outside of U, weighed by examples
    (``sketches/outside``), and, with the number of tasks in U, of examples
    (``sketches/counts``).
    """

    groups = {}  # no mean: a task has to end for all before its subspace counts

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
    def configure_train(self, state: Payload, stage: TaskStage, client: int) -> Payload:
        known = {n: u for n, u in state[SUBSPACE].items() if u.shape[1]}
        sent = {SUBSPACE: known} if stage.ends_task and known else {}
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
    def aggregate_train(
        self, state: Payload, stage: TaskStage, updates: Mapping[int, Update]
    ) -> Payload:
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
    def diagnostics(
        self, state: Payload, stage: TaskStage, metrics: Metrics
    ) -> Mapping[str, float]:
        """Return for each layer which share of its inputs' directions is taken."""
        return {
            f"subspace/{layer}": basis.shape[1] / basis.shape[0]
            for layer, basis in state[SUBSPACE].items()
        }

    def _with_task(self, state: Payload) -> Payload:
        """Return the state with what was sketched of a task in its bases."""
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
    """Return the sums at the start of a task, after a number of others."""
    counts = {"tasks": np.asarray(tasks), "examples": np.asarray(0)}
    return {SKETCHES: {}, OUTSIDE: {}, _COUNTS: counts}


def _added(state: Payload, updates: list[Update]) -> Payload:
    """Return the sums over a task with the sketches of some clients."""
    sketches, outside = state[SKETCHES], state[OUTSIDE]
    counts = state[_COUNTS]
    examples = np.asarray(counts["examples"])
    for update in updates:
        weight = update.num_examples
        # Sketches are of one size, but stand for the squares of so many samples.
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
