"""Which tensors of a model are decomposed into base and adapters; one rule for all.

FedWeIT decomposes the weights of every fully connected and convolutional layer. Both
have the output channels on axis 0, which is where gates and channels are counted.
"""

from fcl_flower.core.types import Array, Arrays


def is_decomposed(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of the shared body is a weight with output channels.

    Biases and the scales and statistics of normalisation have one axis; they belong
    to a task, as its head does.
    """
    return name.startswith("body.") and len(shape) > 1


def decomposed(arrays: Arrays) -> dict[str, Array]:
    """Return the dense tensors of a model that are decomposed, by name."""
    return {
        name: tensor  # type: ignore[misc]
        for name, tensor in arrays.items()
        if is_decomposed(name, tuple(tensor.shape))
    }
