import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup import build
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve


def refusal(**settings):
    """Return the sentence with which settings are refused, before anything is run."""
    with pytest.raises(ConfigError) as problem:
        build.validate(resolve(RunConfig.from_settings(**settings)))
    (line,) = str(problem.value).splitlines()
    return line


CONCEPTS = {"name": "concepts"}
CLASSES = {"name": "class-incremental"}
UNVALIDATED = {"name": "overlapped", "valid_fraction": 0.0}
CONSTANT = {"lr_patience": 0}
FEDET = {"strategy": "fedet", "dataset": "digits", "model": "small"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"public_path": "p.npz"},
            "data.public_path: got 'p.npz', expected none, but for a strategy that "
            "trains on the server, with local data",
        ),
        (
            {"class_names": "a,b"},
            "data.class_names: got 'a,b', expected none, since the data sets name "
            "their classes",
        ),
        (
            {"scenario": "concepts", "head": "multi"},
            "model.head: got 'multi', expected 'single' for scenario concepts, whose "
            "concepts are hidden",
        ),
        (
            {"scenario": "class-incremental", "head": "multi"},
            "model.head: got 'multi', expected 'single' for scenario "
            "class-incremental, where a sample's task is unknown",
        ),
        (
            {"scenario": "concepts", "asynchronous": True},
            "asynchronous.enabled: got True, expected false for scenario concepts, in "
            "which clients meet concepts by rounds",
        ),
        (
            {"scenario": "overlapped", "asynchronous": True, "evaluate_every": 2},
            "federation.evaluate_every: got 2, expected 0 in an asynchronous run, "
            "whose clients are tested at the ends of their tasks",
        ),
        (
            {"scenario": {**CONCEPTS, "reveal_ids": True, "mean_duration": 0}},
            "scenario.reveal_ids: got True, expected it with hidden concepts of which "
            "a client has one at a time",
        ),
        (
            {"scenario": {**CONCEPTS, "joint": True}},
            "scenario.joint: got True, expected false for scenario concepts, whose "
            "tasks are not shared out beforehand",
        ),
        (
            {"scenario": "overlapped", "head": "single", "growing_head": True},
            "model.growing_head: got True, expected false for scenario overlapped, in "
            "which clients do not meet new classes together",
        ),
        (
            {"scenario": {**CLASSES, "joint": True}, "growing_head": True},
            "model.growing_head: got True, expected false with scenario.joint, by "
            "which all classes are there from the start",
        ),
        (
            {"scenario": CLASSES, "growing_head": True, **FEDET},
            "model.growing_head: got True, expected false for fedet, which trains on "
            "the server on all classes",
        ),
        (
            {"word_vectors": "w.txt"},
            "data.word_vectors: got 'w.txt', expected none, as model small needs none",
        ),
        (
            {
                "dataset": "stdlib-docs",
                "model": "transformer",
                "word_vectors": "w.txt",
            },
            "data.word_vectors: got 'w.txt', expected none, as model transformer needs "
            "none",
        ),
        (
            {"strategy": "replay", "dataset": "digits", "scenario": "overlapped"},
            "model.head: got 'multi', expected 'single' for replay, which trains one "
            "head for several tasks together",
        ),
        (
            {"scenario": UNVALIDATED},
            "training.lr_patience: got 5, expected 0 with scenario.valid_fraction 0, "
            "as nothing tells when training stagnates",
        ),
        (
            {"scenario": UNVALIDATED, **CONSTANT, "early_stopping_patience": 2},
            "training.early_stopping_patience: got 2, expected 0 with "
            "scenario.valid_fraction 0, as nothing tells when training stagnates",
        ),
        (
            {"scenario": {**UNVALIDATED, **CONCEPTS}, **CONSTANT},
            "scenario.valid_fraction: got 0.0, expected above 0 for hidden concepts, "
            "which a client tells by validation samples",
        ),
        (
            {
                "scenario": UNVALIDATED,
                **CONSTANT,
                "strategy": {"name": "fedweit", "drop_harmful": True},
            },
            "scenario.valid_fraction: got 0.0, expected above 0 for fedweit with these "
            "parameters, which decides by validation samples",
        ),
        (
            {"strategy": "replay", "dataset": "digits", "scenario": "concepts"},
            "scenario.name: got 'concepts', expected one whose tasks are told apart, "
            "for replay, which trains one head for several tasks together",
        ),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(settings, expected):
    assert refusal(**settings) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"scenario": {**CONCEPTS, "reveal_ids": True, "mean_duration": 8}},
        {"strategy": "fedavg", "scenario": "class-incremental"},
        {"strategy": "fedweit", "asynchronous": True},
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
NAMES = "different names of all classes, for a single head to number them alike"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({**LOCAL, "dataset": "digits"}, "data.datasets: got 'digits', expected none"),
        (
            {**LOCAL, "model": ""},
            "model.name: got '', expected the name of a network that suits the data",
        ),
        (
            {**LOCAL, "num_features": 0},
            "model.num_features: got 0, expected the numbers in a sample, or in a word "
            "vector",
        ),
        (
            {**LOCAL, "model": "lenet"},
            "model.num_features: got 3, expected 0",
        ),
        (
            {**LOCAL, "class_names": "a,b"},
            "data.class_names: got 'a,b', expected none but with a single head",
        ),
        (
            {**LOCAL, "head": "single"},
            f"data.class_names: got '', expected {NAMES}",
        ),
        (
            {**LOCAL, "head": "single", "class_names": "a,b,a"},
            f"data.class_names: got 'a,b,a', expected {NAMES}",
        ),
        (
            {**LOCAL, "classes_per_task": 1},
            "scenario.classes_per_task: got 1, expected at least 2, the most classes "
            "that any task has",
        ),
        (
            {**TEXTS, "strategy": "fedet", "public_path": "p.jsonl"},
            "data.public_path: got 'p.jsonl', expected none with word vectors, which "
            "only clients have",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_looked_up_must_be_said_with_local_data(settings, expected):
    assert refusal(**settings) == f"{expected}, for scenario local-data"


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
