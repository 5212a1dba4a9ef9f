"""What methods' parameters may be: bounds, each from both sides, and named choices."""

import re

import pytest

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError

RANGES = {
    "apd": {
        **dict.fromkeys(("lambda1", "lambda2", "weight_decay", "threshold"), "[0"),
        **dict.fromkeys(("mask_rate", "consolidate_every", "gap"), "[0"),
        "initial_adapter": "[0, 1]",
        "groups": "[1",
    },
    "bic": {
        **dict.fromkeys(("bias_epochs", "memory_samples"), "[0"),
        **dict.fromkeys(("temperature", "bias_rate"), "(0"),
        "held_out": "(0, 1)",
    },
    "dde-icarl": {
        "neighbours": "[0",
        "momentum": "[0, 1)",
        "removal": "[0, 1]",
        "recency": "[0, 1]",
    },
    "der": {
        **dict.fromkeys(("alpha", "beta", "memory_samples"), "[0"),
        "replay_batch": "[1",
    },
    "fedcbdr": {
        **dict.fromkeys(("memory_samples", "old_weight", "new_weight"), "[0"),
        **dict.fromkeys(("old_temperature", "new_temperature"), "(0"),
    },
    "fedcurv": {"strength": "[0", "fisher_examples": "[1"},
    "fot": {"energy": "(0, 1)", "energy_step": "[0, 1)", "sketch_width": "(0, 10]"},
    "glfc": {
        **dict.fromkeys(("compensation", "distillation", "noise"), "[0"),
        **dict.fromkeys(("perturbation_steps", "memory_samples"), "[0"),
        **dict.fromkeys(("entropy_rise", "perturbation_rate"), "(0"),
        "search_steps": "[1",
    },
    "icarl": {"memory_samples": "[1"},
    "idbr": {
        **dict.fromkeys(("generic", "specific", "order", "task"), "[0"),
        **dict.fromkeys(("new_weight", "replayed_weight"), "[0"),
        "buffer_fraction": "(0, 1]",
    },
    "lwf": {"strength": "[0", "temperature": "(0"},
    "podnet": {
        **dict.fromkeys(("spatial_strength", "flat_strength", "margin"), "[0"),
        **dict.fromkeys(("scale", "finetune_rate"), "(0"),
        "finetune_epochs": "[0",
        "proxies": "[1",
    },
    "replay": {"memory_samples": "[0", "memory_bytes": "[0"},
    "replay-reg": {"buffer_fraction": "(0, 1]", "strength": "[0"},
    "ss-il": {
        **dict.fromkeys(("strength", "memory_samples"), "[0"),
        "temperature": "(0",
        "replay_ratio": "(0, 1]",
    },
    "stable-sgd": {"gamma": "(0, 1]", "minimum_rate": "[0"},
    "fedprox-ssgd": {"gamma": "(0, 1]", "minimum_rate": "[0"},
}
CHOICES = [
    ("glfc", "transition", "told"),
    ("icarl", "memory_policy", "all"),
    ("icarl", "classifier", "nearest"),
    ("icarl", "distillation", 1),
    ("idbr", "budget", "bytes"),
    ("lwf", "contrast", "old"),
    ("replay", "memory_policy", "newest"),
    ("replay-reg", "budget", "most"),
]


def bounds(interval):
    """Yield bounds of an interval as text: value, on which side, and if it belongs."""
    ends = interval.split(", ")
    yield float(ends[0][1:]), -1, ends[0][0] == "["
    if len(ends) == 2:
        yield float(ends[1][:-1]), 1, ends[1][-1] == "]"


@pytest.mark.parametrize(
    ("name", "key", "value", "side", "belongs"),
    [
        (name, key, *bound)
        for name, ranges in RANGES.items()
        for key, interval in ranges.items()
        for bound in bounds(interval)
    ],
)
def test_a_parameter_is_refused_beyond_its_bound_and_nowhere_else(
    name, key, value, side, belongs
):
    entry = algorithm(name)
    whole = isinstance(entry.params_type.model_fields[key].default, int)
    kind, step = (int, 1) if whole else (float, 0.001)
    inside, outside = value, value + side * step
    if not belongs:
        inside, outside = value - side * 0.1, value
    assert getattr(entry.params({key: kind(inside)}), key) == kind(inside)
    than = ("greater" if side < 0 else "less") + " than"
    than += " or equal to" * belongs + f" {value:g}"
    sentence = f"strategy.{key}: got {kind(outside)!r}, expected {than}"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        entry.params({key: kind(outside)})


@pytest.mark.parametrize(("name", "key", "value"), CHOICES)
def test_what_is_none_of_the_choices_is_refused(name, key, value):
    with pytest.raises(ConfigError, match=rf"^strategy\.{key}: got {value!r}, expecte"):
        algorithm(name).params({key: value})
