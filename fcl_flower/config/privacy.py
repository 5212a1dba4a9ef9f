"""The section on differential privacy: whose data it hides, and from whom."""

from typing import Literal

from pydantic import Field

from fcl_flower.config.sections import Section


class PrivacySection(Section):
    """Differential privacy: clipping, noise, and what they may cost."""

    unit: Literal["none", "client", "example"] = "none"
    """Privacy unit: what differential privacy hides. client: whatever a client's
    training data are; example: whether one of them is there; none: nothing."""
    noise_multiplier: float = Field(0.0, ge=0)
    """Standard deviation of the Gaussian noise that a client adds, as a multiple of
    clip; above 0 wherever there is a privacy unit."""
    clip: float = Field(1.0, gt=0)
    """Largest Euclidean norm: of the difference that a client sends, or of an example's
    gradient."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """The delta at which epsilon is stated."""
    epsilon: float = Field(0.0, ge=0)
    """Privacy budget: the epsilon that no client's data may exceed; 0 for any."""
    observer: Literal["server", "clients"] = "server"
    """From whom a client is hidden within the budget: the server, which sees each
    update, or other clients, who see means of updates."""
    scores: bool = True
    """Ask clients for accuracies on their test data: exact numbers, which epsilon does
    not cover."""
