"""Pre-trained transformers as bodies whose blocks can be run one by one."""

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad
from typing_extensions import override

from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.models.pretrained import (
    EncoderParams,
    load_encoder,
    pixel_statistics,
)
from fcl_flower.models.registry import DisentangledParams, FrozenParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LISTS = (
    *("encoder.layer", "transformer.layer", "layers", "encoder.layers"),
    "network.blocks",
)
KEYS = ("key", "k_lin", "k_proj")
VALUES = ("value", "v_lin", "v_proj")
"""The names of a block's linear layers for keys and for values."""
_NORMS = ("layernorm", "layer_norm", "norm", "network.norm")
TOLERANCE = 1e-3
CHUNK = 64
_ALIKE = 8
"""The number of texts of similar length that are computed together.

Fewer texts would not keep a CPU busy.
"""


class Hidden(NamedTuple):
    """The hidden states of a batch between two blocks."""

    values: Tensor
    """The hidden states, shape (batch, tokens, D)."""
    mask: Tensor
    """The mask, float, shape (batch, tokens): 1 for a token, 0 for padding."""


class Transformer(nn.Module):
    """A body from inputs to pooled last hidden states, (batch, D).

    ``pooling`` takes their mean, the first of them, or both side by side, (batch, 2 D).

    Inputs are images (batch, C, H, W), or token numbers (batch, tokens) of
    `EncoderTokenizer`: one more than the encoder's own numbers, so that 0 is padding.
    The body also takes `frozen_features` of inputs, which are the fixed input of the
    first trained block.

    Every parameter is trained and shared, unless a subclass freezes it.

    Attributes:
        pooling: pooling of `EncoderParams`.
        first: number of the first block that is computed again in each pass.
        features: number of features.
        pixel_mean: mean of the encoder's training pixels, from 0 to 1, for each channel
            or for all. It exists only if the encoder says it.
        pixel_deviation: standard deviation of these pixels, likewise.
    """

    pooling = "mean"
    first = 0
    table = "embeddings"
    """The name of the library's layer in front of the first block."""
    _frozen = False
    _half = False

    def __init__(self, params: EncoderParams) -> None:
        super().__init__()
        name = params.encoder
        self.encoder = self.library_model(name)
        config = self.encoder.config
        self.text = hasattr(config, "vocab_size")
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        if not self.text and (statistics := pixel_statistics(name)):
            self.pixel_mean, self.pixel_deviation = statistics
        embedded = hasattr(self.encoder, self.table)
        if not embedded or _first(self.encoder, _LISTS) is None:
            raise self._refused(name)
        if params.depth:
            self._cut(params.depth, name)
        if params.image_size:
            self._resize(params.image_size, name)
        self._check(name)
        self._half = params.dtype == "bfloat16"
        self.pooling = params.pooling
        self._width = int(config.hidden_size)
        self.features = (1 + (params.pooling == "both")) * self._width

    def library_model(self, name: str) -> "PreTrainedModel":
        """Load the library's model, whose blocks are run one by one."""
        return load_encoder(name)

    @property
    def blocks(self) -> nn.ModuleList:
        """The encoder's blocks in order."""
        return cast(nn.ModuleList, _first(self.encoder, _LISTS))

    def freeze(self, key: str, last: int, encoder: str) -> None:
        """Freeze the encoder, and keep it in evaluation mode.

        Args:
            key: setting of ``last``, for errors.
            last: number of the last blocks that are computed in each pass, 0 for all.
                The input of the first of them is a fixed function of the sample.
            encoder: name of the encoder, for errors.
        """
        count = len(self.blocks)
        if last > count:
            raise config_error(key, last, f"at most the {count} blocks of {encoder!r}")
        self.encoder.requires_grad_(False)
        self.first = count - last if last else 0
        self._frozen = True

    @override
    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._frozen:
            self.encoder.eval()  # type: ignore[no-untyped-call]
        return self

    @override
    def forward(self, x: Tensor) -> Tensor:
        groups = self._by_length(x)
        if not groups:
            return self.encode(x)
        features = torch.cat([self.encode(x[rows]) for rows in groups])
        return features[torch.cat(groups).argsort()]

    def encode(self, x: Tensor) -> Tensor:
        """Compute the features of one batch of inputs, or of their frozen features."""
        if x.is_floating_point() and x.ndim == 3:  # frozen features
            hidden = self.hidden(x)
        else:
            hidden = self.run(self.enter(x), 0, self.first)
        return self.pool(self.run(hidden, self.first, len(self.blocks)))

    def _by_length(self, x: Tensor) -> list[Tensor]:
        """Group the rows of texts by length, since padding costs a CPU time.

        There are no groups if sizes must not depend on data, or if dropout draws for a
        whole batch. There are none on an accelerator, which a small group leaves idle.
        """
        may = self.text and not self.encoder.training and x.device.type == "cpu"
        if not may or _sizes_are_fixed(x) or len(x) <= _ALIKE:
            return []
        lengths = (x[..., -1] if x.is_floating_point() else x > 0).sum(1)
        return list(torch.split(lengths.argsort(stable=True), _ALIKE))

    def hidden(self, features: Tensor) -> Hidden:
        """Split `frozen_features`, (batch, tokens, D + 1), and cut common padding."""
        mask = features[..., -1]
        if _sizes_are_fixed(mask):
            return Hidden(features[..., :-1], mask)
        longest = int(mask.sum(1).max()) if len(features) else 0
        return Hidden(features[:, :longest, :-1], mask[:, :longest])

    @torch.no_grad()
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the fixed input of the first block that each pass computes again.

        Returns:
            hidden states with the mask as the last feature, shape (N, tokens, D + 1);
            ``x`` itself if any parameter of the encoder is trained.
        """
        if any(parameter.requires_grad for parameter in self.encoder.parameters()):
            return x
        if not len(x):
            return torch.zeros(0, 0, self._width + 1, device=x.device)
        by_length = self._by_length(x)
        groups = by_length or torch.split(torch.arange(len(x)), CHUNK)
        parts = []
        for rows in groups:
            hidden = self.run(self.enter(x[rows]), 0, self.first)
            parts.append(torch.cat([hidden.values, hidden.mask[..., None]], 2))
        tokens = max(part.shape[1] for part in parts)
        features = torch.cat([pad(p, (0, 0, 0, tokens - p.shape[1])) for p in parts])
        return features[torch.cat(by_length).argsort()] if by_length else features

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Compute the pooled features of inputs, shape (N, D), chunk by chunk."""
        if not len(x):  # the library's layers refuse an empty batch
            return torch.zeros(0, self.features, device=x.device)
        return torch.cat([self(x[at : at + CHUNK]) for at in range(0, len(x), CHUNK)])

    def words(self, x: Tensor) -> Tensor:
        """Look up the encoder's word embedding of each token, (batch, tokens, D)."""
        table = self.encoder.get_input_embeddings()
        vectors: Tensor = table(self._numbers(x))
        return vectors

    def encoder_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Convert inputs to the arguments of the library's model."""
        if not self.text:
            return {"pixel_values": x}
        return {"input_ids": self._numbers(x), "attention_mask": (x > 0).long()}

    def encoder_state(self) -> dict[str, Tensor]:
        """Collect weights with which the library's model computes the same features.

        A subclass that adds modules to the encoder overrides this method.
        """
        return dict(self.encoder.state_dict())

    def enter(self, x: Tensor) -> Hidden:
        """Compute the input of the first block, and cut common padding."""
        embeddings = cast(nn.Module, self.encoder.embeddings)
        if not self.text:
            values = cast(Tensor, embeddings(x))
            return Hidden(values, torch.ones(values.shape[:2], device=x.device))
        if not _sizes_are_fixed(x):
            longest = int((x > 0).sum(1).max()) if len(x) else 0
            x = x[:, :longest]
        return Hidden(cast(Tensor, embeddings(self._numbers(x))), (x > 0).float())

    def run(self, hidden: Hidden, start: int, stop: int) -> Hidden:
        """Run the blocks from ``start`` up to ``stop``."""
        values = hidden.values
        lowest = torch.finfo(values.dtype).min
        # Layers of images take no mask in some versions of the library.
        masks = (((1 - hidden.mask) * lowest)[:, None, None],) if self.text else ()
        with torch.autocast(values.device.type, torch.bfloat16, enabled=self._half):
            for block in self.blocks[start:stop]:
                output = block(values, *masks)
                values = output[0] if isinstance(output, tuple) else output
        return Hidden(values.float(), hidden.mask)

    def pool(self, hidden: Hidden) -> Tensor:
        """Pool the hidden states to features, after the encoder's last norm if any."""
        values = self.normalized(hidden)
        if self.pooling == "mean":
            return token_mean(values, hidden.mask)
        first = values[:, 0]
        if self.pooling == "class":
            return first
        return torch.cat([first, token_mean(values[:, 1:], hidden.mask[:, 1:])], 1)

    def normalized(self, hidden: Hidden) -> Tensor:
        """Apply the encoder's last norm, if any, to states (batch, tokens, D)."""
        norm = _first(self.encoder, _NORMS)
        return hidden.values if norm is None else cast(Tensor, norm(hidden.values))

    def _numbers(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x - 1, self._padding)

    def _cut(self, depth: int, name: str) -> None:
        """Remove the blocks behind the first ``depth``."""
        if depth > len(self.blocks):
            expected = f"at most the {len(self.blocks)} blocks of {name!r}"
            raise config_error("model.depth", depth, expected)
        del self.blocks[depth:]
        self.encoder.config.num_hidden_layers = depth

    def _resize(self, size: int, name: str) -> None:
        """Prepare the encoder for images of ``size`` pixels a side."""
        config: Any = self.encoder.config
        if self.text:
            raise config_error("model.image_size", size, f"0, as {name!r} reads texts")
        try:
            patch = torch.tensor(config.patch_size).max().item()
            if size % patch:
                expected = f"a multiple of {patch}, the pixels of a patch of {name!r}"
                raise config_error("model.image_size", size, expected)
            _interpolate(self.encoder, size)
        except (TypeError, AttributeError, RuntimeError, ValueError) as e:
            raise self._refused(name) from e

    def _refused(self, name: str) -> ConfigError:
        config: Any = self.encoder.config
        return config_error(
            "encoder",
            name,
            "an encoder of texts or images whose blocks can be run one by one, which "
            f"those of type {config.model_type} cannot",
        )

    @torch.no_grad()
    def _check(self, name: str) -> None:
        """Refuse an encoder whose blocks, run one by one, compute something else."""
        config: Any = self.encoder.config
        try:
            if self.text:
                x = torch.tensor([[3, 4, 5], [4, 3, 0]])
            else:
                size = config.image_size
                shape = (size, size) if isinstance(size, int) else size
                x = torch.linspace(-1, 1, 2 * config.num_channels * prod(shape))
                x = x.view(2, config.num_channels, *shape)
            whole = self.encoder(**self.encoder_inputs(x))
            entered = self.enter(x)
            computed = self.pool(self.run(entered, 0, len(self.blocks)))
        except (TypeError, AttributeError, RuntimeError, IndexError, ValueError) as e:
            raise self._refused(name) from e
        expected = token_mean(whole.last_hidden_state, entered.mask)
        if not torch.allclose(computed, expected, atol=TOLERANCE):
            raise self._refused(name)


@torch.no_grad()
def _interpolate(encoder: Any, size: int) -> None:  # noqa: ANN401 - of many types
    """Interpolate the table of positions once; the library does it in every pass."""
    if hasattr(encoder, "resize"):
        encoder.resize(size)
        return
    parts, patches = encoder.embeddings, encoder.embeddings.patch_embeddings
    old = parts.position_embeddings
    count = (size // encoder.config.patch_size) ** 2
    tokens = count + old.shape[1] - patches.num_patches
    blank = old.new_zeros(1, tokens, old.shape[2])
    new = parts.interpolate_pos_encoding(blank, size, size)
    parts.position_embeddings = nn.Parameter(new.clone())
    patches.num_patches = count
    parts.image_size = patches.image_size = (size, size)
    encoder.config.image_size = size


def _sizes_are_fixed(x: Tensor) -> bool:
    """Tell whether sizes must not depend on data: in a graph, or below `vmap`."""
    below: bool = torch._C._functorch.is_functorch_wrapped_tensor(x)
    return below or torch.compiler.is_compiling()


def token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average (batch, tokens, D) over the tokens that are no padding, to (batch, D)."""
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    return (values * weights[..., None]).sum(1)


def _first(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    for name in names:
        child: Any = module
        for part in name.split("."):
            child = getattr(child, part, None)
        if child is not None:
            return cast(nn.Module, child)
    return None


class FrozenTransformer(Transformer):
    """A body from inputs to the pooled outputs of the last K blocks, (batch, K D).

    Earlier blocks describe some texts better than the last block, which was trained for
    another task. Each block's part is normalised, so that none outweighs another, and
    the whole has length 1. No parameter is trained.
    """

    def __init__(self, params: FrozenParams) -> None:
        super().__init__(params)
        self.freeze("model.pooled_blocks", params.pooled_blocks, params.encoder)
        self.features *= params.pooled_blocks

    @override
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point() and x.ndim == 2:  # frozen features
            return x
        return super().forward(x)

    @override
    def encode(self, x: Tensor) -> Tensor:
        hidden = self.run(self.enter(x), 0, self.first)
        pooled = []
        for number in range(self.first, len(self.blocks)):
            hidden = self.run(hidden, number, number + 1)
            pooled.append(normalize(self.pool(hidden)))
        features: Tensor = torch.cat(pooled, 1) / len(pooled) ** 0.5
        return features

    @override
    def frozen_features(self, x: Tensor) -> Tensor:
        """Compute the features, which are fixed, since no parameter is trained."""
        return self.embed(x)


class DisentangledTransformer(Transformer):
    """A body from texts to (batch, D): a generic space, then a task-specific space.

    It follows Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489, section 3.2.
    Each space is a linear layer with tanh on the mean of the last hidden states; the
    encoder is trained, too. In the paper the layers see the state of the first token,
    and have 128 features each for an encoder of 768. Here they share the encoder's
    number of features, so that a head is no larger.

    Attributes:
        generic: layer to the generic space, (batch, D // 2).
        specific: layer to the task-specific space, the rest of the D features.
        order: layer from the generic space to the logits of a text and of the text with
            its halves swapped.
        task: layer from the task-specific space to the logits of tasks.
    """

    def __init__(self, params: DisentangledParams) -> None:
        super().__init__(params)
        if not self.text:
            raise config_error("model.encoder", params.encoder, "an encoder of texts")
        self.width = width = self.features // 2
        rest = self.features - width
        self.generic = nn.Linear(self.features, width)
        self.specific = nn.Linear(self.features, rest)
        self.order = nn.Linear(width, 2)
        self.task = nn.Linear(rest, params.max_tasks)

    @override
    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pooled(x)
        spaces = [torch.tanh(self.generic(pooled)), torch.tanh(self.specific(pooled))]
        return torch.cat(spaces, 1)

    def pooled(self, x: Tensor) -> Tensor:
        """Compute the encoder's pooled states of texts, shape (batch, D)."""
        return super().forward(x)
