"""Frozen transformers with small modules that are trained: Enhancers, or LoRA.

Enhancers are those of Liu et al., "FedET", IJCAI 2023, section 3.1, after Houlsby et
al., ICML 2019. LoRA is by Hu et al., ICLR 2022, https://arxiv.org/abs/2106.09685,
section 4.1.
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
from fcl_flower.models.encoder import KEYS, VALUES, Hidden, Transformer
from fcl_flower.models.registry import EnhancedParams, LoraParams

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
_LAYERS = {
    "all": ("", ("",)),
    "attention": (" of queries and values", (*_QUERIES, *VALUES, "qkv")),
    "keys-values": (" of keys and values", KEYS + VALUES),
}
"""The layers' words in an error, and their names' endings, by ``model.layers``."""


class Adapter(nn.Module):
    """A trained module behind a frozen linear layer.

    Attributes:
        idle: whether the adapter is off, so that the layer acts alone.
    """

    idle = False

    def adapt(self, x: Tensor, output: Tensor) -> Tensor:
        """Compute the adapted output from a layer's input ``x`` and its output."""
        raise NotImplementedError

    def behind(
        self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Replace a layer's output by the adapted one, as a forward hook."""
        return output if self.idle else self.adapt(inputs[0], output)


class AdaptedTransformer(Transformer):
    """A transformer whose parameters are frozen, so that only adapters are trained.

    The encoder stays in evaluation mode. So the input of the first block with adapters
    is a fixed function of the sample, and is computed once.
    """

    def __init__(self, params: EnhancedParams | LoraParams) -> None:
        super().__init__(params)
        self.freeze("model.num_blocks", params.num_blocks, params.encoder)

    def attach(self, layers: Sequence[nn.Linear], adapters: Sequence[Adapter]) -> None:
        """Attach an adapter behind each of the encoder's ``layers``."""
        for layer, adapter in zip(layers, adapters, strict=True):
            # A hook keeps the encoder's names, and gives adapters short ones.
            layer.register_forward_hook(adapter.behind)

    @override
    def embed(self, x: Tensor) -> Tensor:
        """Embed inputs by the encoder without adapters, shape (N, D)."""
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
    """An Enhancer, a bottleneck beside the identity: ``x + W_up f(W_down x + b) + c``.

    It has 2 n m + n + m parameters (equation 9), where n is the width, m the
    bottleneck's width, and f is GELU. It starts as the identity, since W_up and c start
    as zeros.
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

    An Enhancer acts on the output of a block's attention, or of its feed-forward
    network, before the shortcut is added.
    """

    def __init__(self, params: EnhancedParams) -> None:
        super().__init__(params)
        layers = []
        for block in self.blocks[self.first :]:
            parts = dict(block.named_modules())
            for names in _PLACES[params.placement]:
                candidates = [parts[name] for name in names if name in parts]
                if not candidates or not isinstance(candidates[0], nn.Linear):
                    raise config_error(
                        "encoder",
                        params.encoder,
                        "one whose blocks have a linear layer called "
                        f"{' or '.join(names)}, behind which an Enhancer acts",
                    )
                layers.append(candidates[0])
        enhancers = [
            Enhancer(layer.out_features, params.bottleneck) for layer in layers
        ]
        self.enhancers = nn.ModuleList(enhancers)
        self.attach(layers, enhancers)


# ---- LoRA


class Lora(Adapter):
    """A low-rank change of a linear layer's weights: ``dW = B A``, without a scale.

    The change starts as 0, since B does.

    Attributes:
        down: A, shape (rank, inputs), drawn uniformly within ``inputs ** -0.5`` of 0.
        up: B, shape (outputs, rank), 0 at the start.
        fixed: matrices whose product is added to ``B A``: one (outputs, inputs), or
            first (k, inputs) and then (outputs, k) of any k; () for none.
        gates: factors of the k numbers between these two, for each input of a batch,
            shape (batch, k); None for factors of 1.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.fixed: tuple[Tensor, ...] = ()
        self.gates: Tensor | None = None
        width = inputs**-0.5
        self.down = nn.Parameter(torch.empty(rank, inputs).uniform_(-width, width))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    @property
    def weight(self) -> Tensor:
        """The change dW, shape (outputs, inputs)."""
        if self.gates is not None:
            expected = "another, as each input has a change of its own"
            raise config_error("format", "weights", expected)
        change = self.up @ self.down
        if not self.fixed:
            return change
        return change + reduce(lambda product, matrix: matrix @ product, self.fixed)

    @override
    def forward(self, x: Tensor) -> Tensor:
        change = linear(linear(x, self.down), self.up)
        if not self.fixed:
            return change
        first, *rest = self.fixed
        inner = linear(x, first)
        if self.gates is not None:
            inner = inner * self.gates[:, None]
        return change + reduce(linear, rest, inner)

    @override
    def adapt(self, x: Tensor, output: Tensor) -> Tensor:
        return output + cast(Tensor, self(x))


def squares(rows: Tensor) -> Tensor:
    """Sum the squares of inputs (tokens, inputs); the result is `gram`'s diagonal."""
    return rows.square().sum(0)


def gram(rows: Tensor) -> Tensor:
    """Compute ``X^T X`` of inputs X, shape (tokens, inputs)."""
    return rows.T @ rows


class LayerInputs:
    """A record of the inputs of some layers.

    Attributes:
        tokens: number of recorded tokens, which is the same for all layers.
        sums: sum of `squares` or `gram` over all inputs of each layer, float64.
        kept: which tokens of a batch count, bool, shape (batch, tokens); None for all.
    """

    def __init__(
        self, layers: Sequence[nn.Linear], product: Callable[[Tensor], Tensor]
    ) -> None:
        self.tokens = 0
        self.sums = [
            product(torch.zeros(0, layer.in_features)).double() for layer in layers
        ]
        self.kept: Tensor | None = None
        self._product = product

    def at_layer(
        self, place: int, layer: nn.Module, inputs: tuple[Tensor, ...]
    ) -> None:
        """Add a layer's inputs, shape (batch, tokens, inputs), to its sum."""
        rows = inputs[0].detach().float()
        rows = rows.flatten(0, -2) if self.kept is None else rows[self.kept]
        self.sums[place] += self._product(rows).double().cpu()
        self.tokens += len(rows) if place == 0 else 0


class LoraTransformer(AdaptedTransformer):
    """A frozen transformer whose linear layers learn low-rank changes."""

    def __init__(self, params: LoraParams) -> None:
        super().__init__(params)
        description, ends = _LAYERS[params.layers]
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
                f"one whose blocks have linear layers{description}",
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
        """Collect the encoder's weights with the changes added."""
        state = super().encoder_state()
        names = {module: name for name, module in self.encoder.named_modules()}
        for layer, change in zip(self._layers, self.changes, strict=True):
            state[f"{names[layer]}.weight"] = layer.weight + change.weight
        return state

    def merge(self) -> None:
        """Add the changes to the encoder's own weights, and switch them off."""
        for layer, change in zip(self._layers, self.changes, strict=True):
            weight = layer.weight + change.weight
            layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
            with torch.no_grad():
                change.up.zero_()
            change.fixed, change.idle = (), True

    @contextmanager
    def beside(
        self, fixed: Sequence[tuple[Tensor, ...]], gates: Tensor | None = None
    ) -> Iterator[None]:
        """Let the matrices ``fixed``, one tuple a layer, act within the context.

        All layers have the same ``gates``.
        """
        for change, matrices in zip(self.changes, fixed, strict=True):
            change.fixed, change.gates = matrices, gates
        try:
            yield
        finally:
            for change in self.changes:
                change.fixed, change.gates = (), None

    @contextmanager
    def observed(
        self, product: Callable[[Tensor], Tensor], step: int = 1
    ) -> Iterator[LayerInputs]:
        """Record the inputs of the changed layers within the context.

        Args:
            product: `squares` or `gram`.
            step: distance of the recorded layers; 1 records all of them.
        """
        layers = self._layers[::step]
        record, run = LayerInputs(layers, product), self.run

        def masked(hidden: Hidden, start: int, stop: int) -> Hidden:
            # Tokens that attention ignores do not count; images have none.
            record.kept = hidden.mask > 0 if self.text else None
            return run(hidden, start, stop)

        hooks = [
            layer.register_forward_pre_hook(partial(record.at_layer, place))
            for place, layer in enumerate(layers)
        ]
        self.run = masked  # type: ignore[method-assign]
        try:
            yield record
        finally:
            del self.run
            for hook in hooks:
                hook.remove()
