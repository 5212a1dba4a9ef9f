"""A frozen transformer with Enhancers: small modules that are trained instead.

Liu et al., "FedET", IJCAI 2023, section 3.1, after Houlsby et al., ICML 2019.
"""

from typing import cast

from torch import Tensor, nn
from typing_extensions import override

from fcl_flower.core.errors import refuse
from fcl_flower.models.transformer.encoder import Transformer
from fcl_flower.models.transformer.pretrained import EncoderParams

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
        """Return the enhanced ``x``, of the same shape (..., n)."""
        delta: Tensor = self.up(nn.functional.gelu(self.down(x)))
        return x + delta

    def behind(
        self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor:
        """Return the enhanced output of the module that it stands behind."""
        return output if self.idle else cast(Tensor, self(output))


class EnhancedTransformer(Transformer):
    """A transformer whose own parameters are frozen; Enhancers are all that learns.

    An Enhancer acts on what a block's attention, or its feed-forward network, returns,
    before it is added to what entered. The encoder stays in evaluation mode, so that
    what comes before the first Enhancer is a fixed function of the input.
    """

    def __init__(self, params: EncoderParams) -> None:
        """Load an encoder, freeze it and add fresh Enhancers.

        What the blocks before the first Enhancer return is computed once a sample.

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
        """Return what the encoder alone makes of inputs, shape (N, D).

        It is the same whatever the Enhancers have learned.
        """
        enhancers = cast(list[Enhancer], list(self.enhancers))
        for enhancer in enhancers:
            enhancer.idle = True
        try:
            return super().embed(x)
        finally:
            for enhancer in enhancers:
                enhancer.idle = False


def _projection(block: nn.Module, names: tuple[str, ...], encoder: str) -> nn.Linear:
    """Return the linear layer of a block behind which an Enhancer acts."""
    for name, module in block.named_modules():
        if name in names and isinstance(module, nn.Linear):
            return module
    raise refuse(
        "encoder",
        encoder,
        f"one whose blocks have a linear layer called {' or '.join(names)}, behind "
        "which an Enhancer acts",
    )
