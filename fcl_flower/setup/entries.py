"""The registry entries that a run names, with checked parameters."""

import os
from functools import cached_property
from pathlib import Path
from typing import Any

from fcl_flower.algorithms.base import ServerStrategy
from fcl_flower.algorithms.registry import Algorithm, algorithm
from fcl_flower.config.parsing import Params, validate_params
from fcl_flower.config.run_config import ModelSection, RunConfig, ScenarioSection
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError, config_error
from fcl_flower.data.scenarios.registry import SCENARIOS, ScenarioEntry
from fcl_flower.models.pretrained import MINILM, SMOLLM2, EncoderParams
from fcl_flower.models.registry import MODELS, ModelEntry


class Entries:
    """The registry entries behind the names of a run; they load no torch."""

    def __init__(self, spec: RunSpec) -> None:
        """Look up the names, and check their parameters."""
        config = spec.config
        self.spec, self.config = spec, config
        self.algorithm: Algorithm = algorithm(config.strategy.name)
        self.params: Params = self.algorithm.params(config.strategy.params)
        self.scenario_entry: ScenarioEntry = SCENARIOS[config.scenario.name]
        self.scenario_params: Params = validate_params(
            self.scenario_entry.params,
            config.scenario.params,
            "scenario.",
            ScenarioSection.keys(),
        )
        self.model_entry: ModelEntry = MODELS[config.model.name]
        self.model_params: Params = model_params(config, self.model_entry)
        self.data_root = data_root(config)

    @cached_property
    def server(self) -> type[ServerStrategy[Any]]:
        """The server side; that of a local-only run sends nothing."""
        alone = self.config.strategy.local_only
        return (algorithm("local") if alone else self.algorithm).load_server()


def data_root(config: RunConfig) -> Path:
    """Find the folder of data sets: the setting, ``$FCL_DATA`` or ``./data``."""
    try:
        here = Path.cwd()
    except FileNotFoundError as error:
        raise ConfigError(
            "the working folder was deleted, expected one that is there: change to "
            "another (cd)"
        ) from error
    return here / (config.data.root or os.environ.get("FCL_DATA") or "data")


def model_params(config: RunConfig, entry: ModelEntry) -> Params:
    """Check the parameters of a network; an encoder of texts has a default."""
    params = validate_params(
        entry.params, config.model.params, "model.", ModelSection.keys()
    )
    default = {"text": MINILM, "instructions": SMOLLM2}.get(entry.modality)
    if "max_tokens" in params.model_fields_set and not default:
        expected = "none for an encoder of images"
        raise config_error(
            "model.max_tokens", config.model.params["max_tokens"], expected
        )
    if isinstance(params, EncoderParams) and default:
        return params.model_copy(update={"encoder": params.encoder or default})
    return params
