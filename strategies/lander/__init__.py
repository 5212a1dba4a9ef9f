"""LANDER: declaration and hyper-parameters.

Tran et al., CVPR 2024, https://arxiv.org/abs/2403.14101. Where the paper leaves details
open, they follow the authors' code.
"""

import math
from dataclasses import replace

from pydantic import Field

from strategies import target
from strategies.target import SynthesisParams


class LanderParams(SynthesisParams):
    """Hyper-parameters of LANDER; samples lie near the anchors of their classes."""

    norm_weight: float = Field(1.0, ge=0)
    """The weight of the distance to the statistics of batch normalisation, at least 0;
    that of LANDER's code. A network without batch normalisation has no such term."""
    encoder: str = "minilm"
    """The text encoder of the classes' names: minilm, a folder that save_pretrained
    wrote, or a name of the Hugging Face Hub. Only the server needs it."""
    anchor_weight: float = Field(5.0, ge=0)
    """The weight of the distance to the anchors, at least 0 (LANDER's code's
    lambda)."""
    radius: float = Field(0.015, ge=0)
    """The mean squared distance to the anchors that costs nothing, at least 0 (r of
    LANDER's code)."""
    current: float = Field(0.2, ge=0)
    """The weight of the new classes, before the numbers of classes scale it (see
    `weights`), at least 0; that of the authors' code."""
    previous: float = Field(0.4, ge=0)
    """The weight of the distillation, before the numbers of classes scale it, at least
    0; that of the authors' code. 0 trains on the new classes alone."""
    temperature: float = Field(2.0, gt=0)
    """The temperature of the distillation, above 0; that of the authors' code."""

    def weights(self, classes: int, old: int) -> tuple[float, float]:
        """Compute the weights of new classes and of old ones in a later task.

        With a = log2(classes / 2 + 1) and b = sqrt(old / classes) these are current (1
        + 1 / a) / b and previous a b.

        Args:
            classes: number of classes so far, those of the task included.
            old: number of classes before the task; at least 1.
        """
        a, b = math.log2(classes / 2 + 1), math.sqrt(old / classes)
        return self.current * (1 + 1 / a) / b, self.previous * a * b


ALGORITHM = replace(
    target.ALGORITHM,
    name="lander",
    server="strategies.lander.server:Lander",
    client="clients.lander:Lander",
    params_type=LanderParams,
    summary="TARGET with features held near text embeddings of the classes' names",
    paper="Tran et al., CVPR 2024",
    trainer="strategies.lander.trainer:AnchoredTrainer",
    needs_classes=True,
)
