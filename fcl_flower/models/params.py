"""What the families of convolutional networks are set by; known without torch."""

from pydantic import Field

from fcl_flower.config.params import Params


class LeNetParams(Params):
    """Settings of `LeNet`."""

    width: float = Field(1.0, gt=0)
    """Factor of the numbers of channels and neurons; 1 for those of the paper."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Fraction of the neurons of each fully connected layer that a training step leaves
    out, at least 0 and below 1."""


class PatchFiltersParams(Params):
    """Settings of the fixed filters."""

    filters: int = Field(100, ge=1)
    """Filters; each gives two features a part of the image."""
    patch: int = Field(6, ge=2, le=16)
    """Pixels a side of a patch."""
    grid: int = Field(2, ge=1, le=8)
    """Parts a side of the image, over each of which answers are averaged."""


class EfficientNetLiteParams(Params):
    """Settings of the pre-trained EfficientNet-Lite."""

    image_size: int = Field(112, ge=32)
    """Pixels a side to which it enlarges images: with more it is slower and, up to the
    224 of its training, sees more."""
