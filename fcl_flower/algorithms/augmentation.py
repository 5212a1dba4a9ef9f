"""The inputs of a training: samples as they are, or each time another view of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fcl_flower.algorithms.base import ClientContext
from fcl_flower.core.schedule import derive
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.privacy.mechanism import secret_generator
from fcl_flower.training.feature_cache import frozen_features


class TrainingInputs(NamedTuple):
    """The samples of a training, and the function that turns a batch into inputs.

    Attributes:
        x: N samples as they are, or as frozen parts of the body have computed them.
        see: maps some of ``x`` to inputs of the body. Where the run augments, each call
            returns another view.
    """

    x: Tensor
    see: Callable[[Tensor], Tensor]

    def at(self, rows: Tensor) -> Tensor:
        """Compute the body's inputs for the samples at ``rows``."""
        return self.see(self.x[rows])


def training_inputs(
    model: MultiHeadModel,
    x: Tensor,
    context: ClientContext,
    number: int,
    purpose: str = "augment",
) -> TrainingInputs:
    """Prepare samples, shape (N, *input_shape), for the training of a round.

    Frozen parts of the body compute samples once. They compute each augmented view
    anew. For ``number`` and ``purpose`` see `augmenter`.
    """
    augment = augmenter(context, number, purpose)
    if augment is None:
        return TrainingInputs(frozen_features(model, x), lambda batch: batch)
    return TrainingInputs(x, lambda batch: model.frozen_features(augment(batch)))


def augmenter(
    context: ClientContext, number: int, purpose: str = "augment"
) -> Callable[[Tensor], Tensor] | None:
    """Build the function that augments the batches of a round, one after the other.

    Args:
        context: the client's context.
        number: the round's number.
        purpose: names the stream of random numbers. Other samples of the same round
            need another purpose.

    Returns:
        a function from inputs to inputs; None where the run does not augment. No other
        random number depends on it.
    """
    if context.augment is None:
        return None
    where = context.seed, purpose, context.client, number
    seed = derive(*where)
    if context.privacy.unit == "example":
        # The view of an example that a step has used must stay secret.
        seed = int(secret_generator(*where).integers(2**62))
    generator = torch.Generator().manual_seed(seed)
    augment = context.augment
    return lambda batch: augment(batch, generator)
