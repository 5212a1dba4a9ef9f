"""A shared body with a linear head for each task, or with a single head."""

import copy
from collections.abc import Sequence
from typing import Self, TypeVar, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import ContractError, config_error
from fcl_flower.models.normalisation import FIXED, Normalisation

Body = TypeVar("Body", bound=nn.Module)

CLOSED = -1e9
"""The logit of a class that a growing head does not have yet.

The class's probability and all its gradients are 0. The logit is finite, since 0 times
infinity is NaN.
"""


def mask_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Set logits, shape (batch, classes), to `CLOSED` except for ``labels``."""
    closed = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    closed[labels] = False
    return logits.masked_fill(closed, CLOSED)


class GrowingHead(nn.Module):
    """A layer from features to logits, some of which may be closed."""

    closed: Tensor | None = None
    """The mask of closed classes, bool, shape (classes,); None if none is closed."""

    def hide(self, logits: Tensor) -> Tensor:
        """Set the logits of closed classes, shape (batch, classes), to `CLOSED`."""
        return (
            logits if self.closed is None else logits.masked_fill(self.closed, CLOSED)
        )


class Head(GrowingHead, nn.Linear):
    """A linear layer from features to logits."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.hide(super().forward(x))


class Network(nn.Module):
    """The network of one task: frozen copies of a body and of the task's head."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        """Copy body and head with their present weights."""
        super().__init__()
        self.body, self.head = copy.deepcopy(body), copy.deepcopy(head)
        self.eval().requires_grad_(False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class MultiHeadModel(nn.Module):
    """A body with heads, whose parameters' names say whether they are shared.

    Clients share ``body.*``. ``heads.N.*`` belongs to task N and stays private, unless
    there is a single head, which is shared, too.

    Attributes:
        body: module from ``(batch, *input_shape)`` to (batch, features).
        heads: `GrowingHead` modules, one for each task or exactly one. They are `Head`,
            unless the algorithm replaces them (`ClientLearner.replace_heads`).
        input_shape: shape of one input, such as (3, 32, 32); (-1,) for text.
        single_head: whether one head serves every task.
        smallest_batch: fewest inputs that the body takes in training.
        features: number of the body's features.
        classes: number of logits of a head.
        normalisation: normalisation of the images that the body takes.
    """

    normalisation: Normalisation = FIXED

    def __init__(
        self,
        body: nn.Module,
        *,
        features: int,
        input_shape: tuple[int, ...],
        tasks: int,
        classes: int,
        single_head: bool,
        smallest_batch: int = 1,
        head: GrowingHead | None = None,
    ) -> None:
        """Put heads of random weights on a body, or the pre-trained ``head``."""
        super().__init__()
        self.body = body
        self.input_shape = input_shape
        self.single_head = single_head
        self.smallest_batch = smallest_batch
        self.features, self.classes = features, classes
        count = 1 if single_head else tasks
        made = [head] if head else [Head(features, classes) for _ in range(count)]
        self.heads = nn.ModuleList(made)

    def reset(self, initial: Self) -> bool:
        """Copy the values, modes, flags and closed classes of an initial model.

        Returns:
            False, without any copy, if a module or a tensor of this model is of another
            kind than the initial model's.
        """
        if _form(self) != _form(initial):
            return False
        with torch.no_grad():
            for tensor, source in zip(_tensors(self), _tensors(initial), strict=True):
                tensor.requires_grad_(source.requires_grad)
                tensor.grad = None
                if tensor is not source:
                    tensor.copy_(source)
        for module, first in zip(self.modules(), initial.modules(), strict=True):
            module.training = first.training
            if isinstance(module, GrowingHead):
                module.closed = cast(GrowingHead, first).closed
        return True

    def body_of(self, kind: type[Body], expected: str) -> Body:
        """Return the body if it is of the kind that a method trains; refuse others.

        ``expected`` says in the error which models the method takes.
        """
        if not isinstance(self.body, kind):
            raise config_error("model.name", type(self.body).__name__, expected)
        return self.body

    def head_index(self, task: int) -> int:
        """Find the index in ``heads`` of the head of ``task``."""
        return 0 if self.single_head else task

    def restrict_head(self, labels: Sequence[int]) -> None:
        """Open only ``labels``, which are indices, in the single head.

        The rows of other classes have no gradient and stay. This makes a head that
        grows as classes come, or a softmax restricted to a client's labels.
        """
        head = cast(GrowingHead, self.heads[0])
        device = next(head.parameters()).device
        closed = torch.ones(self.classes, dtype=torch.bool, device=device)
        closed[list(labels)] = False
        head.closed = closed

    def shared_names(self) -> tuple[str, ...]:
        """List the parameters and buffers that clients share.

        Frozen parameters are left out, since they are the same everywhere. A parameter
        with several names, such as a tied weight, is listed by its first name.
        """
        trained = {n for n, p in self.named_parameters() if p.requires_grad}
        left_out = {n for n, _ in self.named_parameters(remove_duplicate=False)}
        left_out -= trained
        return tuple(
            name
            for name in self.state_dict()
            if name not in left_out
            and (self.single_head or not name.startswith("heads."))
        )

    def head_names(self, task: int) -> tuple[str, ...]:
        """List the private parameters of the head of ``task``."""
        if self.single_head:
            return ()
        return (f"heads.{task}.weight", f"heads.{task}.bias")

    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs before any training, shape (batch, D).

        Raises:
            ContractError: the body has no method ``embed``.
        """
        embed = getattr(self.body, "embed", None)
        if embed is None:
            raise ContractError(f"{type(self.body).__name__} embeds no inputs")
        embeddings: Tensor = embed(x)
        return embeddings

    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the output of the frozen parts in front of the body.

        `forward` takes the result in place of ``x``; training does not change it. For a
        body without such parts it is ``x`` itself.
        """
        compute = getattr(self.body, "frozen_features", None)
        features: Tensor = x if compute is None else compute(x)
        return features

    def network(self, task: int) -> Network:
        """Copy the body and the head of ``task`` with their present weights."""
        return Network(self.body, self.heads[self.head_index(task)])

    @override
    def forward(self, x: Tensor, task: int) -> Tensor:
        """Compute logits, shape (batch, classes), of ``(batch, *input_shape)``."""
        logits: Tensor = self.heads[self.head_index(task)](self.body(x))
        return logits


def _tensors(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def _form(network: nn.Module) -> list[object]:
    named = [*network.named_parameters(), *network.named_buffers()]
    return [
        *((name, type(module)) for name, module in network.named_modules()),
        *((n, t.shape, t.stride(), t.dtype, t.device) for n, t in named),
    ]
