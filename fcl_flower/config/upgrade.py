"""Flat configurations of earlier versions, made into sections; for one release."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from fcl_flower.config.parsing import Scalar, parse_inline, toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import refuse, unknown

_KEYS: Final[Mapping[str, tuple[str, Scalar]]] = MappingProxyType(
    {
        "strategy": ("strategy.name", ""),
        "isolated": ("strategy.local_only", False),
        "mode": ("asynchronous.enabled", "synchronous"),
        "set": ("strategy.params", ""),
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

_PARAMS: Final = MappingProxyType({"gamma": "buffer_fraction"})
"""Today's name of a parameter of a strategy, where it changed."""

_ENCODERS: Final = ("transformer", "enhanced-transformer", "vit", "enhanced-vit")
_RUN_KEYS: Final = frozenset({"seed", "output", "resume"})
_MODELS: Final = MappingProxyType({"lenet-small": 0.8, "lenet-large": 1.2})
"""Former names of LeNet, with its width."""

_FORMER_DEFAULTS: Final[Mapping[str, Mapping[str, Scalar]]] = MappingProxyType(
    {
        "": {"training.lr_patience": 3},
        "fedprox": {"strategy.mu": 0.01},
    }
)
"""What a file meant that did not say otherwise, where today's default is another; for
all strategies, and for one."""

_ONLY_OF: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "scenario.window": ("concepts",),
        "scenario.mean_duration": ("concepts",),
        "scenario.reveal_ids": ("concepts",),
        "scenario.class_fraction": ("class-incremental",),
        "scenario.merge_labels": ("class-incremental", "concepts"),
        "model.encoder": _ENCODERS,
        "model.max_tokens": _ENCODERS,
        "model.bottleneck": _ENCODERS,
        "model.placement": _ENCODERS,
        "model.num_blocks": _ENCODERS,
        "model.dtype": _ENCODERS,
    }
)
"""Parameters that the flat form held for all, and the names that have them."""


def is_flat(values: Mapping[str, Any]) -> bool:
    """Return whether a file is of an earlier version, with keys in no section."""
    tables = [values]
    if is_study(values):
        tables = [values.get("run", {}), *_variants(values)]
    return "isolated-twins" in values or any(
        key in _KEYS and isinstance(value, bool | int | float | str)
        for table in tables
        if isinstance(table, Mapping)
        for key, value in table.items()
    )


def is_study(values: Mapping[str, Any]) -> bool:
    """Return whether a file of an earlier version is a study, not one run."""
    run = values.get("run")
    flat_run = isinstance(run, Mapping) and {*run} & {*_KEYS} - {*_RUN_KEYS}
    return bool({"variant", "seeds", "isolated-twins"} & {*values} or flat_run)


def upgrade(values: Mapping[str, Any]) -> str:
    """Return a configuration or a study of an earlier version as today's TOML.

    Parameters that the scenario or model named does not have are left out, since the
    flat form held those of all.

    Args:
        values: of a ``config.toml``, or of a study with ``run`` and ``variant``.

    Raises:
        ConfigError: a key is unknown, or a value refused.
    """
    if not is_study(values):
        given = {k: v for k, v in values.items() if k not in _KEYS or v != _KEYS[k][1]}
        return RunConfig.of(_in_sections(given)).to_toml()
    known = ("seeds", "run", "variant", "isolated-twins")
    for key in values:
        if key not in known:
            raise unknown(key, key, known)
    run, variants = values.get("run", {}), _variants(values)
    for table in (run, *variants):
        if not isinstance(table, Mapping):
            raise refuse("study", table, "tables, [run] and [[variant]]")
    wanted = [_in_sections({**run, **variant}) for variant in variants]
    # A variant replaced the algorithm's settings as a whole, and the model.
    shared = {
        key: value
        for key, value in _in_sections(run).items()
        if all(key in each for each in wanted)
    }
    lines = [f"seeds = {values.get('seeds', [0])}"]
    if not values.get("isolated-twins", True):
        lines.append("local_only_counterparts = false")
    lines += ["", "[run]", *_lines(shared)]
    for each in wanted:
        own = {k: v for k, v in each.items() if k not in shared or shared[k] != v}
        lines += ["", "[[variant]]", *_lines(own)]
    for each in wanted:
        RunConfig.of(each)
    return "\n".join(lines) + "\n"


def _variants(values: Mapping[str, Any]) -> list[Any]:
    found = values.get("variant", [{}])
    return found if isinstance(found, list) else [found]


def _in_sections(values: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return flat keys as keys of sections.

    Raises:
        ConfigError: a key is unknown, or the algorithm's settings are malformed.
    """
    found: dict[str, Scalar] = {}
    for key, value in values.items():
        if key not in _KEYS:
            raise unknown(key, key, sorted(_KEYS))
        if isinstance(value, Mapping):
            raise refuse(key, dict(value), "a value, as in a file without sections")
        if key == "set":
            params = parse_inline(str(value), "set")
            found |= {f"strategy.{_PARAMS.get(k, k)}": v for k, v in params.items()}
        elif key == "mode":
            found["asynchronous.enabled"] = value == "asynchronous"
        else:
            found[_KEYS[key][0]] = value
    of_strategy = _FORMER_DEFAULTS.get(str(found.get("strategy.name")), {})
    found = {**_FORMER_DEFAULTS[""], **of_strategy, **found}
    if found.get("scenario.name") == "own":
        found["scenario.name"] = "local-data"
    if (width := _MODELS.get(str(found.get("model.name")))) is not None:
        found |= {"model.name": "lenet", "model.width": width}
    return {key: value for key, value in found.items() if _applies(key, found)}


def _applies(key: str, values: Mapping[str, Scalar]) -> bool:
    """Return whether what a configuration names has a parameter, as far as is known."""
    section, _, _ = key.partition(".")
    name = values.get(f"{section}.name", "")
    return not name or key not in _ONLY_OF or name in _ONLY_OF[key]


def _lines(values: Mapping[str, Scalar]) -> list[str]:
    return [f"{key} = {toml(value)}" for key, value in values.items()]
