"""The cases: settings of small runs, and of long ones on default scenarios.

A case's name is its group, a slash, and what is special about it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

MATERIALS = "materials:"
"""Begins a setting that is a path within what `materials.write` has written."""


class Case(NamedTuple):
    """One run of seed 1.

    Attributes:
        settings: of `RunConfig.from_settings`.
        stop: training replies after which the run is interrupted, and resumed; 0 for
            none.
    """

    settings: Mapping[str, Any]
    stop: int = 0

    def settings_with(self, materials: Path) -> dict[str, Any]:
        """Complete the paths within a folder of materials."""
        return {
            key: str(materials / value.removeprefix(MATERIALS))
            if isinstance(value, str) and value.startswith(MATERIALS)
            else value
            for key, value in self.settings.items()
        }

    def local_data(self, materials: Path) -> list[str]:
        """Name the clients' folders, in the scenario of local data."""
        if self.settings.get("scenario") != "local-data":
            return []
        return [str(materials / f"client-{n}") for n in range(self.settings["clients"])]


SIZE = {
    **{"clients": 2, "tasks": 2, "rounds": 2, "classes_per_task": 3},
    **{"max_train_per_class": 40, "max_test_per_class": 16, "epochs": 3},
}
DIGITS = {"dataset": "digits", "model": "small", **SIZE}
GROWING = {**DIGITS, "scenario": "class-incremental", "growing_head": True}
PUBLIC = {**DIGITS, "scenario": "class-incremental"}
CONCEPTS = {
    **{"scenario": "concepts", "dataset": "digits", "clients": 2, "tasks": 2},
    **{"model": "small", "scenario.window": 24, "rounds": 6},
    **{"max_train_per_class": 40, "max_test_per_class": 16},
}
TOPICS = {
    **{"dataset": "topics", "data_root": MATERIALS, "clients": 2, "tasks": 2},
    "rounds": 2,
}
ENCODED = {
    **TOPICS,
    **{"model.encoder": f"{MATERIALS}text-encoder", "model.max_tokens": 12},
    "learning_rate": 0.01,
}
WORDS = {**TOPICS, "word_vectors": f"{MATERIALS}topics.vec", "model": "kim-cnn"}
IMAGES_ENCODED = {**PUBLIC, "model.encoder": f"{MATERIALS}image-encoder"}
SYNTHESIS = {
    **{"strategy.synthetic_samples": 16, "strategy.synthetic_batch": 8},
    "strategy.generator_steps": 3,
}

# ---- one case a method, on what suits it

METHODS = {
    "analytic": {**PUBLIC, "strategy.min_samples": 5},
    "apd": DIGITS,
    "bic": GROWING,
    "concept-matching": CONCEPTS,
    "dde-icarl": GROWING,
    "der": GROWING,
    "ewc": DIGITS,
    "fedavg": DIGITS,
    "fedavg-ft": DIGITS,
    "fedcbdr": GROWING,
    "fedcurv": DIGITS,
    "fedet": {**ENCODED, "model": "enhanced-transformer"},
    "fedprox": DIGITS,
    "fedprox-apd": DIGITS,
    "fedprox-ewc": DIGITS,
    "fedprox-ssgd": DIGITS,
    "fedseit": WORDS,
    "fedweit": DIGITS,
    "finetune": PUBLIC,
    "fot": DIGITS,
    "glfc": PUBLIC,
    "icarl": GROWING,
    "idbr": {**ENCODED, "model": "disentangled-transformer"},
    "lander": {**GROWING, **SYNTHESIS, "strategy.encoder": f"{MATERIALS}text-encoder"},
    "local": DIGITS,
    "lorm": {**IMAGES_ENCODED, "model": "lora-vit"},
    "lwf": GROWING,
    "matched-ensemble": DIGITS,
    "mtl": PUBLIC,
    "podnet": GROWING,
    "replay": {**PUBLIC, "strategy.buffer_fraction": 0.2},
    "replay-reg": {**PUBLIC, "strategy.buffer_fraction": 0.2},
    "scaffold": DIGITS,
    "ss-il": GROWING,
    "stable-sgd": DIGITS,
    "stl": DIGITS,
    "target": {**GROWING, **SYNTHESIS},
}

SMALL = {
    **{f"methods/{n}": Case({"strategy": n, **s}) for n, s in METHODS.items()},
}

# ---- default scenarios, in minutes each

COMMON = {"training.lr_patience": 3, "federation.evaluate_before_aggregation": False}
WHOLE = {
    **{"fedavg": {}, "fedprox": {"strategy.mu": 0.01}, "ewc": {}, "local": {}},
    **{"stl": {}, "fedweit": {}, "fedseit": {"strategy.lambda2": 100.0}},
}
FEW = {
    **{"clients": 2, "tasks": 2},
    **{"max_train_per_class": 12, "max_test_per_class": 8},
}
ENCODERS = ("finetune", "replay", "replay-reg", "mtl", "fedet")


def whole(strategy: str, stop: int = 0, **more: object) -> Case:
    """Describe a run on a strategy's default scenario."""
    of_strategy = WHOLE.get(strategy, {})
    return Case({"strategy": strategy, **COMMON, **of_strategy, **more}, stop)


LONG = {
    **{f"whole/{n}": whole(n) for n in (*WHOLE, "concept-matching")},
    **{f"whole/{n} asynchronous": whole(n, asynchronous=True) for n in WHOLE},
    **{f"whole/{n} resumed": whole(n, 30) for n in WHOLE},
    "whole/concept-matching resumed": whole("concept-matching", 200),
    **{f"encoders/{n} few": whole(n, **FEW) for n in ENCODERS},
    **{
        f"encoders/{n} few asynchronous": whole(n, asynchronous=True, **FEW)
        for n in ENCODERS
        if n != "fedet"
    },
    **{f"encoders/{n} few resumed": whole(n, 5, **FEW) for n in ENCODERS},
    **{f"encoders/{n}": whole(n) for n in ENCODERS},
}

ON_FLOWER = (
    "methods/fedavg",
    "methods/fedweit",
)
"""Small cases that are also run on Flower's simulation runtime."""
