"""What a server side calls to have samples made of its model."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.datasets.images import standardized
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.synthesis.params import SynthesisParams
from fcl_flower.training.synthesis.synthesis import Synthesis
from fcl_flower.training.tensors import arrays_of, load


class SampleTrainer(ServerTrainer):
    """Makes images of classes that a model knows; needs no public data."""

    @override
    def __post_init__(self) -> None:
        """Let the student start from the fresh model.

        Raises:
            ConfigError: the model takes no images.
        """
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
        """Return samples, and what the model says of them.

        Args:
            tensors: the model's shared tensors.
            labels: int64, shape (C,): places in the head of the classes to be made.
            params: sizes and weights.
            number: of the call in the run, such as its round; another one makes other
                samples.

        Returns:
            ``x`` (pixels, uint8, shape (N, C, H, W)), ``logits`` (float32, shape
            (N, C)) and ``labels`` (int64).
        """
        seed = derive(self.seed, "synthesis", number)
        return self._samples(
            tensors,
            labels,
            lambda teacher, student, here: Synthesis(
                teacher, student, here, params, self.training, seed
            ),
        )

    def _samples(
        self,
        tensors: Arrays,
        labels: Array,
        begun: Callable[[MultiHeadModel, MultiHeadModel, Tensor], Synthesis],
    ) -> dict[str, Array]:
        """Return what is made by a synthesis of teacher, student and labels."""
        load(self.model, tensors)
        teacher, student = copy.deepcopy(self.model), copy.deepcopy(self._student)
        here = torch.tensor(labels, device=next(teacher.parameters()).device)
        pixels = begun(teacher, student, here).images()
        logits = predict_logits(teacher, inputs(pixels))[:, here]
        return arrays_of({"x": pixels, "logits": logits, "labels": here})


def inputs(pixels: Tensor) -> Tensor:
    """Return images as a model takes them, of pixels, uint8, shape (N, C, H, W)."""
    return standardized(pixels / 255)
