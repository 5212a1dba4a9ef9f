"""A learner's training as its method asks for it: examples, loss and penalties."""

from inspect import getclosurevars

from torch import Tensor

from fcl_flower.algorithms.local_training import Batch, LocalTraining


class Watched:
    """The last training that a learner has asked for; earlier ones are forgotten.

    Attributes:
        examples: the examples to train on; None for those of the task.
        loss: the loss of a batch.
        penalties: what is added to it.
    """

    def __init__(self, learner: LocalTraining) -> None:
        self.learner, self._fit = learner, learner.fit_locally
        learner.fit_locally = self._watch  # type: ignore[method-assign]

    def _watch(self, turn, examples=None, *, loss=Batch.cross_entropy, **more):
        self.examples, self.loss = examples, loss
        self.penalties = more.get("penalties", ())
        return self._fit(turn, examples, loss=loss, **more)

    def __getitem__(self, name: str):
        """Return a variable of the method that its loss reads."""
        return getclosurevars(self.loss).nonlocals[name]

    def loss_of(self, x: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Compute the loss of a batch by the learner's present weights."""
        model = self.learner.model
        features = model.body(x)
        logits = model.heads[0](features)
        return self.loss(Batch(x, features, logits, labels, rows, None))

    def penalty(self) -> Tensor:
        """Compute all penalties of the learner's present weights."""
        return sum(penalty() for penalty in self.penalties)
