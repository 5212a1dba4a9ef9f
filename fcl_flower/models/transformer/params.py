"""What the families of frozen transformers are set by; known without torch."""

from typing import Literal

from pydantic import Field

from fcl_flower.models.transformer.pretrained import EncoderParams


class FrozenParams(EncoderParams):
    """Settings of the models whose encoder is all frozen; Enhancers have none."""

    pooled_blocks: int = Field(2, ge=1)
    """From how many of the blocks, the last ones, the features are taken: the mean over
    tokens of each, side by side."""


class LoraParams(EncoderParams):
    """Settings of a frozen encoder with LoRA."""

    num_blocks: int = Field(0, ge=0)
    """How many of the blocks, the last ones, have layers that learn; 0 for all."""
    rank: int = Field(2, ge=1)
    """Rank of what a linear layer learns, at least 1."""
    layers: Literal["all", "attention"] = "all"
    """Which linear layers of a block learn: all, or those of queries and values."""


class DisentangledParams(EncoderParams):
    """Settings of an encoder of texts with two spaces on top."""

    max_tasks: int = Field(50, ge=1)
    """Tasks that can be told apart by the specific space, at most."""
