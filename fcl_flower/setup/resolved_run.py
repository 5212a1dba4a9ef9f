"""A run with every default decided: what all that builds or runs it takes."""

from dataclasses import dataclass
from pathlib import Path

from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Params
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import ScenarioEntry
from fcl_flower.models.pretrained import EncoderParams, image_shape
from fcl_flower.models.registry import ModelEntry


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A run with every default decided, and what its names stand for.

    Attributes:
        config: with nothing left open.
        algorithm: entry of the registry.
        params: its hyper-parameters.
        scenario: entry of the registry.
        scenario_params: parameters of the scenario.
        model: entry of the registry.
        model_params: parameters of the model's family.
        modality: of the data: ``images``, ``time-series``, ``tabular``, ``text``.
        data_root: folder with data sets.
    """

    config: RunConfig
    algorithm: Algorithm
    params: Params
    scenario: ScenarioEntry
    scenario_params: Params
    model: ModelEntry
    model_params: Params
    modality: str
    data_root: Path

    @property
    def hidden_tasks(self) -> bool:
        """Return whether clients are not told which task, or concept, they have."""
        reveals = bool(self.config.scenario.params.get("reveal_ids", False))
        return self.scenario.hidden and not reveals

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one input of the model."""
        if (
            isinstance(self.model_params, EncoderParams)
            and self.model.modality == "images"
        ):
            return image_shape(self.model_params.encoder)
        if self.model.modality == "tabular":
            return (self.config.model.num_features,)
        return self.model.input_shape
