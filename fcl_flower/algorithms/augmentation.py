"""What training sees of samples: themselves, or in each batch another view of them."""

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
    """Samples of a training, and what becomes of a batch of them.

    Attributes:
        x: N samples: as they are, or what frozen parts of the body make of them.
        see: from some of ``x`` to what the body takes; another view with each call
            where the run augments.
    """

    x: Tensor
    see: Callable[[Tensor], Tensor]


def training_inputs(
    model: MultiHeadModel,
    x: Tensor,
    context: ClientContext,
    number: int,
    purpose: str = "augment",
) -> TrainingInputs:
    """Prepare samples, shape (N, *input_shape), to be trained on in a round.

    Frozen parts of the body compute them once; of augmented samples, each view anew.
    For ``number`` and ``purpose`` see `augmenter`.
    """
    augment = augmenter(context, number, purpose)
    if augment is None:
        return TrainingInputs(frozen_features(model, x), lambda batch: batch)
    return TrainingInputs(x, lambda batch: model.frozen_features(augment(batch)))


def augmenter(
    context: ClientContext, number: int, purpose: str = "augment"
) -> Callable[[Tensor], Tensor] | None:
    """Make what augments the batches of a round, one after the other.

    Args:
        context: of the client.
        number: of the round.
        purpose: of its random numbers; another one for other samples of the round.

    Returns:
        from inputs to inputs, on which nothing else depends; None for none.
    """
    if context.augment is None:
        return None
    where = context.seed, purpose, context.client, number
    seed = derive(*where)
    if context.privacy.unit == "example":
        # Nobody may know which view of an example has been in a step.
        seed = int(secret_generator(*where).integers(2**62))
    generator = torch.Generator().manual_seed(seed)
    augment = context.augment
    return lambda batch: augment(batch, generator)
