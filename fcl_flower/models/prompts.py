"""Frozen transformers whose attention is shown prompts that each input chooses.

CODA-Prompt: Smith et al., CVPR 2023, https://arxiv.org/abs/2211.13218, section 4.
Prefix tuning: Li and Liang, ACL 2021, https://arxiv.org/abs/2101.00190.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.encoder import Hidden, Transformer, token_mean
from fcl_flower.models.registry import PromptParams

_KEYS = ("key", "k_lin", "k_proj")
_VALUES = ("value", "v_lin", "v_proj")
_CHUNK = 64
_TINY: Final = 1e-24
"""Least squared length that is divided by, so that no query divides by 0."""


class Components(NamedTuple):
    """Components of one block: M of them."""

    keys: Tensor
    """K, shape (M, D)."""
    attention: Tensor
    """A, shape (M, D)."""
    prompts: Tensor
    """P, shape (M, prompt length, D)."""


class PromptPool(nn.Module):
    """The components of one block, of which a query makes its prompt.

    Those that are trained start as orthonormal rows, P as rows of all its numbers.

    Attributes:
        keys, attention, prompts: see `Components`.
        older: components that take part besides, in front, and are not trained.
    """

    def __init__(self, count: int, length: int, width: int) -> None:
        super().__init__()
        self.older: Components | None = None
        rows = [nn.init.orthogonal_(torch.empty(count, width)) for _ in range(2)]
        flat = nn.init.orthogonal_(torch.empty(count, length * width))
        self.keys, self.attention = (nn.Parameter(row) for row in rows)
        self.prompts = nn.Parameter(flat.view(count, length, width))

    def components(self) -> Components:
        """Collect all that take part: ``older`` first."""
        own = Components(self.keys, self.attention, self.prompts)
        if self.older is None:
            return own
        return Components(*map(torch.cat, zip(self.older, own, strict=True)))

    def join(self) -> None:
        """Make ``older`` its own; nothing of it is trained any more."""
        self.keys, self.attention, self.prompts = (
            nn.Parameter(part.detach(), requires_grad=False)
            for part in self.components()
        )
        self.older = None

    @override
    def forward(self, query: Tensor) -> Tensor:
        """Compute ``p = sum_m cos(q * A_m, K_m) P_m`` (equations 3 to 5).

        Args:
            query: q, shape (batch, D); ``*`` is elementwise.

        Returns:
            shape (batch, prompt length, D).
        """
        found = self.components()
        key = normalize(found.keys, dim=1)
        length = query.square() @ found.attention.square().T  # |q * A_m|^2
        similar = (query @ (found.attention * key).T) * length.clamp_min(_TINY).rsqrt()
        return torch.einsum("bm,mld->bld", similar, found.prompts)

    def orthogonality(self) -> Tensor:
        """Add up ``mean((T T^T - I)^2)`` of K, A and flattened P (equation 8).

        The mean is that of the released code; the equation has the sum.
        """
        total = torch.zeros((), device=self.keys.device)
        for rows in self.components():
            flat = rows.flatten(1)
            unit = torch.eye(len(flat), device=flat.device)
            total = total + (flat @ flat.T - unit).square().mean()
        return total


class Prefix:
    """Tokens that a linear layer returns in the place of its first ones."""

    tokens: Tensor | None = None
    """Shape (batch, count, outputs); None for none."""

    def __call__(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Act behind a layer (a forward hook)."""
        if self.tokens is None:
            return output
        found = self.tokens.to(output.dtype)
        return torch.cat([found, output[:, found.shape[1] :]], 1)


class PromptedTransformer(Transformer):
    """A frozen transformer with prefix tuning in its first blocks.

    The query q is what the encoder makes of an input without any prompt: the class
    token of an image, the mean over the tokens of a text. The first half of a block's
    prompt stands in front of the keys of its attention, the second half in front of the
    values. Both are put there behind the projections, as in the released code; the
    paper has them before.
    """

    def __init__(self, params: PromptParams) -> None:
        super().__init__(params)
        self.freeze("model.num_blocks", 0, params.encoder)
        if params.components > self._width:
            expected = (
                f"at most {self._width}, the width of {params.encoder!r}: more rows "
                "are not orthogonal"
            )
            raise config_error("model.components", params.components, expected)
        count = min(params.num_blocks, len(self.blocks))
        self.pools = nn.ModuleList(
            PromptPool(params.components, params.prompt_length, self._width)
            for _ in range(count)
        )
        self._prefixes = [
            (self._attach(block, _KEYS, params), self._attach(block, _VALUES, params))
            for block in self.blocks[:count]
        ]

    @property
    def prompt_pools(self) -> list[PromptPool]:
        """The pools, in the order of their blocks."""
        return cast(list[PromptPool], list(self.pools))

    @contextmanager
    def after(self, older: Sequence[Mapping[str, Tensor]]) -> Iterator[None]:
        """Let components of earlier tasks take part as long as the context is open.

        Args:
            older: of each task, in order, the tensors of the pools by their names
                here, such as ``pools.0.keys``.
        """
        for place, pool in enumerate(self.prompt_pools if older else ()):
            pool.older = Components(
                *(
                    torch.cat([task[f"pools.{place}.{kind}"] for task in older])
                    for kind in Components._fields
                )
            )
        try:
            yield
        finally:
            for pool in self.prompt_pools:
                pool.older = None

    @override
    def encode(self, x: Tensor) -> Tensor:
        if x.is_floating_point() and x.ndim == 3:  # frozen features
            query, hidden = x[:, 0, :-1], self.hidden(x[:, 1:])
        else:
            hidden = self.enter(x)
            query = self.query(hidden)
        for number, pool in enumerate(self.prompt_pools):
            hidden = self._prompted(hidden, number, pool(query))
        return self.pool(self.run(hidden, len(self.pools), len(self.blocks)))

    @torch.no_grad()
    def query(self, entered: Hidden) -> Tensor:
        """Compute q, shape (batch, D), of the input of the first block."""
        last = self.run(entered, 0, len(self.blocks))
        values = self.normalized(last)
        return token_mean(values, last.mask) if self.text else values[:, 0]

    @override
    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the query and the input of the first block once.

        Returns:
            shape (N, 1 + tokens, D + 1): q and a 0, and behind them what a frozen
            `Transformer` returns.
        """
        entered = super().frozen_features(x)
        if not len(x):
            return torch.zeros(0, 1, self._width + 1, device=x.device)
        queries = [
            self.query(self.hidden(entered[at : at + _CHUNK]))
            for at in range(0, len(x), _CHUNK)
        ]
        return torch.cat([pad(torch.cat(queries), (0, 1))[:, None], entered], 1)

    @override
    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs by the encoder alone, shape (N, D), without prompts."""
        if not len(x):
            return torch.zeros(0, self.features, device=x.device)
        parts = (self.enter(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK))
        return torch.cat([self.pool(self.run(p, 0, len(self.blocks))) for p in parts])

    def _prompted(self, hidden: Hidden, number: int, prompt: Tensor) -> Hidden:
        """Run one block whose attention sees a prompt, (batch, prompt length, D).

        Tokens of zeros make room for it. Their keys and values are the prompt, and
        what the block makes of themselves is cut off; all else in a block looks at one
        token at a time.
        """
        half = prompt.shape[1] // 2
        roomy = Hidden(
            pad(hidden.values, (0, 0, half, 0)), pad(hidden.mask, (half, 0), value=1.0)
        )
        prefixes = self._prefixes[number]
        parts = prompt[:, :half], prompt[:, half:]
        for prefix, tokens in zip(prefixes, parts, strict=True):
            prefix.tokens = tokens
        try:
            found = self.run(roomy, number, number + 1)
        finally:
            for prefix in prefixes:
                prefix.tokens = None
        return Hidden(found.values[:, half:], hidden.mask)

    def _attach(
        self, block: nn.Module, names: tuple[str, ...], params: PromptParams
    ) -> Prefix:
        found = [
            module
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear) and name.split(".")[-1] in names
        ]
        if len(found) != 1 or found[0].out_features != self._width:
            expected = (
                "one whose blocks have one linear layer of the encoder's width called "
                f"{' or '.join(names)}, in front of which a prompt stands"
            )
            raise config_error("encoder", params.encoder, expected)
        prefix = Prefix()
        found[0].register_forward_hook(prefix)
        return prefix
