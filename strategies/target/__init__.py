"""TARGET: declaration and hyper-parameters.

Zhang et al., ICCV 2023, https://arxiv.org/abs/2303.06937.
"""

from pydantic import Field

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm


class SynthesisParams(Params):
    """Hyper-parameters of a server's synthesis of samples from its model.

    The sizes are our choice, for small images on a processor. Each text says what the
    authors' code has for 32x32 images on a GPU.
    """

    synthetic_samples: int = Field(256, ge=1)
    """The number of samples that the server makes when a task ends, at least 1
    (TARGET's paper 8000, LANDER's code 10000)."""
    synthetic_batch: int = Field(64, ge=2)
    """The number of samples that are made together, at least 2 (256 in both codes)."""
    warmup: int = Field(2, ge=0)
    """The number of batches that train the generator before any is kept, at least 0.
    The student takes no part in them (20 in TARGET's code, 10 in LANDER's)."""
    generator_steps: int = Field(20, ge=1)
    """The number of steps of the generator for each batch, at least 1 (10 and 40)."""
    generator_width: int = Field(16, ge=1)
    """The number of channels of its last hidden layer, at least 1; the other layers
    have twice as many (64 in both codes)."""
    generator_noise: int = Field(64, ge=1)
    """The number of random numbers from which it makes a sample, at least 1 (256 in
    both codes)."""
    student_epochs: int = Field(5, ge=1)
    """The number of passes of the student over all samples after each batch, at least 1
    (400 steps in TARGET's code, 50 in LANDER's)."""
    label_weight: float = Field(0.5, ge=0)
    """The weight of the cross-entropy of the wanted labels, at least 0 (both
    codes')."""
    norm_weight: float = Field(10.0, ge=0)
    """The weight of the distance to the statistics of batch normalisation, at least 0;
    that of TARGET's code, 1 in LANDER's. A network without batch normalisation has no
    such term."""


class TargetParams(SynthesisParams):
    """Hyper-parameters of TARGET."""

    alpha: float = Field(25.0, ge=0)
    """The weight of the distillation on the server's samples, at least 0; that of the
    authors' code. 0 is FedAvg on the new classes alone."""
    temperature: float = Field(2.0, gt=0)
    """The temperature of this distillation, above 0; that of the authors' code."""


ALGORITHM = Algorithm(
    name="target",
    server="strategies.target.server:Target",
    client="clients.target:Target",
    params_type=TargetParams,
    summary="the server makes samples of old classes from its model; clients distil",
    paper="Zhang et al., ICCV 2023",
    defaults={"scenario.name": "class-incremental"},
    trainer="strategies.target.trainer:SampleTrainer",
    needs_classes=True,
    privacy_units=("client",),
    needs_single_head=True,
)
