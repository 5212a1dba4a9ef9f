"""Flat configurations of earlier versions, made into sections; for one release."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fcl_flower.config.parsing import Scalar, parse_inline, toml
from fcl_flower.config.run_config import RunConfig

_KEYS: Final[Mapping[str, tuple[str, Scalar]]] = MappingProxyType(
    {
        "strategy": ("strategy.name", ""),
        "isolated": ("strategy.local_only", False),
        "scenario": ("scenario.name", ""),
        "clients": ("scenario.clients", 0),
        "tasks": ("scenario.tasks", 4),
        "classes-per-task": ("scenario.classes_per_task", 0),
        "valid-fraction": ("scenario.valid_fraction", 0.15),
        "train-samples": ("scenario.max_train_per_class", 0),
        "test-samples": ("scenario.max_test_per_class", 0),
        "window": ("scenario.window", 320),
        "stay": ("scenario.mean_duration", 1),
        "concept-ids": ("scenario.reveal_ids", False),
        "class-share": ("scenario.class_fraction", 0.6),
        "same-labels": ("scenario.merge_labels", ""),
        "dataset": ("data.datasets", ""),
        "data-root": ("data.root", ""),
        "labels": ("data.class_names", ""),
        "word-vectors": ("data.word_vectors", ""),
        "public-fraction": ("data.public_fraction", 0.1),
        "public-dataset": ("data.public_dataset", ""),
        "public-data": ("data.public_path", ""),
        "model": ("model.name", ""),
        "head": ("model.head", ""),
        "features": ("model.num_features", 0),
        "backbone": ("model.encoder", ""),
        "max-tokens": ("model.max_tokens", 64),
        "bottleneck": ("model.bottleneck", 48),
        "placement": ("model.placement", "both"),
        "enhanced-blocks": ("model.num_blocks", 0),
        "encoder-precision": ("model.dtype", "float32"),
        "epochs": ("training.epochs", 1),
        "batch-size": ("training.batch_size", 0),
        "learning-rate": ("training.learning_rate", 0.0),
        "patience": ("training.lr_patience", 3),
        "stop-after": ("training.early_stopping_patience", 0),
        "device": ("training.device", "auto"),
        "threads": ("training.threads", 1),
        "rounds": ("federation.rounds_per_task", 0),
        "evaluate-every": ("federation.evaluate_every", 0),
        "fraction": ("federation.client_fraction", 1.0),
        "min-replies": ("federation.min_updates", 1),
        "attempts": ("federation.max_attempts", 3),
        "timeout": ("federation.timeout", 3600.0),
        "norm-limit": ("federation.max_update_norm", 1000.0),
        "precision": ("federation.wire_dtype", "float32"),
        "mixing": ("asynchronous.mixing", 0.6),
        "staleness": ("asynchronous.staleness_exponent", 0.5),
        "pace": ("asynchronous.simulated_durations", ""),
        "seed": ("run.seed", 0),
        "label": ("run.title", ""),
        "name": ("run.id", ""),
        "output": ("run.output", ""),
        "resume": ("run.resume", False),
        "memory": ("run.client_state", "context"),
    }
)
"""Today's key of each former one, and the default that it had."""

_NAMES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "scenario.name": {"own": "local-data"},
        "strategy.gamma": {},
    }
)
_MODELS: Final = MappingProxyType({"lenet-small": 0.8, "lenet-large": 1.2})
_PARAMS: Final = MappingProxyType({"gamma": "buffer_fraction"})


def is_flat(values: Mapping[str, Any]) -> bool:
    """Return whether a file is of an earlier version: no section, or a study's."""
    tables = [
        t for t in (values.get("run"), *values.get("variant", [])) if _is_table(t)
    ]
    known = {*_KEYS, "set", "mode"}
    if "variant" in values or "seeds" in values:
        return any(key in known for t in tables for key in t if not _is_table(t[key]))
    return any(key in known and not _is_table(values[key]) for key in values)


def upgrade(values: Mapping[str, Any]) -> str:
    """Return a configuration or a study of an earlier version as today's TOML.

    Values that were the default are left out, as are parameters that the thing named
    never had: the flat form held them all.

    Args:
        values: of a ``config.toml``, or of a study with ``run`` and ``variant``.

    Raises:
        ConfigError: a value is refused.
    """
    if not ("variant" in values or "seeds" in values):
        return RunConfig.of(_upgraded(values)).to_toml()
    lines = [f"seeds = {values.get('seeds', [0])}"]
    if not values.get("isolated-twins", values.get("local-only-counterparts", True)):
        lines.append("local_only_counterparts = false")
    shared = _upgraded(values.get("run", {}))
    lines += ["", "[run]", *_lines(shared)]
    for variant in values.get("variant", []):
        lines += ["", "[[variant]]", *_lines(_upgraded(variant, keep_defaults=True))]
    return "\n".join(lines) + "\n"


def _upgraded(
    values: Mapping[str, Any], *, keep_defaults: bool = False
) -> dict[str, Scalar]:
    found: dict[str, Scalar] = {}
    for key, value in values.items():
        if key == "set":
            params = parse_inline(value, "set")
            found |= {f"strategy.{_PARAMS.get(k, k)}": v for k, v in params.items()}
        elif key == "mode":
            if keep_defaults or value == "asynchronous":
                found["asynchronous.enabled"] = value == "asynchronous"
        elif key in ("isolated", "local-only"):
            if keep_defaults or value:
                found["strategy.local_only"] = value
        else:
            new, default = _KEYS[key]
            if keep_defaults or value != default:
                found[new] = _NAMES.get(new, {}).get(value, value)
    if (width := _MODELS.get(str(found.get("model.name")))) is not None:
        found |= {"model.name": "lenet", "model.width": width}
    return found


def _lines(values: Mapping[str, Scalar]) -> list[str]:
    return [f"{key} = {toml(value)}" for key, value in values.items()]


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)
