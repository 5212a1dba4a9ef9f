"""A shared body with one linear head per task, or one for all."""

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
"""Logit of a class that a growing head does not have yet: its probability and all its
gradients are 0. Finite, since an infinite one would make 0 times infinity of them."""


def mask_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Set the logits, shape (batch, classes), of all but some labels to `CLOSED`."""
    closed = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    closed[labels] = False
    return logits.masked_fill(closed, CLOSED)


class GrowingHead(nn.Module):
    """A layer from features to logits, some of which may be closed."""

    closed: Tensor | None = None
    """Which logits are, bool, shape (classes,); None for none."""

    def hide(self, logits: Tensor) -> Tensor:
        """Set the logits, shape (batch, classes), of closed classes to `CLOSED`."""
        return (
            logits if self.closed is None else logits.masked_fill(self.closed, CLOSED)
        )


class Head(GrowingHead, nn.Linear):
    """A linear layer from features to logits."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.hide(super().forward(x))


class Network(nn.Module):
    """Copies of a body and of one head: what answers for a task, apart from the rest.

    Nothing of it has a gradient.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        """Copy both as they are now."""
        super().__init__()
        self.body, self.head = copy.deepcopy(body), copy.deepcopy(head)
        self.eval().requires_grad_(False)

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class MultiHeadModel(nn.Module):
    """A network whose parameters say by name who owns them.

    ``body.*`` is shared between the clients. ``heads.N.*`` belongs to task N and
    stays private, unless there is a single head, which is shared as well.

    Attributes:
        body: maps ``(batch, *input_shape)`` to (batch, features).
        heads: `GrowingHead` modules, one per task or exactly one; `Head`, unless the
            algorithm has others (`ClientLearner.replace_heads`).
        input_shape: shape of one input, such as (3, 32, 32); (-1,) for text.
        single_head: one head serves every task.
        smallest_batch: fewest inputs that the body takes in training.
        normalisation: of the pixels of images that it takes.
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
    ) -> None:
        super().__init__()
        self.body = body
        self.input_shape = input_shape
        self.single_head = single_head
        self.smallest_batch = smallest_batch
        self.features, self.classes = features, classes
        count = 1 if single_head else tasks
        self.heads = nn.ModuleList(Head(features, classes) for _ in range(count))

    def reset(self, initial: Self) -> bool:
        """Become what an initial network is: its values, modes, flags, closed logits.

        False where this one was rebuilt: a module or a tensor is of another kind.
        """
        if _form(self) != _form(initial):
            return False
        with torch.no_grad():
            for own, first in zip(_tensors(self), _tensors(initial), strict=True):
                own.requires_grad_(first.requires_grad)
                own.grad = None
                if own is not first:
                    own.copy_(first)
        for module, known in zip(self.modules(), initial.modules(), strict=True):
            module.training = known.training
            if isinstance(module, GrowingHead):
                module.closed = cast(GrowingHead, known).closed
        return True

    def body_of(self, kind: type[Body], expected: str) -> Body:
        """Refuse a body of another kind than a method trains; ``expected`` says why."""
        if not isinstance(self.body, kind):
            raise config_error("model.name", type(self.body).__name__, expected)
        return self.body

    def head_index(self, task: int) -> int:
        """Find the index in ``heads`` that answers for ``task``."""
        return 0 if self.single_head else task

    def restrict_head(self, labels: Sequence[int]) -> None:
        """Open only some classes of the single head, by their indices.

        The rows of the others have no gradient and stay as they are: a head to which
        rows are added as classes come, or a softmax restricted to a client's labels.
        """
        head = cast(GrowingHead, self.heads[0])
        device = next(head.parameters()).device
        closed = torch.ones(self.classes, dtype=torch.bool, device=device)
        closed[list(labels)] = False
        head.closed = closed

    def shared_names(self) -> tuple[str, ...]:
        """List the parameters and buffers that clients share.

        Frozen parameters are not among them: they are the same everywhere. A parameter
        that has several names, as tied weights have, goes by its first.
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
        """List the private parameters that answer for ``task``."""
        if self.single_head:
            return ()
        return (f"heads.{task}.weight", f"heads.{task}.bias")

    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs before any training, shape (batch, D), where the body can."""
        known = getattr(self.body, "embed", None)
        if known is None:
            raise ContractError(f"{type(self.body).__name__} embeds no inputs")
        found: Tensor = known(x)
        return found

    def frozen_features(self, x: Tensor) -> Tensor:
        """Bring inputs as far as frozen parts of the body do.

        `forward` takes the result in place of ``x``; it does not change in training. Of
        a body without frozen parts in front it is ``x`` itself.
        """
        known = getattr(self.body, "frozen_features", None)
        found: Tensor = x if known is None else known(x)
        return found

    def network(self, task: int) -> Network:
        """Copy what answers for ``task``, with the weights that it has now."""
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
