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

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.exemplars import (
    contains,
    joined,
    memory_seed,
    remember,
    rows_of,
)
from fcl_flower.algorithms.local_training import Turn
from fcl_flower.algorithms.rehearsal import Rehearsal
from fcl_flower.core.errors import config_error
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples, batches
from fcl_flower.models.encoder import DisentangledTransformer
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.balance import mean_cross_entropy
from fcl_flower.training.tensors import dense, load, to_numpy
from strategies.idbr import IdbrParams

_CHUNK = 64


class Idbr(Rehearsal[IdbrParams]):
    """A learner that minimises four losses over the task's samples and the memory's.

    Two are cross-entropies over texts in both orders: of the label, and of the order of
    a text's halves. From a client's second task on two more are added. One is the
    cross-entropy of the task, over both orders as well. The other is the squared
    distance of both spaces from the teacher's, over texts as they are.
    """

    def __init__(
        self, params: IdbrParams, model: MultiHeadModel, context: ClientContext
    ) -> None:
        """Find the two spaces in the model's body."""
        super().__init__(params, model, context)
        expected = "disentangled-transformer, whose two spaces IDBR trains"
        self._body = model.body_of(DisentangledTransformer, expected)

    @override
    def begin(self, turn: Turn) -> Examples:
        if turn.stage.task >= self._body.task.out_features:
            raise config_error(
                "model.max_tasks",
                self._body.task.out_features,
                f"at least {turn.stage.task + 1}, the tasks so far",
            )
        examples = super().begin(turn)
        params, count, memory = self.params, len(turn.data.train.y), self.memory(turn)
        task = turn.stage.task
        replayed = dense(memory["task"]).astype(np.int64) if memory else np.zeros(0)
        tasks = np.concatenate([np.full(count, task), replayed[replayed != task]])
        self._tasks = torch.tensor(tasks, dtype=torch.int64, device=self.context.device)
        weights = torch.full((len(examples.y),), params.new_weight)
        weights[count:] = params.replayed_weight
        self._weights = weights.to(self.context.device)
        if self.teacher.teaches and len(examples.y):
            load(self.model, self.teacher.base)
            self._anchors = self._spaces(examples, self._body)
        return examples

    @override
    def loss(
        self, logits: Tensor, labels: Tensor, rows: Tensor, hidden: Tensor
    ) -> Tensor:
        params, width = self.params, self._body.width
        other = self._body(swap_halves(self.seen, draw_cuts(self.seen)))
        both = torch.cat([hidden, other])
        logits_of_both = torch.cat([logits, self.model.heads[0](other)])
        swapped = torch.zeros(len(both), dtype=torch.int64, device=both.device)
        swapped[len(rows) :] = 1
        loss = mean_cross_entropy(logits_of_both, labels.repeat(2), self.weights)
        order = self._body.order(both[:, :width])
        loss = loss + params.order * cross_entropy(order, swapped)
        if not self.teacher.teaches:
            return loss
        # With an order of its own, a client may have met later concepts before.
        so_far = int(self._tasks.max()) + 1
        tasks = self._body.task(both[:, width:])[:, :so_far]
        loss = loss + params.task * cross_entropy(tasks, self._tasks[rows].repeat(2))
        squares = (hidden - self._anchors[rows]).square() * self._weights[rows, None]
        generic, specific = squares[:, :width].mean(), squares[:, width:].mean()
        return loss + (params.generic * generic + params.specific * specific)

    @override
    def remember(self, turn: Turn) -> Arrays:
        """Add samples of a task to the memory; a task counts once."""
        memory, examples, task = self.memory(turn), turn.data.train, turn.stage.task
        params, count = self.params, len(examples.y)
        if not count or contains(memory, task):
            return memory
        fixed = params.budget == "fixed"
        room = round(params.buffer_fraction * count)
        if fixed:
            room = params.room(len(torch.unique(examples.y)))
        if fixed and not room:
            return memory
        seed = memory_seed(self.context, task)
        features = to_numpy(self._spaces(examples, self._body.pooled))
        chosen = nearest_to_centres(features, max(1, room), seed)
        if not fixed:
            return joined(memory, rows_of(examples, chosen, task))
        places = torch.from_numpy(chosen).to(examples.y.device)
        best = Examples(examples.x[places], examples.y[places])
        return remember(memory, best, params, seed, task, features[chosen])

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
