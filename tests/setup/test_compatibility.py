import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.setup import build
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve

CONCEPTS = {"name": "concepts"}
UNVALIDATED = {"name": "overlapped", "valid_fraction": 0.0}
CONSTANT = {"lr_patience": 0}


@pytest.mark.parametrize(
    "settings",
    [
        {"scenario": {**CONCEPTS, "reveal_ids": True, "mean_duration": 8}},
        {"strategy": "fedavg", "scenario": "class-incremental"},
        {"strategy": "fedweit", "asynchronous": True},
        {"strategy": "fedavg", "dataset": "digits", "wire_dtype": "int8"},
        {
            "strategy": "analytic",
            "dataset": "digits",
            "wire_dtype": "float16",
        },
        {"strategy": "analytic", "dataset": "digits", "local_only": True}
        | {"wire_dtype": "int8"},
        {"strategy": "local", "wire_dtype": "int8"},
        {"strategy": "fedweit", "scenario": UNVALIDATED, **CONSTANT},
        {
            "scenario": {**UNVALIDATED, **CONCEPTS, "reveal_ids": True},
            **CONSTANT,
        },
        {
            "strategy": "replay",
            "dataset": "digits",
            "scenario": {**CONCEPTS, "reveal_ids": True},
        },
    ],
    ids=str,
)
def test_settings_that_do_are_not(settings):
    build.validate(resolve(RunConfig.from_settings(**settings)))


LOCAL = {
    "strategy": "fedavg",
    "scenario": "local-data",
    "model": "mlp",
    "num_features": 3,
    "classes_per_task": 2,
}
TEXTS = {**LOCAL, "model": "kim-cnn"}


@pytest.mark.parametrize(
    "settings", [LOCAL, TEXTS, {**LOCAL, "head": "single", "class_names": "a,b,c"}]
)
def test_local_data_with_all_that_is_asked_are_not_refused(settings):
    run = resolve(RunConfig.from_settings(**settings, clients=2))
    assert run.local_data
    build.validate(run)
    names = run.config.data.classes
    assert run.config.scenario.classes_per_task == 2
    spec = Built(run).local_data
    assert spec.logits == (len(names) or 2)
