"""A frozen transformer with Enhancers: small modules that are trained instead.

Liu et al., "FedET", IJCAI 2023, section 3.1, after Houlsby et al., ICML 2019.

A frozen transformer whose linear layers learn a change of low rank (LoRA).

Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685, section 4.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.models.registry import LoraParams

_AFTER_ATTENTION = ("attention.output.dense", "attention.out_lin", "attention.o_proj")
_AFTER_FEED_FORWARD = ("output.dense", "ffn.lin2", "mlp.fc2")


class Enhancer(nn.Module):
    """A bottleneck beside the identity: ``x + W_up f(W_down x + b) + c``.

    It has 2 n m + n + m parameters (equation 9) and starts as the identity, since W_up
    and c start as zeros. f is GELU.

    Attributes:
        idle: what it stands behind is left as it is.
    """

    def __init__(self, width: int, bottleneck: int) -> None:
        """Make one from n = ``width`` to m = ``bottleneck`` and back."""
        super().__init__()
        self.idle = False
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Enhance ``x``, shape (..., n)."""
        delta: Tensor = self.up(nn.functional.gelu(self.down(x)))
        return x + delta

    def behind(
        self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Enhance the output of the module that it stands behind (a forward hook)."""
        return output if self.idle else cast(Tensor, self(output))


class EnhancedTransformer(Transformer):
    """A transformer whose own parameters are frozen; Enhancers are all that learns.

    An Enhancer acts on what a block's attention, or its feed-forward network, returns,
    before it is added to what entered. The encoder stays in evaluation mode, so that
    what comes before the first Enhancer is a fixed function of the input.
    """

    def __init__(self, params: EncoderParams) -> None:
        """Load an encoder, freeze it and add fresh Enhancers.

        The output of the blocks before the first Enhancer is computed once a sample.

        Raises:
            ConfigError: there is no such encoder, or it is built unlike those known
                here, or has fewer blocks.
        """
        super().__init__(params)
        self.freeze("model.num_blocks", params.num_blocks, params.encoder)
        wanted = {
            "both": (_AFTER_ATTENTION, _AFTER_FEED_FORWARD),
            "attention": (_AFTER_ATTENTION,),
            "feed-forward": (_AFTER_FEED_FORWARD,),
        }[params.placement]
        layers = [
            _projection(block, names, params.encoder)
            for block in self.blocks[self.first :]
            for names in wanted
        ]
        enhancers = [
            Enhancer(layer.out_features, params.bottleneck) for layer in layers
        ]
        self.enhancers = nn.ModuleList(enhancers)
        for layer, enhancer in zip(layers, enhancers, strict=True):
            # A hook leaves the encoder's own names as they are, and short ones to us.
            layer.register_forward_hook(enhancer.behind)

    @override
    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs by the encoder alone, shape (N, D), without Enhancers."""
        enhancers = cast(list[Enhancer], list(self.enhancers))
        for enhancer in enhancers:
            enhancer.idle = True
        try:
            return super().embed(x)
        finally:
            for enhancer in enhancers:
                enhancer.idle = False


def _projection(block: nn.Module, names: tuple[str, ...], encoder: str) -> nn.Linear:
    """Find the linear layer of a block behind which an Enhancer acts."""
    for name, module in block.named_modules():
        if name in names and isinstance(module, nn.Linear):
            return module
    raise config_error(
        "encoder",
        encoder,
        f"one whose blocks have a linear layer called {' or '.join(names)}, behind "
        "which an Enhancer acts",
    )


_QUERY_AND_VALUE = ("query", "value", "q_lin", "v_lin", "q_proj", "v_proj")


class Lora(nn.Module):
    """A change of a linear layer's weights of low rank: ``dW = B A``.

    It is 0 at the start, since B is. Nothing scales it.

    Attributes:
        down: A, shape (rank, inputs), uniform within one over the root of the inputs.
        up: B, shape (outputs, rank).
        merged: matrices (rank, inputs) and (outputs, rank) of any rank that act in
            place of A and B, which keep their values; None for none.
        idle: the layer is left as it is.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        """Make the change of a layer."""
        super().__init__()
        self.idle = False
        self.merged: tuple[Tensor, Tensor] | None = None
        width = inputs**-0.5
        self.down = nn.Parameter(torch.empty(rank, inputs).uniform_(-width, width))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    @property
    def weight(self) -> Tensor:
        """The change dW itself, shape (outputs, inputs)."""
        down, up = self.merged or (self.down, self.up)
        return up @ down

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Compute ``dW x``, shape (..., outputs), of ``x`` (..., inputs)."""
        down, up = self.merged or (self.down, self.up)
        return nn.functional.linear(nn.functional.linear(x, down), up)

    def behind(
        self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Add the change to the output of the layer (a forward hook)."""
        return output if self.idle else output + cast(Tensor, self(inputs[0]))


class LayerInputs:
    """What has entered the changed layers while it was looked at.

    Attributes:
        tokens: how many; all layers have seen the same.
        squares: float64, shape (inputs,) for each layer: sums over these tokens of the
            squared inputs, the diagonal of ``X^T X``.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        """Look at nothing yet."""
        self.tokens = 0
        self.squares = [
            torch.zeros(layer.in_features, dtype=torch.float64) for layer in layers
        ]
        self._kept: Tensor | None = None

    def at_block(self, block: nn.Module, inputs: tuple[Tensor | None, ...]) -> None:
        """Note which of a block's tokens are none: those that attention leaves out."""
        mask = inputs[1]
        self._kept = None if mask is None else (mask[:, 0, 0] == 0)

    def at_layer(self, place: int, inputs: tuple[Tensor, ...]) -> None:
        """Add what enters a layer, shape (batch, tokens, inputs)."""
        rows = inputs[0].detach().float()
        rows = rows.flatten(0, -2) if self._kept is None else rows[self._kept]
        self.squares[place] += rows.square().sum(0).double().cpu()
        self.tokens += len(rows) if place == 0 else 0


class LoraTransformer(Transformer):
    """A transformer whose own parameters are frozen; low-rank changes are learned."""

    def __init__(self, params: LoraParams) -> None:
        """Load an encoder, freeze it and add changes that are still 0.

        The output of the blocks before the first changed layer is computed once a
        sample.

        Raises:
            ConfigError: there is no such encoder, or it is built unlike those known
                here, or has fewer blocks.
        """
        super().__init__(params)
        self.freeze("model.num_blocks", params.num_blocks, params.encoder)
        self._layers = [
            module
            for block in self.blocks[self.first :]
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear)
            and (params.layers == "all" or name.endswith(_QUERY_AND_VALUE))
        ]
        if not self._layers:
            raise config_error(
                "encoder",
                params.encoder,
                "one whose blocks have linear layers"
                + " of queries and values" * (params.layers == "attention"),
            )
        self.adapters = nn.ModuleList(
            Lora(layer.in_features, layer.out_features, params.rank)
            for layer in self._layers
        )
        for layer, adapter in zip(self._layers, self.changes, strict=True):
            # A hook leaves the encoder's own names as they are, and short ones to us.
            layer.register_forward_hook(adapter.behind)

    @property
    def changes(self) -> list[Lora]:
        """The changes, in the order of their layers."""
        return cast(list[Lora], list(self.adapters))

    @override
    def encoder_state(self) -> dict[str, Tensor]:
        """Merge the changes into the encoder's weights."""
        state = super().encoder_state()
        names = {module: name for name, module in self.encoder.named_modules()}
        for layer, change in zip(self._layers, self.changes, strict=True):
            state[f"{names[layer]}.weight"] = layer.weight + change.weight
        return state

    @contextmanager
    def observed(self) -> Iterator[LayerInputs]:
        """Look at what enters the changed layers as long as the context is open."""
        found = LayerInputs(self._layers)
        hooks = [
            block.register_forward_pre_hook(found.at_block)
            for block in self.blocks[self.first :]
        ]
        for place, layer in enumerate(self._layers):
            hooks.append(
                layer.register_forward_pre_hook(
                    lambda _, inputs, place=place: found.at_layer(place, inputs)
                )
            )
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    @override
    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs by the encoder alone, shape (N, D), without what was learned."""
        for adapter in self.changes:
            adapter.idle = True
        try:
            return super().embed(x)
        finally:
            for adapter in self.changes:
                adapter.idle = False
