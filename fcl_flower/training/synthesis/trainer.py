"""What a server side calls to have samples made of its model."""

import copy

import torch
from torch import Tensor

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.seeds import derive
from fcl_flower.core.types import Array, Arrays
from fcl_flower.data.datasets.images import standardized
from fcl_flower.data.examples import PublicExamples
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.loop import Training
from fcl_flower.training.server_trainer import ServerTrainer
from fcl_flower.training.synthesis.params import SynthesisParams
from fcl_flower.training.synthesis.synthesis import Synthesis
from fcl_flower.training.tensors import load, to_numpy


class SampleTrainer(ServerTrainer):
    """Makes images of classes that a model knows; needs no public data."""

    def __init__(
        self,
        model: MultiHeadModel,
        public: PublicExamples,
        training: Training,
        seed: int,
    ) -> None:
        """Keep them, see `ServerTrainer`; the student starts from the fresh model.

        Raises:
            ConfigError: the model takes no images.
        """
        super().__init__(model, public, training, seed)
        if len(model.input_shape) != 3:
            raise ConfigError(
                f"model: got input shape {model.input_shape}, expected (C, H, W), "
                "since the server makes images and nothing else"
            )
        self._student = copy.deepcopy(model)

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
        load(self._model, tensors)
        teacher = copy.deepcopy(self._model)
        here = torch.tensor(labels, device=next(teacher.parameters()).device)
        run = Synthesis(
            teacher,
            copy.deepcopy(self._student),
            here,
            params,
            self._training,
            derive(self._seed, "synthesis", number),
        )
        pixels = run.images()
        logits = predict_logits(teacher, inputs(pixels))[:, here]
        found = {"x": pixels, "logits": logits, "labels": here}
        return {name: to_numpy(values) for name, values in found.items()}


def inputs(pixels: Tensor) -> Tensor:
    """Return images as a model takes them, of pixels, uint8, shape (N, C, H, W)."""
    return standardized(pixels / 255)
