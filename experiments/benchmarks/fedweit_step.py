"""(b) What a training step of FedWeIT costs, beside a plain Adam step of its LeNet.

The first task, and the tenth with nine finished ones and others' adapters, of ours and
of the arithmetic of the best public PyTorch port (`sides/fedknow_step.py`). All take
the same batches in turn, in one process with one thread. Ours are whole calls of our
training loop, with its optimizer made and its state saved; the others are bare steps.
"""

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import torch
from measurement import SIDES
from results import Results, Row, ratios, spread, table
from torch import Tensor
from typing_extensions import override

from clients.fedweit.client import FedWeit
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.types import Arrays, Payload, SparseArray
from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.build import create_model
from fcl_flower.models.convolutional import LeNetParams
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.loop import Fit, Training, fit
from strategies.fedweit import FedWeitParams

if str(SIDES) not in sys.path:
    sys.path.append(str(SIDES))
from fedknow_step import FedKnowStep

PLAIN = "plain Adam"
CLASSES = 5
RATE = 1e-3 / 3
DENSITY = 0.7
"""Of a finished adapter: about what the defaults leave, on most data."""
CLIENTS = 5


@dataclass(frozen=True)
class Size:
    """How much of it.

    Attributes:
        tasks: the number of the late task, from 1.
        batch: images of a step.
        steps: of a turn.
        turns: of each side, alternating.
        width: factor of LeNet's numbers of channels and neurons.
    """

    tasks: int = 10
    batch: int = 50
    steps: int = 20
    turns: int = 5
    width: float = 1.0


FULL, QUICK = Size(), Size(steps=5, turns=2)

Turn = Callable[[Examples], float]
"""Trains on the examples, a step a batch; returns the last loss."""


def measure(results: Results, size: Size, repeats: int, pfl_python: str) -> None:
    """Measure every side in turn, several times."""
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    count = size.batch * size.steps
    examples = Examples(
        torch.rand(count, 3, 32, 32, generator=draw),
        torch.randint(CLASSES, (count,), generator=draw),
    )
    turns = {name: make() for name, make in sides(size).items()}
    for turn in turns.values():
        turn(examples)  # the first call is slow, whatever it does
    for repeat in range(repeats * size.turns):
        for name, turn in turns.items():
            key = {"part": "b", **asdict(size), "side": name, "repeat": repeat}
            results.once(key, partial(_one, turn, examples, size.steps))


def _one(turn: Turn, examples: Examples, steps: int) -> Row:
    load, began, used = os.getloadavg()[0], time.perf_counter(), time.process_time()
    loss = turn(examples)
    cpu, wall = time.process_time() - used, time.perf_counter() - began
    if not math.isfinite(loss):
        raise RuntimeError(f"got loss {loss}, expected a number")
    counts = {"steps": steps, "samples": len(examples.y), "loss": loss}
    return {**counts, "cpu": cpu, "wall": wall, "load": load}


def sides(size: Size) -> dict[str, Callable[[], Turn]]:
    """Return what makes each side ready to train."""
    made: dict[str, Callable[[], Turn]] = {PLAIN: partial(plain, size)}
    for whose, side in {"ours": ours, "as in FedKNOW": port}.items():
        for number in (1, size.tasks):
            made[f"FedWeIT, {whose}, task {number}"] = partial(side, size, number - 1)
    return made


def network(size: Size) -> MultiHeadModel:
    """Return LeNet with a head for each task."""
    return create_model(
        "lenet",
        tasks=size.tasks,
        classes=CLASSES,
        single_head=False,
        seed=1,
        params=LeNetParams(width=size.width),
    )


class OneHead(torch.nn.Module):
    """A body with the head of one task."""

    def __init__(self, model: MultiHeadModel) -> None:
        super().__init__()
        self.body, self.head = model.body, model.heads[0]

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, classes)."""
        logits: Tensor = self.head(self.body(x))
        return logits


def plain(size: Size) -> Turn:
    """Return a loop of bare steps of the same network and optimizer."""
    model = OneHead(network(size))
    optimizer = torch.optim.Adam(model.parameters(), RATE, fused=True)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return partial(stepwise, step, size.batch)


def port(size: Size, task: int) -> Turn:
    """Return a loop of bare steps of the port."""
    torch.manual_seed(0)
    model = FedKnowStep(OneHead(network(size)), task, CLIENTS, DENSITY, RATE)
    return partial(stepwise, model.step, size.batch)


def stepwise(
    step: Callable[[Tensor, Tensor], Tensor], batch: int, examples: Examples
) -> float:
    """Take a step a batch; return the last loss."""
    loss = torch.zeros(())
    for x, y in batches(examples, batch, 0):
        loss = step(x, y)
    return float(loss)


def ours(size: Size, task: int) -> Turn:
    """Return a round of our client's training, in the midst of a task."""
    training = Training(epochs=1, batch_size=size.batch, learning_rate=RATE)
    context = ClientContext(client=0, seed=1, training=training)
    learner = FedWeit(FedWeitParams(), network(size), context)
    state: Payload = learner.init()
    for finished in range(task):
        state = {
            **learner.start(state, {}, finished),
            f"adapters/{finished}": adapter(learner, finished),
        }
        state = learner.finish_task(state, finished)
    others = range(1, CLIENTS + 1) if task else ()  # `knowledge` is sample:5
    foreign = {f"adapters/{c}/0": adapter(learner, c) for c in others}
    work = learner.build_task_model(learner.start(state, foreign, task), task)
    moments: Arrays = {}

    def turn(examples: Examples) -> float:
        nonlocal moments
        job = Fit(  # bare steps validate nothing either
            parameters=work.leaves,
            objective=work.loss,
            examples=examples,
            training=training,
            seed=1,
            round=1,
            rates=work.rates,
            after_step=work.proximal_step,
            optimizer_state=moments,
        )
        done = fit(job)
        moments = done.optimizer_state
        return done.loss

    return turn


def adapter(learner: FedWeit[FedWeitParams], seed: int) -> dict[str, SparseArray]:
    """Return an adapter of random numbers, as sparse as trained ones are."""
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, weight in learner.initial().items():
        kept = torch.rand(weight.shape, generator=draw) < DENSITY
        values = torch.randn(weight.shape, generator=draw) * 0.02
        found[name] = SparseArray.of_mask(values.numpy(), kept.numpy())
    return found


def report(results: Results, size: Size) -> str:
    """Return the table: a step of each side, beside the plain one's."""
    steps = {
        name: [
            row["cpu"] / row["steps"]
            for row in results.of(part="b", **asdict(size), side=name)
        ]
        for name in sides(size)
    }
    lines = [
        [
            name,
            spread([1000 * second for second in found]),
            ratios(found, steps[PLAIN]),
        ]
        for name, found in steps.items()
    ]
    return (
        f"Batches of {size.batch}, {size.steps} steps a turn; {CLIENTS} foreign "
        f"adapters, {DENSITY:.0%} of whose entries are not zero.\n\n"
        + table(("side", "processor ms a step", f"ratio to {PLAIN}"), lines)
    )
