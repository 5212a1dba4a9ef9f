"""A teacher, a generator of images that it knows, and a student that does not yet.

TARGET (Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937), the server's part of
its algorithm, after data-free distillation by a generator (Fang et al., AAAI 2022,
https://arxiv.org/abs/2112.15278): batch by batch the generator is trained on one draw
of noise and labels, the batch that it then makes is kept, and the student learns what
the teacher says of all that is kept.

The authors' code differs: it trains a copy of the generator for each batch and moves
the generator by the copy's gradients, trains the noise, too, keeps the best step's
batch in place of the last one's, shifts and mirrors images, and averages the statistics
of batch normalisation over batches. With its own settings for CIFAR-100 (10 batches, a
warm-up of 20) no student is ever trained.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.images import standardized
from fcl_flower.data.examples import Examples
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.models.seeded import seeded
from fcl_flower.training.distillation import divergence, predict_logits
from fcl_flower.training.loop import Training, fit_once
from fcl_flower.training.synthesis.losses import (
    NormStatistics,
    disagreement,
)
from fcl_flower.training.synthesis.networks import ImageGenerator
from fcl_flower.training.synthesis.params import SynthesisParams

STUDENT_TEMPERATURE = 20.0
"""Of the student's lessons, as in both codes; times its square, so that the strength of
the gradient stays."""


class Synthesis:
    """Makes images of some classes that a teacher takes for theirs.

    Attributes:
        teacher: evaluating; never changed.
        student: changed by `teach`.
    """

    def __init__(
        self,
        teacher: MultiHeadModel,
        student: MultiHeadModel,
        labels: Tensor,
        params: SynthesisParams,
        training: Training,
        seed: int,
    ) -> None:
        """Make a generator.

        Args:
            teacher: with a single head; this object's own.
            student: likewise, of the same layers.
            labels: int64, shape (C,): places in the head of the classes to be made;
                all other logits are as if they were not there.
            params: sizes and weights.
            training: the run's optimizer, batch size and rate, for the student.
            seed: of everything that is drawn.
        """
        self.teacher = teacher.requires_grad_(False).eval()
        self.student = student
        self._labels, self._params = labels, params
        self._training, self._seed = training, seed
        self._norms = NormStatistics()
        with seeded(derive(seed, "generator")):
            self._generator = self._new_generator().to(labels.device)

    def images(self) -> Tensor:
        """Return ``synthetic_samples`` images, uint8, shape (N, C, H, W)."""
        count = self._params.synthetic_samples
        return torch.cat(list(self._batches(count)))[:count]

    def loss(self, pixels: Tensor, wanted: Tensor, *, against: bool) -> Tensor:
        """Return what the generator minimises: TARGET's L_G.

        Args:
            pixels: shape (batch, C, H, W), in [0, 1].
            wanted: int64, shape (batch,): positions in the labels.
            against: the student counts: images shall tell it from the teacher.
        """
        params, x = self._params, standardized(pixels)
        with self._norms.watching(self.teacher):
            features = self.teacher.body(x)
        logits = self._logits(self.teacher, features)
        found = params.label_weight * cross_entropy(logits, wanted)
        found = found + self._of_features(features, wanted)
        found = found + params.norm_weight * self._norms.distance()
        if against:
            other = self._logits(self.student, self.student.eval().body(x))
            found = found - params.adversarial_weight * disagreement(other, logits)
        return found

    def teach(self, x: Tensor, number: int) -> None:
        """Let the student learn what the teacher says of inputs.

        Args:
            x: shape (N, C, H, W).
            number: of the batch after which it learns.
        """
        targets = predict_logits(self.teacher, x)[:, self._labels]
        lesson = self._lesson(x)

        def objective(rows: Tensor, _: Tensor) -> Tensor:
            features = self.student.train().body(x[rows])
            logits = self._logits(self.student, features)
            found = divergence(logits, targets[rows], STUDENT_TEMPERATURE)
            return STUDENT_TEMPERATURE**2 * found.mean() + lesson(features, rows)

        rows = torch.arange(len(x), device=x.device)
        self.student.requires_grad_(True)
        fit_once(
            dict(self.student.named_parameters()),
            objective,
            Examples(rows, rows),
            replace(self._training, epochs=self._params.student_epochs),
            derive(self._seed, "student", number),
        )
        self.student.requires_grad_(False)

    def _batches(self, count: int) -> Iterator[Tensor]:
        """Yield batches of pixels until there are ``count`` images."""
        params, kept = self._params, list[Tensor]()
        needed = -(-count // params.synthetic_batch)
        for number in range(params.warmup + needed):
            made = self._batch(number, against=bool(kept))
            if number < params.warmup:
                continue
            yield made
            kept.append(standardized(made / 255))
            if len(kept) < needed:
                self.teach(torch.cat(kept), number)

    def _batch(self, number: int, *, against: bool) -> Tensor:
        """Return a batch of pixels, uint8, after training the generator for it."""
        params, device = self._params, self._labels.device
        size = params.synthetic_batch
        draw = torch.Generator().manual_seed(derive(self._seed, "noise", number))
        # As many of each class as of any other, which of them noise tells.
        wanted = torch.randperm(size, generator=draw).to(device) % len(self._labels)
        entering = self._entering(wanted, draw)

        def objective(rows: Tensor, _: Tensor) -> Tensor:  # a step takes them all
            return self.loss(self._generator(entering), wanted, against=against)

        self.student.requires_grad_(False)
        fit_once(
            dict(self._generator.named_parameters()),
            objective,
            Examples(torch.arange(size, device=device), wanted),
            replace(
                self._training,
                epochs=params.generator_steps,
                batch_size=size,
                learning_rate=params.generator_rate,
            ),
            derive(self._seed, "generator", number),
        )
        with torch.no_grad():
            pixels: Tensor = self._generator(entering)
        return (255 * pixels).round().to(torch.uint8)

    def _logits(self, network: MultiHeadModel, features: Tensor) -> Tensor:
        """Return those of the labels, shape (batch, C)."""
        found: Tensor = network.heads[0](features)[:, self._labels]
        return found

    # ---- what may be otherwise

    def _new_generator(self) -> nn.Module:
        """Return an untrained generator of what `_entering` returns."""
        params, shape = self._params, self.teacher.input_shape
        return ImageGenerator(params.generator_noise, params.generator_width, shape)

    def _entering(self, wanted: Tensor, draw: torch.Generator) -> Tensor:
        """Return what a batch is made of; a generator may be changed for it.

        Args:
            wanted: int64, shape (batch,): positions in the labels.
            draw: of all that is random in it.
        """
        shape = len(wanted), self._params.generator_noise
        return torch.randn(shape, generator=draw).to(wanted.device)

    def _of_features(self, features: Tensor, wanted: Tensor) -> Tensor | float:
        """Return what is added to the generator's loss, nothing.

        Args:
            features: what the teacher's body makes of the images.
            wanted: positions in the labels.
        """
        return 0.0

    def _lesson(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor | float]:
        """Return what is added to the student's loss, of its features and rows of x."""
        return lambda features, rows: 0.0
