"""Presets: published protocols as files of settings, which a user's own replace."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fcl_flower.algorithms.registry import STRATEGY, algorithm
from fcl_flower.config.parsing import flatten, read_toml
from fcl_flower.core.errors import config_error, unknown_name

FOLDER: Final = Path(__file__).with_name("presets")


class Preset(NamedTuple):
    """Settings by ``section.key``, and parameters for the strategies that have them."""

    settings: Mapping[str, Any] = {}
    params: Mapping[str, Any] = {}

    def params_for(self, strategies: Iterable[str]) -> dict[str, Any]:
        """Choose the parameters that one of the strategies has."""
        keys = {
            f"{STRATEGY}{key}"
            for name in strategies
            for key in algorithm(name).params_type.model_fields
        }
        return {key: value for key, value in self.params.items() if key in keys}


def preset_names() -> list[str]:
    """List the presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_preset(name: str | None) -> Preset:
    """Read a preset by name; an empty one for None.

    Raises:
        ConfigError: no preset has the name; the message lists all.
    """
    if name is None:
        return Preset()
    if not isinstance(name, str):
        raise config_error("preset", name, "a name, or None")
    if name not in preset_names():
        raise unknown_name("preset", name, preset_names())
    values = flatten(read_toml(FOLDER / f"{name}.toml", "preset"))
    params = {key: value for key, value in values.items() if key.startswith(STRATEGY)}
    return Preset({k: v for k, v in values.items() if k not in params}, params)
