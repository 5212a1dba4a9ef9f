"""IDBR: features that all tasks share are kept apart from those of single tasks.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, sections 3.2 to 3.4. FedET
(Liu et al., IJCAI 2023) federates it by averaging. The paper replays in every tenth
batch. Here the memory is trained on together with the task, as in `replay`.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.algorithms import exemplars
from fcl_flower.algorithms.local_training import Batch, LocalTraining, Turn
from fcl_flower.algorithms.teacher import Teacher
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Array, Arrays, Payload, Update
from fcl_flower.data.examples import Examples, batches, concat
from fcl_flower.models.encoder import DisentangledTransformer
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.tensors import dense, load, to_numpy
from strategies.idbr import IdbrParams

_CHUNK = 64


class Idbr(LocalTraining[IdbrParams]):
    """A learner that minimises four losses over the task's samples and the memory's.

    Two are cross-entropies over texts in both orders: of the label, and of the order of
    a text's halves. From a client's second task on two more are added. One is the
    cross-entropy of the task, over both orders as well. The other is the squared
    distance of both spaces from the teacher's, over texts as they are.

    State beside that of `LocalTraining`: the groups of a `Teacher`, and ``memory``, the
    samples of old tasks.
    """

    @override
    def prepare(self) -> None:
        expected = "disentangled-transformer, whose two spaces IDBR trains"
        self._body = self.model.body_of(DisentangledTransformer, expected)

    @override
    def train(self, turn: Turn) -> tuple[Payload, Update]:
        state, received, stage, data = turn
        if stage.task >= self._body.task.out_features:
            raise config_error(
                "model.max_tasks",
                self._body.task.out_features,
                f"at least {stage.task + 1}, the tasks so far",
            )
        memory = state.get("memory", {})
        params, device, count = self.params, self.context.device, len(data.train.y)
        replayed = exemplars.replay_samples(memory, device, without=stage.task)
        examples = concat([data.train, replayed])
        teacher = Teacher.of_turn(turn, self.model, received["base"])
        stored = dense(memory["task"]).astype(np.int64) if memory else np.zeros(0)
        of_rows = [np.full(count, stage.task), stored[stored != stage.task]]
        tasks = torch.tensor(np.concatenate(of_rows), dtype=torch.int64, device=device)
        # With an order of its own, a client may have met later concepts before.
        so_far = int(tasks.max()) + 1 if len(tasks) else 0
        weights = torch.full((len(examples.y),), params.new_weight)
        weights[count:] = params.replayed_weight
        weights = weights.to(device)
        if teacher.teaches and len(examples.y):
            load(self.model, teacher.base)
            anchors = self._spaces(examples, self._body)

        def loss(batch: Batch) -> Tensor:
            x, hidden, rows = batch.inputs, batch.features, batch.rows
            width = self._body.width
            swapped = self._body(swap_halves(x, draw_cuts(x)))
            both = torch.cat([hidden, swapped])
            logits = torch.cat([batch.logits, self.model.heads[0](swapped)])
            total = mean_cross_entropy(logits, batch.labels.repeat(2), batch.weights)
            is_swapped = torch.zeros(len(both), dtype=torch.int64, device=both.device)
            is_swapped[len(rows) :] = 1
            order = self._body.order(both[:, :width])
            total = total + params.order * cross_entropy(order, is_swapped)
            if not teacher.teaches:
                return total
            guesses = self._body.task(both[:, width:])[:, :so_far]
            total = total + params.task * cross_entropy(guesses, tasks[rows].repeat(2))
            squares = (hidden - anchors[rows]).square() * weights[rows, None]
            generic, specific = squares[:, :width].mean(), squares[:, width:].mean()
            return total + (params.generic * generic + params.specific * specific)

        state, update = self.fit_locally(turn, examples, loss=loss)
        memory = self._remembered(memory, data.train, stage.task)
        return {**state, **teacher.record(stage), "memory": memory}, update

    def _remembered(self, memory: Arrays, examples: Examples, task: int) -> Arrays:
        """Add samples of a task to the memory; a task counts once."""
        params, count = self.params, len(examples.y)
        if not count or exemplars.contains(memory, task):
            return memory
        fixed = params.budget == "fixed"
        room = round(params.buffer_fraction * count)
        if fixed:
            room = params.room(len(torch.unique(examples.y)))
        if fixed and not room:
            return memory
        seed = exemplars.memory_seed(self.context, task)
        features = to_numpy(self._spaces(examples, self._body.pooled))
        chosen = nearest_to_centres(features, max(1, room), seed)
        if not fixed:
            return exemplars.joined(memory, exemplars.rows_of(examples, chosen, task))
        places = torch.from_numpy(chosen).to(examples.y.device)
        best = Examples(examples.x[places], examples.y[places])
        return exemplars.remember(memory, best, params, seed, task, features[chosen])

    def _spaces(
        self, examples: Examples, seen_by: Callable[[Tensor], Tensor]
    ) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return torch.cat([seen_by(x) for x, _ in batches(examples, _CHUNK)])


def nearest_to_centres(features: Array, count: int, seed: int) -> Array:
    """Find the sample nearest to each centre of k-means (section 3.4).

    Returns:
        places, int64, ascending, one for each of ``count`` clusters of features (N, d).
    """
    # The import takes a second.
    from sklearn.cluster import KMeans

    points = np.asarray(features, np.float64)
    # K-means needs as many different points as clusters.
    count = min(count, len(np.unique(points, axis=0)))
    fitted = KMeans(count, n_init=10, random_state=seed % 2**32).fit(points)
    places = []
    for cluster, centre in enumerate(fitted.cluster_centers_):
        members = np.flatnonzero(fitted.labels_ == cluster)
        distances = np.square(points[members] - centre).sum(1)
        places.append(members[distances.argmin()])
    return np.sort(np.array(places, np.int64))


# Section 3.2 has next sentence prediction within a text that is cut anywhere. There a
# separator marks the cut in both orders. Here neither order has one, so texts keep
# their length.


def draw_cuts(x: Tensor) -> Tensor:
    """Draw the number of words before each text's cut; at least one word follows it.

    Torch's own generator draws, which training has seeded. A text of one word is cut
    behind it.
    """
    words = (x > 0).sum(1) - 2
    places = torch.rand(len(x)).to(x.device) * (words - 1).clamp(min=1)
    return 1 + places.long()


def swap_halves(x: Tensor, cuts: Tensor) -> Tensor:
    """Move the words behind the cut to the beginning of texts.

    Texts are token numbers, shape (batch, tokens), 0 behind their end. The first and
    the last token are the tokenizer's own and stay where they are.
    """
    lengths = (x > 0).sum(1)[:, None]
    places = torch.arange(x.shape[1], device=x.device)[None]
    words = (lengths - 2).clamp(min=1)
    moved = 1 + (places - 1 + cuts[:, None]) % words
    inside = (places >= 1) & (places < lengths - 1)
    return x.gather(1, torch.where(inside, moved, places))
