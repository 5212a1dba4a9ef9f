"""Frozen transformers of which small modules learn instead: Enhancers, or LoRA.

Enhancers: Liu et al., "FedET", IJCAI 2023, section 3.1, after Houlsby et al., ICML
2019. LoRA: Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685, section 4.1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear
from typing_extensions import override

from fcl_flower.core.errors import config_error
from fcl_flower.models.encoder import Transformer
from fcl_flower.models.pretrained import EncoderParams
from fcl_flower.models.registry import LoraParams

_AFTER_ATTENTION = (
    *("attention.output.dense", "attention.out_lin", "attention.o_proj"),
    "attn.proj",
)
_AFTER_FEED_FORWARD = ("output.dense", "ffn.lin2", "mlp.fc2")
_PLACES = {
    "both": (_AFTER_ATTENTION, _AFTER_FEED_FORWARD),
    "attention": (_AFTER_ATTENTION,),
    "feed-forward": (_AFTER_FEED_FORWARD,),
}
_QUERIES = ("query", "q_lin", "q_proj")
_KEYS = ("key", "k_lin", "k_proj")
_VALUES = ("value", "v_lin", "v_proj")
_LAYERS = {
    "all": ("", ("",)),
    "attention": (" of queries and values", (*_QUERIES, *_VALUES, "qkv")),
    "keys-values": (" of keys and values", _KEYS + _VALUES),
}
"""By ``model.layers`` what they are, and how their names end."""


class Adapter(nn.Module):
    """What learns behind a linear layer that stays as it is.

    Attributes:
        idle: the layer acts alone.
    """

    idle = False

    def adapt(self, x: Tensor, output: Tensor) -> Tensor:
        """Compute what takes the place of the layer's output for ``x``."""
        raise NotImplementedError

    def behind(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Act behind a layer (a forward hook)."""
        return output if self.idle else self.adapt(inputs[0], output)


class AdaptedTransformer(Transformer):
    """A transformer whose own parameters are frozen; adapters are all that learns.

    The encoder stays in evaluation mode, so that what comes before the first adapter is
    a fixed function of the input, which is computed once a sample.
    """

    def __init__(self, params: EncoderParams | LoraParams) -> None:
        super().__init__(params)
        self.freeze("model.num_blocks", params.num_blocks, params.encoder)

    def attach(self, layers: Sequence[nn.Linear], adapters: Sequence[Adapter]) -> None:
        """Let adapters act behind layers of the encoder."""
        for layer, adapter in zip(layers, adapters, strict=True):
            # A hook leaves the encoder's own names as they are, and short ones to us.
            layer.register_forward_hook(adapter.behind)

    @override
    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs by the encoder alone, shape (N, D), without what was learned."""
        adapters = [part for part in self.modules() if isinstance(part, Adapter)]
        for adapter in adapters:
            adapter.idle = True
        try:
            return super().embed(x)
        finally:
            for adapter in adapters:
                adapter.idle = False


# ---- Enhancers


class Enhancer(Adapter):
    """A bottleneck beside the identity: ``x + W_up f(W_down x + b) + c``.

    It has 2 n m + n + m parameters (equation 9) and starts as the identity, since W_up
    and c start as zeros. f is GELU, n the width and m that of the bottleneck.
    """

    def __init__(self, width: int, bottleneck: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        delta: Tensor = self.up(gelu(self.down(x)))
        return x + delta

    @override
    def adapt(self, x: Tensor, output: Tensor) -> Tensor:
        return cast(Tensor, self(output))


class EnhancedTransformer(AdaptedTransformer):
    """A frozen transformer with Enhancers.

    An Enhancer acts on what a block's attention, or its feed-forward network, returns,
    before it is added to what entered.
    """

    def __init__(self, params: EncoderParams) -> None:
        super().__init__(params)
        layers = []
        for block in self.blocks[self.first :]:
            parts = dict(block.named_modules())
            for names in _PLACES[params.placement]:
                found = [parts[name] for name in names if name in parts]
                if not found or not isinstance(found[0], nn.Linear):
                    raise config_error(
                        "encoder",
                        params.encoder,
                        "one whose blocks have a linear layer called "
                        f"{' or '.join(names)}, behind which an Enhancer acts",
                    )
                layers.append(found[0])
        enhancers = [
            Enhancer(layer.out_features, params.bottleneck) for layer in layers
        ]
        self.enhancers = nn.ModuleList(enhancers)
        self.attach(layers, enhancers)


# ---- LoRA


class Lora(Adapter):
    """A change of a linear layer's weights of low rank: ``dW = B A``.

    It is 0 at the start, since B is. Nothing scales it.

    Attributes:
        down: A, shape (rank, inputs), uniform within one over the root of the inputs.
        up: B, shape (outputs, rank).
        fixed: matrices that act one after the other on what enters, beside ``B A``: one
            (outputs, inputs), or (k, inputs) and (outputs, k) of any k; () for none.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.fixed: tuple[Tensor, ...] = ()
        width = inputs**-0.5
        self.down = nn.Parameter(torch.empty(rank, inputs).uniform_(-width, width))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    @property
    def weight(self) -> Tensor:
        """The change dW itself, shape (outputs, inputs)."""
        change = self.up @ self.down
        if not self.fixed:
            return change
        return change + reduce(lambda found, matrix: matrix @ found, self.fixed)

    @override
    def forward(self, x: Tensor) -> Tensor:
        change = linear(linear(x, self.down), self.up)
        if not self.fixed:
            return change
        return change + reduce(linear, self.fixed, x)

    @override
    def adapt(self, x: Tensor, output: Tensor) -> Tensor:
        return output + cast(Tensor, self(x))


def squares(rows: Tensor) -> Tensor:
    """Sum the squares of inputs, shape (tokens, inputs): the diagonal of `gram`."""
    return rows.square().sum(0)


def gram(rows: Tensor) -> Tensor:
    """Compute ``X^T X`` of inputs X, shape (tokens, inputs)."""
    return rows.T @ rows


class LayerInputs:
    """What has entered some layers while it was looked at.

    Attributes:
        tokens: how many; all layers have seen the same.
        sums: float64, for each layer what `squares` or `gram` makes of all of them.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], product: Callable[[Tensor], Tensor]
    ) -> None:
        self.tokens = 0
        self.sums = [
            product(torch.zeros(0, layer.in_features)).double() for layer in layers
        ]
        self._product = product
        self._kept: Tensor | None = None

    def at_block(self, block: nn.Module, inputs: tuple[Tensor | None, ...]) -> None:
        """Note which of a block's tokens are none: those that attention leaves out."""
        mask = inputs[1] if inputs[1:] else None  # blocks of images take none
        self._kept = None if mask is None else (mask[:, 0, 0] == 0)

    def at_layer(
        self, place: int, layer: nn.Module, inputs: tuple[Tensor, ...]
    ) -> None:
        """Add what enters a layer, shape (batch, tokens, inputs)."""
        rows = inputs[0].detach().float()
        rows = rows.flatten(0, -2) if self._kept is None else rows[self._kept]
        self.sums[place] += self._product(rows).double().cpu()
        self.tokens += len(rows) if place == 0 else 0


class LoraTransformer(AdaptedTransformer):
    """A frozen transformer whose linear layers learn a change of low rank."""

    def __init__(self, params: LoraParams) -> None:
        super().__init__(params)
        what, ends = _LAYERS[params.layers]
        self._layers = [
            module
            for block in self.blocks[self.first :]
            for name, module in block.named_modules()
            if isinstance(module, nn.Linear) and name.endswith(ends)
        ]
        if not self._layers:
            raise config_error(
                "encoder",
                params.encoder,
                f"one whose blocks have linear layers{what}",
            )
        self.adapters = nn.ModuleList(
            Lora(layer.in_features, layer.out_features, params.rank)
            for layer in self._layers
        )
        self.attach(self._layers, self.changes)

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

    def merge(self) -> None:
        """Add the changes to the encoder's own weights, and let them act no more."""
        for layer, change in zip(self._layers, self.changes, strict=True):
            weight = layer.weight + change.weight
            layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
            with torch.no_grad():
                change.up.zero_()
            change.fixed, change.idle = (), True

    @contextmanager
    def beside(self, fixed: Sequence[tuple[Tensor, ...]]) -> Iterator[None]:
        """Let fixed changes, one a layer, act as long as the context is open."""
        for change, matrices in zip(self.changes, fixed, strict=True):
            change.fixed = matrices
        try:
            yield
        finally:
            for change in self.changes:
                change.fixed = ()

    @contextmanager
    def observed(
        self, product: Callable[[Tensor], Tensor], step: int = 1
    ) -> Iterator[LayerInputs]:
        """Look at what enters the changed layers as long as the context is open.

        Args:
            product: `squares` or `gram`.
            step: of so many layers the first one is looked at.
        """
        layers = self._layers[::step]
        found = LayerInputs(layers, product)
        blocks = self.blocks[self.first :]
        hooks = [block.register_forward_pre_hook(found.at_block) for block in blocks]
        for place, layer in enumerate(layers):
            note = partial(found.at_layer, place)
            hooks.append(layer.register_forward_pre_hook(note))
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()
