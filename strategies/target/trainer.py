"""Synthesis of samples from a model on the server, without any data.

This is the server's part of TARGET's algorithm (Zhang et al., ICCV 2023,
https://arxiv.org/abs/2303.06937). It follows data-free distillation by a generator
(Fang et al., AAAI 2022, https://arxiv.org/abs/2112.15278). For each batch the generator
is trained on one draw of noise and labels. The batch that it then makes is kept, and
the student learns the teacher's answers to all kept samples.

The authors' code differs:

- It trains a copy of the generator for each batch, and moves the generator by the
  copy's gradients. It trains the noise too.
- It keeps the best step's batch in the place of the last one's.
- It shifts and mirrors images, and averages the statistics of batch normalisation over
  batches.
- With its own settings for CIFAR-100 (10 batches, a warm-up of 20) no student is ever
  trained.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.examples import Examples
from fcl_flower.models.build import seeded
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.training.distillation import predict_logits, softened_kl
from fcl_flower.training.loop import Fit, Training, fit
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.tensors import arrays_of, load
from strategies.target import SynthesisParams

GENERATOR_RATE = 2e-3
"""The learning rate of the generator, as in both codes."""
STUDENT_TEMPERATURE = 20.0
"""The temperature of the student's lessons, as in both codes. Its square multiplies the
loss, so that the strength of the gradient stays."""
_SLOPE = 0.2


class SampleTrainer(ServerTrainer):
    """A trainer that generates images of a model's classes, without public data."""

    @override
    def __post_init__(self) -> None:
        """Let the student start from the fresh model, which must take images."""
        super().__post_init__()
        if len(self.model.input_shape) != 3:
            raise ConfigError(
                f"model: got input shape {self.model.input_shape}, expected (C, H, W), "
                "since the server makes images and nothing else"
            )
        self._student = copy.deepcopy(self.model)

    def synthesize(
        self, tensors: Arrays, labels: Array, params: SynthesisParams, number: int
    ) -> dict[str, Array]:
        """Generate samples, and compute the model's logits for them.

        Args:
            tensors: the model's shared tensors.
            labels: int64, shape (C,): places in the head of the classes to generate.
            params: sizes and weights.
            number: number of the call in the run, such as its round; another number
                gives other samples.

        Returns:
            ``x`` (pixels, uint8, shape (N, C, H, W)), ``logits`` (float32, shape (N,
            C)) and ``labels`` (int64).
        """
        seed, training = derive(self.seed, "synthesis", number), self.training
        begin = partial(Synthesis, params=params, training=training, seed=seed)
        return self._samples(tensors, labels, begin)

    def _samples(
        self, tensors: Arrays, labels: Array, begin: Callable[..., "Synthesis"]
    ) -> dict[str, Array]:
        load(self.model, tensors)
        teacher, student = copy.deepcopy(self.model), copy.deepcopy(self._student)
        here = torch.tensor(labels, device=next(teacher.parameters()).device)
        pixels = begin(teacher, student, here).images()
        logits = predict_logits(teacher, inputs(teacher, pixels))[:, here]
        return arrays_of({"x": pixels, "logits": logits, "labels": here})


@dataclass(eq=False)
class Synthesis:
    """A teacher, a generator of images, and a student that learns from both.

    Attributes:
        teacher: a network with a single head; this object's own, in evaluation mode,
            never changed.
        student: a network of the same layers, also this object's own; changed by
            `teach`.
        labels: int64, shape (C,): places in the head of the classes to generate; all
            other logits are ignored.
        params: sizes and weights.
        training: the run's optimizer, batch size and rate, for the student.
        seed: seed of all random numbers.
    """

    teacher: MultiHeadModel
    student: MultiHeadModel
    labels: Tensor
    params: SynthesisParams
    training: Training
    seed: int

    def __post_init__(self) -> None:
        """Create a generator."""
        self.teacher.requires_grad_(False).eval()
        with seeded(derive(self.seed, "generator")):
            self._generator = self._new_generator().to(self.labels.device)

    def images(self) -> Tensor:
        """Generate ``synthetic_samples`` images, uint8, shape (N, C, H, W)."""
        params, kept = self.params, list[Tensor]()
        needed = -(-params.synthetic_samples // params.synthetic_batch)
        for number in range(params.warmup + needed):
            batch = self._batch(number, against=bool(kept))
            if number < params.warmup:
                continue
            kept.append(batch)
            if len(kept) < needed:
                self.teach(inputs(self.student, torch.cat(kept)), number)
        return torch.cat(kept)[: params.synthetic_samples]

    def loss(self, pixels: Tensor, wanted: Tensor, *, against: bool) -> Tensor:
        """Compute what the generator minimises: TARGET's L_G.

        Args:
            pixels: shape (batch, C, H, W), in [0, 1].
            wanted: int64, shape (batch,): positions in the labels.
            against: whether images must make student and teacher disagree.
        """
        params, x = self.params, self.teacher.normalisation.standardized(pixels)
        with norm_distances(self.teacher) as distances:
            features = self.teacher.body(x)
        logits = self._logits(self.teacher, features)
        total = params.label_weight * cross_entropy(logits, wanted)
        total = total + self._feature_loss(features, wanted)
        total = total + params.norm_weight * sum(distances)
        if against:
            other = self._logits(self.student, self.student.eval().body(x))
            total = total - disagreement(other, logits)
        return total

    def teach(self, x: Tensor, number: int) -> None:
        """Train the student to answer inputs (N, C, H, W) as the teacher does.

        ``number`` is that of the batch after which it learns.
        """
        targets = predict_logits(self.teacher, x)[:, self.labels]
        lesson = self._feature_lesson(x)

        def objective(rows: Tensor, _: Tensor) -> Tensor:
            features = self.student.train().body(x[rows])
            logits = self._logits(self.student, features)
            divergence = softened_kl(logits, targets[rows], STUDENT_TEMPERATURE)
            return STUDENT_TEMPERATURE**2 * divergence.mean() + lesson(features, rows)

        rows = torch.arange(len(x), device=x.device)
        self.student.requires_grad_(True)
        job = Fit(
            parameters=dict(self.student.named_parameters()),
            objective=objective,
            examples=Examples(rows, rows),
            training=replace(self.training, epochs=self.params.student_epochs),
            seed=derive(self.seed, "student", number),
        )
        fit(job)
        self.student.requires_grad_(False)

    def _batch(self, number: int, *, against: bool) -> Tensor:
        """Train the generator for a batch, and generate the batch: pixels, uint8."""
        params, device = self.params, self.labels.device
        size = params.synthetic_batch
        draw = torch.Generator().manual_seed(derive(self.seed, "noise", number))
        # All classes have equally many samples, in a random order.
        wanted = torch.randperm(size, generator=draw).to(device) % len(self.labels)
        entering = self._generator_input(wanted, draw)

        def objective(rows: Tensor, _: Tensor) -> Tensor:  # a step takes them all
            return self.loss(self._generator(entering), wanted, against=against)

        self.student.requires_grad_(False)
        job = Fit(
            parameters=dict(self._generator.named_parameters()),
            objective=objective,
            examples=Examples(torch.arange(size, device=device), wanted),
            training=replace(
                self.training,
                epochs=params.generator_steps,
                batch_size=size,
                learning_rate=GENERATOR_RATE,
            ),
            seed=derive(self.seed, "generator", number),
        )
        fit(job)
        with torch.no_grad():
            pixels: Tensor = self._generator(entering)
        return (255 * pixels).round().to(torch.uint8)

    def _logits(self, network: MultiHeadModel, features: Tensor) -> Tensor:
        logits: Tensor = network.heads[0](features)[:, self.labels]
        return logits

    # ---- the parts that a subclass may change

    def _new_generator(self) -> nn.Module:
        params, shape = self.params, self.teacher.input_shape
        return ImageGenerator(params.generator_noise, params.generator_width, shape)

    def _generator_input(self, wanted: Tensor, draw: torch.Generator) -> Tensor:
        """Draw the generator's input for a batch of classes."""
        shape = len(wanted), self.params.generator_noise
        return torch.randn(shape, generator=draw).to(wanted.device)

    def _feature_loss(self, features: Tensor, wanted: Tensor) -> Tensor | float:
        """Compute what features add to the generator's loss: here nothing."""
        return 0.0

    def _feature_lesson(self, x: Tensor) -> Callable[[Tensor, Tensor], Tensor | float]:
        """Build the term that features of rows of x add to the student's loss."""
        return lambda features, rows: 0.0


class ImageGenerator(nn.Module):
    """A generator from noise (batch, noise) to pixels (batch, C, H, W), each in (0, 1).

    The layers are those of the generator in the code of TARGET and LANDER (that of
    DAFL, Chen et al., ICCV 2019, https://arxiv.org/abs/1904.01186). A linear layer
    leads to a quarter of the image's height and width. Two doublings, each with a
    convolution behind it, and a last convolution to pixels follow. Here they fit an
    image of any size.
    """

    def __init__(self, noise: int, width: int, shape: tuple[int, ...]) -> None:
        """Initialise with torch's defaults; the last hidden layer has ``width``."""
        super().__init__()
        channels, *size = shape
        self.start = (2 * width, *(math.ceil(side / 4) for side in size))
        self.enter = nn.Linear(noise, math.prod(self.start))
        self.layers = nn.Sequential(
            nn.BatchNorm2d(2 * width),
            nn.Upsample(tuple(math.ceil(side / 2) for side in size)),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(_SLOPE),
            nn.Upsample(tuple(size)),
            nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(_SLOPE),
            nn.Conv2d(width, channels, 3, padding=1),
        )

    @override
    def forward(self, noise: Tensor) -> Tensor:
        """Generate pixels, shape (batch, C, H, W)."""
        hidden = self.enter(noise).view(-1, *self.start)
        return torch.sigmoid(self.layers(hidden))


@contextmanager
def norm_distances(network: nn.Module) -> Iterator[list[Tensor]]:
    """Record how far batches lie from the data that batch normalisation has seen.

    Yin et al., CVPR 2020, https://arxiv.org/abs/1912.08795, equation 4: for each layer
    the Euclidean norm of the difference of means, and of that of variances.
    """
    distances: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(layer, nn.BatchNorm2d)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean = inputs[0].mean((0, 2, 3))
        variance = inputs[0].var((0, 2, 3), correction=0)
        distances.append(torch.linalg.vector_norm(mean - layer.running_mean))
        distances.append(torch.linalg.vector_norm(variance - layer.running_var))

    layers = [
        module for module in network.modules() if isinstance(module, nn.BatchNorm2d)
    ]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield distances
    finally:
        for hook in hooks:
            hook.remove()


def disagreement(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the mean divergence over samples, 0 where both choose the same class.

    This is TARGET's equation of the boundary: the indicator is 1 where the argmax of
    teacher and student differ. In the authors' code, and in LANDER's, it is 1 where
    they are the same.
    """
    differ = (student.argmax(1) != teacher.argmax(1)).float()
    return (differ * softened_kl(student, teacher, 1.0)).mean()


def inputs(model: MultiHeadModel, pixels: Tensor) -> Tensor:
    """Standardize pixels, uint8, (N, C, H, W), to the inputs of a model."""
    return model.normalisation.standardized(pixels / 255)
