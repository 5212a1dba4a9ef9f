"""Frozen transformers with prompts in their attention, which depend on the input.

The prompts are those of CODA-Prompt: Smith et al., CVPR 2023,
https://arxiv.org/abs/2211.13218, section 4. They act by prefix tuning: Li and Liang,
ACL 2021, https://arxiv.org/abs/2101.00190.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.encoder import KEYS, VALUES, Hidden, Transformer, token_mean
from fcl_flower.models.registry import PromptParams

_CHUNK = 64
_TINY: Final = 1e-24
"""The least squared length of a divisor, so that no query divides by 0."""


class Components(NamedTuple):
    """The M prompt components of one block."""

    keys: Tensor
    """The keys K, shape (M, D)."""
    attention: Tensor
    """The attention vectors A, shape (M, D)."""
    prompts: Tensor
    """The prompt components P, shape (M, prompt length, D)."""


class PromptPool(nn.Module):
    """The components of one block, from which a query makes its prompt.

    The trained components start as orthonormal rows; a row of P has all its numbers.

    Attributes:
        keys, attention, prompts: trained `Components`.
        older: frozen components that stand in front of the trained ones, or None.
    """

    def __init__(self, count: int, length: int, width: int) -> None:
        super().__init__()
        self.older: Components | None = None
        rows = [nn.init.orthogonal_(torch.empty(count, width)) for _ in range(2)]
        flat = nn.init.orthogonal_(torch.empty(count, length * width))
        self.keys, self.attention = (nn.Parameter(row) for row in rows)
        self.prompts = nn.Parameter(flat.view(count, length, width))

    def components(self) -> Components:
        """Collect the older and the trained components, in this order."""
        trained = Components(self.keys, self.attention, self.prompts)
        if self.older is None:
            return trained
        return Components(*map(torch.cat, zip(self.older, trained, strict=True)))

    def join(self) -> None:
        """Join the older and the trained components, and freeze all of them."""
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
        keys, attention, prompts = self.components()
        key = normalize(keys, dim=1)
        length = query.square() @ attention.square().T  # |q * A_m|^2
        similar = (query @ (attention * key).T) * length.clamp_min(_TINY).rsqrt()
        return torch.einsum("bm,mld->bld", similar, prompts)

    def orthogonality(self) -> Tensor:
        """Sum ``mean((T T^T - I)^2)`` over T = K, A and flattened P (equation 8).

        The released code has this mean; the equation has a sum in its place.
        """
        total = torch.zeros((), device=self.keys.device)
        for rows in self.components():
            flat = rows.flatten(1)
            unit = torch.eye(len(flat), device=flat.device)
            total = total + (flat @ flat.T - unit).square().mean()
        return total


class Prefix:
    """A forward hook that replaces the first tokens of a linear layer's output."""

    tokens: Tensor | None = None
    """The tokens, shape (batch, count, outputs); None replaces nothing."""

    def __call__(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Return a layer's output with the first tokens replaced."""
        if self.tokens is None:
            return output
        tokens = self.tokens.to(output.dtype)
        return torch.cat([tokens, output[:, tokens.shape[1] :]], 1)


class PromptedTransformer(Transformer):
    """A frozen transformer with prefix tuning in its first blocks.

    The query q is the encoder's output for an input without any prompt: the class token
    of an image, or the mean over the tokens of a text. The first half of a block's
    prompt stands in front of the keys of its attention, the second half in front of the
    values. Both halves enter behind the projections, as in the released code; in the
    paper they enter before them.
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
            (self._attach(block, KEYS, params), self._attach(block, VALUES, params))
            for block in self.blocks[:count]
        ]

    @property
    def prompt_pools(self) -> list[PromptPool]:
        """The prompt pools in the order of their blocks."""
        return cast(list[PromptPool], list(self.pools))

    @contextmanager
    def after(self, older: Sequence[Mapping[str, Tensor]]) -> Iterator[None]:
        """Let the components of earlier tasks take part within the context.

        Args:
            older: tensors of the pools of each task, in order, by their names in this
                module, such as ``pools.0.keys``.
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
        """Compute the query q, shape (batch, D), from the input of the first block."""
        last = self.run(entered, 0, len(self.blocks))
        values = self.normalized(last)
        return token_mean(values, last.mask) if self.text else values[:, 0]

    @override
    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the query and the input of the first block, which are fixed.

        Returns:
            shape (N, 1 + tokens, D + 1): the query and a 0 as the first token, and then
            the tokens of `Transformer.frozen_features`.
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
        """Embed inputs by the encoder without prompts, shape (N, D)."""
        if not len(x):
            return torch.zeros(0, self.features, device=x.device)
        parts = (self.enter(x[at : at + _CHUNK]) for at in range(0, len(x), _CHUNK))
        return torch.cat([self.pool(self.run(p, 0, len(self.blocks))) for p in parts])

    def _prompted(self, hidden: Hidden, number: int, prompt: Tensor) -> Hidden:
        """Run one block with a prompt, (batch, prompt length, D), in its attention.

        Tokens of zeros make room for the prompt, which becomes their keys and values.
        Their outputs are cut off. All other operations of a block see one token at a
        time.
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
            output = self.run(roomy, number, number + 1)
        finally:
            for prefix in prefixes:
                prefix.tokens = None
        return Hidden(output.values[:, half:], hidden.mask)

    def _attach(
        self, block: nn.Module, names: tuple[str, ...], params: PromptParams
    ) -> Prefix:
        layers = [
            module
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear) and name.split(".")[-1] in names
        ]
        if len(layers) != 1 or layers[0].out_features != self._width:
            expected = (
                "one whose blocks have one linear layer of the encoder's width called "
                f"{' or '.join(names)}, in front of which a prompt stands"
            )
            raise config_error("encoder", params.encoder, expected)
        prefix = Prefix()
        layers[0].register_forward_hook(prefix)
        return prefix
