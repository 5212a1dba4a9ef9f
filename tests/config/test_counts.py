"""A setting counts in the run that accepts it, or is refused."""

import sys
from typing import Literal, get_args, get_origin

import pytest
from fakes import run_in_process, tiny

from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.config.run_config import (
    COUNTS,
    DEFAULTS,
    Frozen,
    RunConfig,
    field_of,
)
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.registry import MODELS
from fcl_flower.setup.resolve import resolve

ELSEWHERE = {
    "federation.max_attempts": "where a round fails",
    "run.keep_clients": "where a simulation has processes of its own",
    "run.keep_versions": "at real clients",
}
CHECKS = {"setup.checks", "config.parsing", "results.report.run_page"}
"""Modules that look at settings without doing anything by them."""
WITH = {
    "privacy.unit": {"privacy.noise_multiplier": 1.0},
    "training.lr_schedule": {"training.lr_patience": 0, "training.lr_steps": "0.5"},
    "training.momentum": {"training.optimizer": "sgd"},
    "model.mask_logits": {"model.head": "single"},
}
TEXTS = {
    "federation.measure": "rouge-l",
    "data.public_path": "public.npz",
    "data.word_vectors": "words.vec",
    "training.lr_steps": "0.5",
}


def another(key):
    """Return a value of a setting that is not its default."""
    default, kind = DEFAULTS[key], field_of(key).annotation
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, str):
        return TEXTS[key]
    if isinstance(default, int):
        return default // 2 or 1
    return 0.8 if key == "federation.secure_threshold" else default / 2 or 0.5


@pytest.fixture
def read(monkeypatch):
    """Note the settings at which any module looks, but for those of `CHECKS`."""
    sections = {
        field.annotation: name for name, field in RunConfig.model_fields.items()
    }
    look, noted = Frozen.__getattribute__, set()

    def note(self, key):
        section = sections.get(type(self))
        if section and key in type(self).model_fields:
            frame = sys._getframe(1)
            while frame.f_globals["__name__"] == "fcl_flower.config.run_config":
                if frame.f_code.co_name in {"flat", "must_be"}:  # every setting
                    return look(self, key)
                frame = frame.f_back
            module = frame.f_globals["__name__"].removeprefix("fcl_flower.")
            if module not in CHECKS and not module.startswith("pydantic"):
                noted.add(f"{section}.{key}")
        return look(self, key)

    monkeypatch.setattr(Frozen, "__getattribute__", note)
    return noted


@pytest.mark.run
def test_a_setting_at_which_nothing_looks_is_refused(tmp_path, read):
    config = tiny(tmp_path, strategy="fedavg")

    run_in_process(config)

    unread = DEFAULTS.keys() - read - ELSEWHERE.keys()
    assert "privacy.epsilon" in unread
    for key in sorted(unread):
        with pytest.raises(ConfigError, match=rf"^{key}: got .*, expected "):
            resolve(config.replace(**{key: another(key)}))


PAIRS = [(key, rule) for rule in COUNTS for key in rule.keys.split()]


@pytest.mark.parametrize(("key", "rule"), PAIRS, ids=[key for key, _ in PAIRS])
def test_a_setting_is_refused_without_the_one_that_makes_it_count(key, rule):
    off = DEFAULTS[rule.where]
    words = rf"^{key}: got .* unless {rule.where} is .*without which it has no effect$"
    with pytest.raises(ConfigError, match=words):
        RunConfig.of({rule.where: off, key: another(key)})

    on = {rule.where: rule.values[0] if rule.values else 0.5}
    RunConfig.of({**on, **WITH.get(rule.where, {}), key: another(key)})


KINDS = [
    *((name, algorithm(name).params_type) for name in algorithms()),
    *((name, entry.params) for name, entry in MODELS.items()),
]
PARAMETERS = {
    (key, rule.where): (kind, rule) for _, kind in KINDS for key, rule in kind.rules()
}


@pytest.mark.parametrize(("key", "where"), PARAMETERS)
def test_a_parameter_is_refused_without_the_one_that_makes_it_count(key, where):
    kind, rule = PARAMETERS[key, where]
    leaf, other = key.partition(".")[2], where.partition(".")[2]
    field, choice = kind.model_fields[leaf], kind.model_fields[other]
    choices = get_args(choice.annotation) or (0, choice.default)
    off = next(value for value in choices if value not in (rule.values or {5}))
    on = rule.values[0] if rule.values else choice.default

    with pytest.raises(ValueError, match=rf"{key}: got .* unless {where} is "):
        kind(**{other: off, leaf: field.default})
    compared = {"knowledge": "sit:5"} if other == "overlap" else {}
    kind(**compared, **{other: on, leaf: field.default})


@pytest.mark.parametrize(
    ("name", "values", "key"),
    [
        ("fedweit", {"clusters": 50}, "clusters"),
        ("fedweit", {"knowledge": "all", "overlap": "mean-cosine"}, "overlap"),
        ("fedet", {"noise": 0.5}, "noise"),
        ("replay", {"memory_samples": 200}, "memory_samples"),
        ("replay-reg", {"memory_samples": 50}, "memory_samples"),
    ],
)
def test_what_strangers_set_without_effect_is_refused(name, values, key):
    with pytest.raises(ConfigError, match=rf"^strategy\.{key}: got .*has no effect$"):
        algorithm(name).params(values)
