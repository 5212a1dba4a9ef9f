"""What the settings of one strategy, scenario or model family have in common."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Settings of one thing that a user chooses by name; none, unless a subclass has.

    Frozen; unknown keys and values of another type are refused. The text below a field
    is its sentence for ``fcl list NAME``.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @property
    def needs_validation(self) -> bool:
        """Return whether validation samples decide more than the learning rate."""
        return False

    def remarks(self, classes: int, clients: int) -> Mapping[str, str]:
        """Say what a user may not expect of these settings, by topic.

        Args:
            classes: that one head of the network tells apart.
            clients: of the run.
        """
        return {}
