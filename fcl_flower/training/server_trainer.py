"""Training on the server, with the run's model and the server's public samples."""

from dataclasses import dataclass

import numpy as np
import torch

from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import DistillationSet, distill, predict_logits
from fcl_flower.training.loop import Training
from fcl_flower.training.tensors import load, snapshot, to_numpy


@dataclass(eq=False)
class ServerTrainer:
    """A trainer of the server's model on public samples.

    Each call loads the tensors that it is about into the model. The features of the
    model's frozen part are computed once. A method that needs more has a subclass
    beside its strategy, in ``trainer.py``, which prepares in its ``__post_init__``.

    Attributes:
        model: the run's model, freshly initialised, with a single head.
        public: public samples.
        training: settings of the training.
        seed: the run's seed.
        labels: each public sample's index in the single head, int64, shape (N,); -1
            for a class that no client has.
        classes: each sample's class among those of the public data, from 0, int64,
            shape (N,).
    """

    model: MultiHeadModel
    public: PublicExamples
    training: Training
    seed: int

    def __post_init__(self) -> None:
        self._prepared: torch.Tensor | None = None
        self.labels = to_numpy(self.public.y)
        self.classes = to_numpy(self.public.classes)

    def features(self) -> Array:
        """Compute the untrained model's features of the public samples, (N, D)."""
        return to_numpy(self.model.embed(self.public.x))

    def logits(self, tensors: Arrays, chosen: Array) -> Array:
        """Compute the logits of the chosen public samples, shape (n, classes)."""
        load(self.model, tensors)
        return to_numpy(predict_logits(self.model, self._inputs(chosen)))

    def distill(
        self,
        start: Arrays,
        chosen: Array,
        targets: Array,
        classes: Array,
        epochs: int,
        label_weight: float = 0.0,
    ) -> Arrays:
        """Train shared tensors to match target logits on public samples.

        Args:
            start: tensors from which training starts.
            chosen: indices of the samples, int64, shape (n,), possibly repeated.
            targets: target logits, shape (n, classes).
            classes: indices of the logits that count.
            epochs: passes over the samples.
            label_weight: weight of the labels' cross-entropy beside the squared error,
                used if all samples have a label.

        Returns:
            the trained tensors of the names in ``start``.
        """
        load(self.model, start)
        x, labels = self._inputs(chosen), self.labels[chosen]
        data = DistillationSet(
            x,
            torch.tensor(targets, dtype=torch.float32, device=x.device),
            torch.tensor(classes, device=x.device),
            torch.tensor(labels, device=x.device),
            label_weight if (labels >= 0).all() else 0.0,
        )
        seed = derive(self.seed, "bench")
        distill(self.model, data, self.training, epochs, seed)
        return snapshot(self.model, start)

    def _inputs(self, chosen: Array) -> torch.Tensor:
        if self._prepared is None:
            self._prepared = self.model.frozen_features(self.public.x)
        where = torch.tensor(np.asarray(chosen), device=self._prepared.device)
        return self._prepared[where]
