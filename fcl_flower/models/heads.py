"""A shared body with one linear head per task, or one for all."""

from collections.abc import Sequence
from typing import Self, TypeVar, cast

import torch
from torch import nn
from typing_extensions import override

from fcl_flower.core.errors import ContractError, refuse

Body = TypeVar("Body", bound=nn.Module)

CLOSED = -1e9
"""Logit of a class that a growing head does not have yet: its probability and all its
gradients are 0. Finite, since an infinite one would make 0 times infinity of them."""


def mask_logits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return logits, shape (batch, classes), with `CLOSED` for all but some labels.

    Args:
        logits: shape (batch, classes).
        labels: those that are possible, int64, of any number and order.
    """
    closed = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    closed[labels] = False
    return logits.masked_fill(closed, CLOSED)


class GrowingHead(nn.Module):
    """A layer from features to logits, some of which may be closed.

    Attributes:
        closed: which logits are, bool, shape (classes,); None for none.
    """

    closed: torch.Tensor | None = None

    def hide(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, classes), with `CLOSED` where they are."""
        return (
            logits if self.closed is None else logits.masked_fill(self.closed, CLOSED)
        )


class Head(GrowingHead, nn.Linear):
    """A linear layer from features to logits."""

    @override
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, classes)."""
        return self.hide(super().forward(x))


class MultiHeadModel(nn.Module):
    """A network whose parameters say by name who owns them.

    ``body.*`` is shared between the clients. ``heads.N.*`` belongs to task N and
    stays private, unless there is a single head, which is shared as well.

    Attributes:
        body: maps ``(batch, *input_shape)`` to (batch, features).
        heads: `GrowingHead` modules, one per task or exactly one; `Head`, unless the
            algorithm has others (`ReplacesHeads`).
        input_shape: shape of one input, such as (3, 32, 32); (-1,) for text.
        single_head: one head serves every task.
        smallest_batch: fewest inputs that the body takes in training.
    """

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
        """Attach freshly initialised heads to ``body``.

        Args:
            body: maps ``(batch, *input_shape)`` to (batch, features).
            features: width of what the body returns.
            input_shape: shape of one input.
            tasks: number of tasks, at least 1.
            classes: logits per head: the classes of one task, or all labels of the
                scenario with a single head.
            single_head: one head serves every task.
            smallest_batch: fewest inputs that ``body`` takes in training.
        """
        super().__init__()
        self.body = body
        self.input_shape = input_shape
        self.single_head = single_head
        self.smallest_batch = smallest_batch
        self.features, self.classes = features, classes
        count = 1 if single_head else tasks
        self.heads = nn.ModuleList(Head(features, classes) for _ in range(count))
        self._mode: bool | None = None

    @override
    def train(self, mode: bool = True) -> Self:
        """Set the mode of all parts, which costs a walk over them: when it changes.

        That a fresh network says it is training tells nothing of its parts: an encoder
        may have been loaded for evaluation.
        """
        if self._mode is not mode:
            super().train(mode)
            self._mode = mode
        return self

    def body_of(self, kind: type[Body], expected: str) -> Body:
        """Return the body, for a method that trains networks of one kind alone.

        Args:
            kind: the class of the body.
            expected: the model's name, and why it has to be that.

        Raises:
            ConfigError: the body is of another kind.
        """
        if not isinstance(self.body, kind):
            raise refuse("model.name", type(self.body).__name__, expected)
        return self.body

    def head_index(self, task: int) -> int:
        """Return the index in ``heads`` that answers for ``task``."""
        return 0 if self.single_head else task

    def restrict_head(self, labels: Sequence[int]) -> None:
        """Let the single head know nothing but some of its classes.

        The rows of the others have no gradient and stay as they are: a head to which
        rows are added as classes come, or a softmax restricted to a client's labels.

        Args:
            labels: indices of the classes, of any number and order.
        """
        head = cast(GrowingHead, self.heads[0])
        device = next(head.parameters()).device
        closed = torch.ones(self.classes, dtype=torch.bool, device=device)
        closed[list(labels)] = False
        head.closed = closed

    def shared_names(self) -> tuple[str, ...]:
        """Return the names of the parameters and buffers that clients share.

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
        """Return the names of the private parameters that answer for ``task``."""
        if self.single_head:
            return ()
        return (f"heads.{task}.weight", f"heads.{task}.bias")

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is known of inputs before any training, shape (batch, D).

        Raises:
            ContractError: the body has no such thing; word vectors have.
        """
        known = getattr(self.body, "embed", None)
        if known is None:
            raise ContractError(f"{type(self.body).__name__} embeds no inputs")
        found: torch.Tensor = known(x)
        return found

    def frozen_features(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs as far as frozen parts of the body bring them.

        `forward` takes them in place of ``x`` and returns the same; they do not change
        in training. Of a body without frozen parts in front, ``x`` itself.
        """
        known = getattr(self.body, "frozen_features", None)
        found: torch.Tensor = x if known is None else known(x)
        return found

    @override
    def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:
        """Return logits, shape (batch, classes), of ``x`` ``(batch, *input_shape)``."""
        logits: torch.Tensor = self.heads[self.head_index(task)](self.body(x))
        return logits
