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
    "coda-prompt": {**IMAGES_ENCODED, "model": "prompted-vit"},
    "concept-matching": CONCEPTS,
    "dde-icarl": GROWING,
    "der": GROWING,
    "dolfin": {**IMAGES_ENCODED, "model": "lora-vit", "model.layers": "keys-values"},
    "ewc": DIGITS,
    "fed-lora": {**IMAGES_ENCODED, "model": "lora-vit"},
    "fedavg": DIGITS,
    "fedavg-ft": DIGITS,
    "fedcbdr": GROWING,
    "fedcurv": DIGITS,
    "fedet": {**ENCODED, "model": "enhanced-transformer", "model.num_blocks": 0},
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


def of(strategy: str, stop: int = 0, **more: object) -> Case:
    """Describe the small run of a strategy, with other settings."""
    return Case({"strategy": strategy, **METHODS[strategy], **more}, stop)


def params(**given: object) -> dict[str, Any]:
    """Describe parameters of a strategy."""
    return {f"strategy.{name}": value for name, value in given.items()}


FIXED = {"strategy": "replay", **PUBLIC, "strategy.budget": "fixed"}
"""Replay with a memory of a fixed size."""

VARIANTS = {
    "analytic class-sums": of("analytic", **params(form="class-sums")),
    "analytic lift": of("analytic", **params(lift="relu", width=60)),
    "analytic low-rank": of("analytic", **params(form="low-rank", rank=8)),
    "analytic ridge": of("analytic", **params(head="ridge", penalty=0.1)),
    "analytic tasks": Case({"strategy": "analytic", **DIGITS}),
    "apd consolidation": of("apd", tasks=3, **params(consolidate_every=2, groups=1)),
    "concept-matching birch": of("concept-matching", **params(clustering="birch")),
    "concept-matching entropy": of("concept-matching", **params(choice="entropy")),
    "concept-matching inputs": of("concept-matching", **params(choice="inputs")),
    "concept-matching literal": of("concept-matching", **params(matching="literal")),
    "concept-matching sketch": of(
        "concept-matching", **params(exact_clients=2, sketch=64), clients=4
    ),
    "der reservoir full": of("der", **params(memory_samples=20)),
    "der without labels": of("der", **params(beta=0.0)),
    "ewc decay": of("ewc", tasks=3, **params(decay=0.5, fisher_examples=20)),
    **{
        f"fed-lora {rule}": of("fed-lora", **params(aggregation=rule))
        for rule in ("mean", "frozen", "residual")
    },
    "fedavg-ft concepts": Case({"strategy": "fedavg-ft", **CONCEPTS}),
    "fedet mean": of("fedet", **params(consolidation="mean", router="prototype")),
    "fedet network": of("fedet", **params(router="network", distil_on="memory")),
    "fedet noised": of("fedet", **params(distribution="noised", entropy="withheld")),
    "fedseit dls": of("fedseit", **params(dls=True)),
    "fedseit sit": of(
        "fedseit", **params(knowledge="sit:1", clusters=3, members=2), tasks=3
    ),
    "fedseit thresholded": of(
        "fedseit",
        **params(knowledge="sit:1", overlap="thresholded", clusters=3, members=2),
    ),
    "fedweit drop-harmful": of("fedweit", **params(drop_harmful=True)),
    "fedweit gradient": of("fedweit", **params(solver="gradient", gate="sigmoid")),
    "fedweit literal": of("fedweit", **params(aggregation="literal", gate="sigmoid")),
    "fedweit three tasks": of("fedweit", tasks=3, **params(knowledge="all")),
    "glfc entropy": of("glfc", **params(transition="entropy", entropy_rise=0.01)),
    "icarl head": of("icarl", **params(classifier="head", distillation=False)),
    "idbr fixed": of("idbr", **params(budget="fixed", memory_samples=20)),
    "lorm own": of("lorm", **params(contrast="own")),
    "lwf all": of("lwf", **params(contrast="all")),
    "matched-ensemble alone": of("matched-ensemble", **params(ask="own")),
    "matched-ensemble single": of("matched-ensemble", head="single"),
    **{
        f"replay {policy}": Case(
            {**FIXED, **params(memory_samples=24, memory_policy=policy)}
        )
        for policy in ("balanced", "herding", "reservoir", "leverage")
    },
    "replay bytes": Case({**FIXED, **params(memory_bytes=3000)}),
    "scaffold start": of("scaffold", **params(variate="start")),
    "stl members": of("stl", **params(members=2)),
    "target concepts": Case(
        {"strategy": "target", **CONCEPTS, **SYNTHESIS, "scenario.reveal_ids": True}
    ),
}

INT8 = {"wire_dtype": "int8"}
BY_LEVELS = ("fedavg", "fedweit", "concept-matching", "matched-ensemble", "fedet")

WIRE = {
    "float16": of("fedavg", wire_dtype="float16"),
    "float16 fedweit": of("fedweit", wire_dtype="float16"),
    "bfloat16": of("scaffold", wire_dtype="bfloat16"),
    **{f"int8 {name}": of(name, **INT8) for name in BY_LEVELS},
    "int8 target": of("target", **INT8),
    "int8 without feedback": of("fedavg", **INT8, error_feedback=False),
    "int8 fraction": of("fedavg", **INT8, clients=4, client_fraction=0.5, rounds=3),
    "int8 resumed": of("fedavg", 5, **INT8),
    "int8 asynchronous": of("fedavg", **INT8, asynchronous=True),
    "int8 asynchronous resumed": of("fedavg", 5, **INT8, asynchronous=True),
    "int4": of("fedavg", wire_dtype="int4"),
    "ternary": of("fedavg", wire_dtype="ternary"),
    "ternary fedweit": of("fedweit", wire_dtype="ternary"),
    "ternary without feedback": of(
        "fedavg", wire_dtype="ternary", error_feedback=False
    ),
}

MANY = {"clients": 5, "max_train_per_class": 60}


def hostile(strategy: str, attack: str, **more: object) -> Case:
    """Describe a run in which the last of five clients is hostile."""
    attackers = {"attack": attack, "attackers": 1} if attack else {}
    return of(strategy, **MANY, **attackers, **more)


RULES = {
    "mean sign-flip": hostile("fedavg", "sign-flip"),
    "median": hostile("fedavg", "", aggregation="median"),
    "median sign-flip": hostile("fedavg", "sign-flip", aggregation="median"),
    "trimmed-mean noise": hostile("fedavg", "noise", aggregation="trimmed-mean"),
    "geometric-median scaling": hostile(
        "fedavg", "scaling", aggregation="geometric-median"
    ),
    "krum": hostile("fedavg", "", aggregation="krum"),
    "krum label-flip": hostile("fedavg", "label-flip", aggregation="krum"),
    "krum scaling icarl": hostile("icarl", "scaling", aggregation="krum"),
    "median counts scaffold": hostile("scaffold", "counts", aggregation="median"),
    "trimmed-mean noise fedweit": hostile(
        "fedweit", "noise", aggregation="trimmed-mean"
    ),
    "adapters fedweit": hostile("fedweit", "adapters"),
    "median concept-matching": hostile(
        "concept-matching", "sign-flip", aggregation="median"
    ),
    "clip scaling": hostile("fedavg", "scaling", clip_to_median=1.5),
    "uniform counts": hostile("fedavg", "counts", weighting="uniform"),
    "examples-limit counts": hostile("fedavg", "counts", examples_limit=1.0),
    "examples-limit analytic": hostile("analytic", "", examples_limit=1.0),
}

SUMS = {"clients": 4, "secure_aggregation": True}
SECURE = {
    "fedavg": of("fedavg", **SUMS),
    "fedavg float16": of("fedavg", **SUMS, wire_dtype="float16"),
    "fedavg fraction": of("fedavg", **{**SUMS, "clients": 5}, client_fraction=0.6),
    "fedavg resumed": of("fedavg", 9, **SUMS),
    "analytic": of("analytic", **SUMS, **params(form="gram")),
    "bic": of("bic", **SUMS),
    "ewc": of("ewc", **SUMS),
    "fedprox-apd": of("fedprox-apd", **SUMS),
    "target": of("target", **SUMS),
    "client-level privacy": of(
        "fedavg", **SUMS, unit="client", noise_multiplier=0.5, clip=0.5
    ),
}

OF_CLIENTS = {"unit": "client", "noise_multiplier": 0.5, "clip": 0.5}
OF_EXAMPLES = {
    **{"unit": "example", "noise_multiplier": 0.6, "clip": 1.0},
    **{"head": "single", "learning_rate": 0.01},
}
BUDGET = 55.0
"""Of three rounds with this noise, and not of four."""
PRIVACY = {
    "client": of("fedavg", **OF_CLIENTS),
    "client fedweit": of("fedweit", **OF_CLIENTS),
    "client observed by clients": of("fedavg", **OF_CLIENTS, observer="clients"),
    "client budget": of("fedavg", **OF_CLIENTS, epsilon=BUDGET),
    "client int8": of("fedavg", **OF_CLIENTS, **INT8),
    "client resumed": of("fedavg", 5, **OF_CLIENTS),
    "client median": of("fedavg", **OF_CLIENTS, clients=4, aggregation="median"),
    "example": of("fedavg", **OF_EXAMPLES),
    "example fedprox": of("fedprox", **OF_EXAMPLES),
    "example stable-sgd": of("stable-sgd", **OF_EXAMPLES),
    "example resumed": of("fedavg", 5, **OF_EXAMPLES),
    "example fedavg-ft": of("fedavg-ft", **OF_EXAMPLES),
    "without scores": of("fedavg", scores=False),
}

QUORUM = {"clients": 3, "rounds": 4, "quorum": 0.6, "simulated_durations": "1,1,1.5"}
ROUNDS = {
    "quorum": of("fedavg", **QUORUM),
    "quorum fedweit": of("fedweit", **QUORUM),
    "quorum scaffold": of("scaffold", **QUORUM),
    "quorum deadline": of("fedavg", **QUORUM, deadline_factor=1.5),
    "quorum resumed": of("fedavg", 9, **QUORUM),
    "fraction": of("fedavg", clients=4, client_fraction=0.5, rounds=3),
    "fraction fedweit": of("fedweit", clients=4, client_fraction=0.5, rounds=3),
    "fraction icarl": of("icarl", clients=4, client_fraction=0.5, rounds=3),
    "evaluate every": of("fedavg", evaluate_every=1, per_class=True),
    "update norm": of("fedavg", max_update_norm=2.0),
}

NOT_ASYNCHRONOUS = {
    *("coda-prompt", "concept-matching", "dolfin", "fed-lora", "fedcbdr", "fedet"),
    *("fot", "glfc", "lander", "lorm", "matched-ensemble", "target"),
}
DURATIONS = {"asynchronous": True, "simulated_durations": "1,1.75"}
ASYNCHRONOUS = {
    **{n: of(n, **DURATIONS) for n in METHODS if n not in NOT_ASYNCHRONOUS},
    **{
        f"{name} resumed": of(name, 5, **DURATIONS)
        for name in ("analytic", "fedavg", "fedweit", "fedseit", "icarl", "scaffold")
    },
    "mixing": of("fedavg", **DURATIONS, mixing=0.3, staleness_exponent=0.0),
    "real time": of("fedweit", asynchronous=True),
}

RESUMED = {name: of(name, 5) for name in METHODS}

LOCAL_ONLY = {
    name: of(name, local_only=True)
    for name in ("ewc", "fedavg", "fedet", "fedseit", "fedweit", "icarl", "scaffold")
}

LOCAL = {
    **{"scenario": "local-data", "model": "mlp", "num_features": 3},
    **{"clients": 2, "tasks": 2, "rounds": 2, "epochs": 3},
}
ONE_HEAD = {"head": "single", "class_names": "ant,bee,cow,dog,emu"}
INCREMENTAL = {**PUBLIC, "strategy": "fedavg"}
SCENARIOS = {
    "classes": of("fedavg", scenario="classes"),
    "mixed": of(
        "fedavg",
        **{"scenario": "mixed", "dataset": "digits,relabelled-3:digits"},
    ),
    "overlapped three clients": of("fedavg", clients=3, tasks=3),
    "concepts": Case({"strategy": "fedavg", **CONCEPTS}),
    "concepts with ids": Case(
        {"strategy": "fedavg", **CONCEPTS, "scenario.reveal_ids": True}
    ),
    "concepts with ids ewc": Case(
        {"strategy": "ewc", **CONCEPTS, "scenario.reveal_ids": True}
    ),
    "concepts with ids fedweit": Case(
        {"strategy": "fedweit", **CONCEPTS, "scenario.reveal_ids": True}
    ),
    "concepts at once": Case(
        {"strategy": "fedavg", **CONCEPTS, "scenario.mean_duration": 0}
    ),
    "concepts lasting": of("concept-matching", **{"scenario.mean_duration": 3}),
    "concepts merged": of(
        "concept-matching",
        **{
            "dataset": "digits,relabelled-3:digits",
            "scenario.merge_labels": "digits=relabelled-3:digits",
        },
    ),
    "incremental": Case(INCREMENTAL),
    "incremental iid": Case({**INCREMENTAL, "scenario.split": "iid"}),
    "incremental dirichlet": Case({**INCREMENTAL, "scenario.split": "dirichlet:0.5"}),
    "incremental joint": Case({**INCREMENTAL, "joint": True}),
    "incremental growing head": Case({**INCREMENTAL, "growing_head": True}),
    **{
        f"local data {name}": Case({"strategy": name, **LOCAL, "classes_per_task": 2})
        for name in ("analytic", "fedavg", "fedweit", "matched-ensemble")
    },
    **{
        f"local data one head {name}": Case({"strategy": name, **LOCAL, **ONE_HEAD})
        for name in ("icarl", "replay", "scaffold")
    },
    "local data resumed": Case(
        {"strategy": "fedavg", **LOCAL, "classes_per_task": 2}, 5
    ),
    "local data asynchronous": Case(
        {"strategy": "fedavg", **LOCAL, **DURATIONS, "classes_per_task": 2}
    ),
}

MADE = {
    **{"data_root": MATERIALS, "clients": 2, "tasks": 2, "rounds": 2, "epochs": 2},
    "classes_per_task": 2,
}
FEW_IMAGES = {"max_train_per_class": 12, "max_test_per_class": 6, "epochs": 1}
MODELS = {
    "words": Case({"strategy": "fedavg", **WORDS}),
    "words trained": Case({"strategy": "fedavg", **TOPICS, "model": "kim-cnn"}),
    **{
        name: Case({"strategy": "fedavg", **ENCODED, "model": name})
        for name in (
            *("transformer", "enhanced-transformer", "lora-transformer"),
            "frozen-transformer",
        )
    },
    **{
        name: Case({"strategy": "fedavg", **IMAGES_ENCODED, "model": name})
        for name in ("vit", "enhanced-vit", "lora-vit", "frozen-vit")
    },
    "frozen-transformer analytic": Case(
        {
            **{"strategy": "analytic", **ENCODED, "model": "frozen-transformer"},
            **{"strategy.min_samples": 5},
        }
    ),
    "transformer bfloat16": Case(
        {
            **{"strategy": "fedavg", **ENCODED, "model": "transformer"},
            **{"model.dtype": "bfloat16"},
        }
    ),
    **{
        name: of("fedavg", model=name, **FEW_IMAGES)
        for name in ("grey-cnn", "lenet", "efficientnet", "resnet18")
    },
    **{
        f"{name} fedweit": of("fedweit", model=name, **FEW_IMAGES)
        for name in ("grey-cnn", "lenet", "efficientnet")
    },
    "lenet dropout": of(
        "fedavg", model="lenet", **FEW_IMAGES, **{"model.dropout": 0.5}
    ),
    "patch-filters": of("analytic", model="patch-filters"),
    "efficientnet-lite0": of("analytic", model="efficientnet-lite0", **FEW_IMAGES),
    "har-cnn": Case({"strategy": "fedweit", **MADE, "dataset": "waves"}),
    "mlp": Case({"strategy": "fedweit", **MADE, "dataset": "table"}),
    "one head": of("fedavg", head="single"),
    "one head fedweit": of("fedweit", head="single"),
    "mask logits": of("fedavg", head="single", mask_logits=True),
    "mask loss": of("fedavg", head="single", mask_logits=True, mask_loss=True),
    "mask logits concepts": Case(
        {"strategy": "fedavg", **CONCEPTS, "mask_logits": True}
    ),
}

SGD = {"optimizer": "sgd", "learning_rate": 0.05}
TRAINING = {
    "sgd": of("fedavg", **SGD),
    "momentum": of("fedweit", **SGD, momentum=0.8, weight_decay=0.001),
    "momentum resumed": of("fedavg", 5, **SGD, momentum=0.8),
    "bfloat16": of("fedavg", precision="bfloat16"),
    "patience": of("fedavg", epochs=12, lr_patience=1, early_stopping_patience=2),
    "no validation": of("fedavg", valid_fraction=0.0, lr_patience=0),
    "batches": of("fedavg", batch_size=8, count_multiply_adds=True),
}

GROUPS = {
    "methods": {name: of(name) for name in METHODS},
    "variants": VARIANTS,
    "wire": WIRE,
    "rules": RULES,
    "secure": SECURE,
    "privacy": PRIVACY,
    "rounds": ROUNDS,
    "asynchronous": ASYNCHRONOUS,
    "resumed": RESUMED,
    "local-only": LOCAL_ONLY,
    "scenarios": SCENARIOS,
    "models": MODELS,
    "training": TRAINING,
}
SMALL = {
    f"{group}/{name}": case
    for group, cases in GROUPS.items()
    for name, case in cases.items()
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
    *("methods/concept-matching", "methods/fedavg", "methods/fedweit"),
    *("rounds/quorum", "secure/fedavg", "wire/int8 fedavg"),
)
"""Small cases that are also run on Flower's simulation runtime."""
