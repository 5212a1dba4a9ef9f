import tomllib

import pytest

from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.upgrade import is_flat, upgrade
from fcl_flower.core.errors import ConfigError

# What the last version with flat keys wrote into a run's folder.
FORMER = """
strategy = "fedweit"
label = ""
isolated = false
set = "lambda1 = 0.5"
scenario = "overlapped"
dataset = "digits"
data-root = ""
word-vectors = ""
model = "small"
features = 0
backbone = ""
max-tokens = 64
bottleneck = 48
placement = "both"
enhanced-blocks = 0
encoder-precision = "float32"
head = "multi"
clients = 2
tasks = 2
classes-per-task = 2
labels = ""
valid-fraction = 0.15
window = 320
stay = 1
class-share = 0.6
public-fraction = 0.1
public-dataset = ""
public-data = ""
same-labels = ""
train-samples = 0
test-samples = 0
concept-ids = false
rounds = 1
evaluate-every = 0
epochs = 1
batch-size = 20
learning-rate = 0.001
patience = 3
stop-after = 0
fraction = 1.0
mode = "synchronous"
mixing = 0.6
staleness = 0.5
pace = ""
min-replies = 1
attempts = 3
timeout = 3600.0
norm-limit = 1000.0
seed = 7
precision = "float32"
device = "auto"
threads = 1
memory = "context"
name = ""
output = "runs/x"
resume = false
"""
KEYS = tomllib.loads(FORMER)

# Each former key with a value that was no default, and what it is now.
MOVED = {
    "strategy": ("ewc", "strategy.name", "ewc"),
    "label": ("x", "run.title", "x"),
    "isolated": (True, "strategy.local_only", True),
    "set": ("mu = 0.5", "strategy.mu", 0.5),
    "scenario": ("mixed", "scenario.name", "mixed"),
    "dataset": ("a,b", "data.datasets", "a,b"),
    "data-root": ("d", "data.root", "d"),
    "word-vectors": ("w", "data.word_vectors", "w"),
    "model": ("resnet18", "model.name", "resnet18"),
    "features": (3, "model.num_features", 3),
    "backbone": ("b", "model.encoder", "b"),
    "max-tokens": (32, "model.max_tokens", 32),
    "bottleneck": (8, "model.bottleneck", 8),
    "placement": ("attention", "model.placement", "attention"),
    "enhanced-blocks": (2, "model.num_blocks", 2),
    "encoder-precision": ("bfloat16", "model.dtype", "bfloat16"),
    "head": ("single", "model.head", "single"),
    "clients": (5, "scenario.clients", 5),
    "tasks": (7, "scenario.tasks", 7),
    "classes-per-task": (3, "scenario.classes_per_task", 3),
    "labels": ("x,y", "data.class_names", "x,y"),
    "valid-fraction": (0.2, "scenario.valid_fraction", 0.2),
    "window": (64, "scenario.window", 64),
    "stay": (8, "scenario.mean_duration", 8),
    "class-share": (0.5, "scenario.class_fraction", 0.5),
    "public-fraction": (0.2, "data.public_fraction", 0.2),
    "public-dataset": ("p", "data.public_dataset", "p"),
    "public-data": ("p.npz", "data.public_path", "p.npz"),
    "same-labels": ("a=b", "scenario.merge_labels", "a=b"),
    "train-samples": (9, "scenario.max_train_per_class", 9),
    "test-samples": (9, "scenario.max_test_per_class", 9),
    "concept-ids": (True, "scenario.reveal_ids", True),
    "rounds": (9, "federation.rounds_per_task", 9),
    "evaluate-every": (2, "federation.evaluate_every", 2),
    "epochs": (2, "training.epochs", 2),
    "batch-size": (5, "training.batch_size", 5),
    "learning-rate": (0.5, "training.learning_rate", 0.5),
    "patience": (0, "training.lr_patience", 0),
    "stop-after": (4, "training.early_stopping_patience", 4),
    "fraction": (0.5, "federation.client_fraction", 0.5),
    "mode": ("asynchronous", "asynchronous.enabled", True),
    "mixing": (0.9, "asynchronous.mixing", 0.9),
    "staleness": (1.0, "asynchronous.staleness_exponent", 1.0),
    "pace": (",", None, None),
    "min-replies": (2, "federation.min_updates", 2),
    "attempts": (1, "federation.max_attempts", 1),
    "timeout": (60.0, "federation.timeout", 60.0),
    "norm-limit": (10.0, "federation.max_update_norm", 10.0),
    "seed": (3, "run.seed", 3),
    "precision": ("float16", "federation.wire_dtype", "float16"),
    "device": ("cpu", "training.device", "cpu"),
    "threads": (2, "training.threads", 2),
    "memory": ("m", "run.client_state", "m"),
    "name": ("n", "run.id", "n"),
    "output": ("o", "run.output", "o"),
    "resume": (True, "run.resume", True),
}


def then(found):
    """Return a configuration with the default that was another one then."""
    return found.replace(lr_patience=3)


def upgraded(values):
    """Return today's configuration of former values."""
    assert is_flat(values)
    found = tomllib.loads(upgrade(values))
    assert not is_flat(found)
    return RunConfig.of(found)


def test_every_former_key_is_tested():
    assert MOVED.keys() == KEYS.keys()


@pytest.mark.parametrize("key", [key for key in MOVED if key != "pace"])
def test_every_former_key_has_a_place(key):
    value, new, expected = MOVED[key]
    blank, flat = then(RunConfig()).flat(), upgraded({key: value}).flat()
    assert {k: v for k, v in flat.items() if blank.get(k) != v} == {new: expected}


def test_former_durations_have_a_place():
    found = upgraded({"pace": "1,4", "clients": 2})
    assert found.asynchronous.simulated_durations == "1,4"


def test_former_defaults_are_todays_or_left_out():
    # What is no default of an empty configuration was decided when a run began.
    decided = {
        **{"scenario": "", "dataset": "", "model": "", "head": "", "set": ""},
        **{"clients": 0, "classes-per-task": 0, "rounds": 0, "batch-size": 0},
        **{"learning-rate": 0.0, "tasks": 4, "seed": 0, "output": ""},
    }
    assert upgraded({**KEYS, **decided}) == then(RunConfig())


@pytest.mark.parametrize(
    ("former", "key", "expected"),
    [
        ({"clients": 3}, "training.lr_patience", 3),
        ({"clients": 3, "patience": 3}, "training.lr_patience", 3),
        ({"clients": 3, "patience": 5}, "training.lr_patience", 5),
        ({"strategy": "fedprox"}, "strategy.mu", 0.01),
        ({"strategy": "fedprox", "set": "mu = 1.0"}, "strategy.mu", 1.0),
    ],
    ids=str,
)
def test_a_default_that_has_changed_since_keeps_its_value(former, key, expected):
    assert upgraded(former).flat()[key] == expected


def test_the_record_of_a_former_run_is_the_same_run():
    expected = RunConfig.of(
        {
            "strategy": {"name": "fedweit", "lambda1": 0.5},
            "scenario": {
                **{"name": "overlapped", "clients": 2, "tasks": 2},
                "classes_per_task": 2,
            },
            "data.datasets": "digits",
            "model": {"name": "small", "head": "multi"},
            "training": {"batch_size": 20, "learning_rate": 0.001},
            "federation.rounds_per_task": 1,
            "run": {"seed": 7, "output": "runs/x"},
        }
    )
    assert upgraded(KEYS) == then(expected)


@pytest.mark.parametrize(
    ("former", "expected"),
    [
        ({"model": "lenet-small"}, {"model": {"name": "lenet", "width": 0.8}}),
        ({"model": "lenet-large"}, {"model": {"name": "lenet", "width": 1.2}}),
        ({"scenario": "own"}, {"scenario.name": "local-data"}),
        ({"mode": "asynchronous"}, {"asynchronous.enabled": True}),
        ({"isolated": True}, {"strategy.local_only": True}),
        (
            {"strategy": "replay", "set": "gamma = 0.1"},
            {"strategy": {"name": "replay", "buffer_fraction": 0.1}},
        ),
    ],
    ids=str,
)
def test_what_is_called_otherwise_is_renamed(former, expected):
    assert upgraded(former) == then(RunConfig.of(expected))


def test_parameters_that_a_thing_does_not_have_are_left_out():
    given = {"stay": 8, "class-share": 0.5, "backbone": "b", "bottleneck": 8}
    found = upgraded({**given, "scenario": "overlapped", "model": "lenet"})
    known = RunConfig.from_settings(scenario="overlapped", model="lenet")
    assert found == then(known)
    found = upgraded({**given, "scenario": "concepts", "model": "vit"})
    assert found.scenario.params == {"mean_duration": 8}
    assert found.model.params == {"encoder": "b", "bottleneck": 8}


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"client": 3, "seed": 1}, "client: got 'client', expected one of attempts, "),
        ({"clients": -3}, "scenario.clients: got -3, expected greater than or equal "),
        ({"set": "a", "seed": 1}, "set: got 'a', expected 'key = value, ...' in TOML"),
        ({"seed": 1, "tasks": {"a": 1}}, "tasks: got {'a': 1}, expected a value, as"),
        ({"seeds": [1], "clients": 2}, "clients: got 'clients', expected one of seeds"),
        ({"seeds": [1], "run": {"client": 2}}, "client: got 'client', expected one of"),
        ({"seeds": [1], "run": {"clients": -2}}, "scenario.clients: got -2, expected"),
        ({"variant": [3]}, "study: got 3, expected tables, [run] and [[variant]]"),
    ],
)
def test_what_cannot_be_upgraded_is_refused_in_one_sentence(values, start):
    with pytest.raises(ConfigError) as problem:
        upgrade(values)
    assert str(problem.value).startswith(start)
    assert "\n" not in str(problem.value)


def test_an_unknown_former_key_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'clients'"):
        upgrade({"client": 3})


# ---- studies

STUDY = """
seeds = [3, 1]
isolated-twins = false
[run]
scenario = "concepts"
model = "lenet-small"
clients = 5
epochs = 1
set = "lambda1 = 1.0, kappa = 0.5"
[[variant]]
strategy = "fedweit"
[[variant]]
strategy = "fedweit"
label = "other"
clients = 6
set = "lambda1 = 2.0"
[[variant]]
strategy = "ewc"
set = "strength = 5.0"
model = "resnet18"
mode = "synchronous"
"""


def test_the_variants_of_a_former_study_are_the_same_runs():
    found = tomllib.loads(upgrade(tomllib.loads(STUDY)))
    assert found["seeds"] == [3, 1]
    assert found["local_only_counterparts"] is False
    shared = RunConfig.of(found["run"]).flat()
    assert (shared["scenario.name"], shared["scenario.clients"]) == ("concepts", 5)
    variants = [
        RunConfig.of({**nested(found["run"]), **nested(variant)})
        for variant in found["variant"]
    ]
    small = {"name": "lenet", "width": 0.8}
    concepts = {"name": "concepts", "clients": 5}
    expected = [
        RunConfig.from_settings(
            strategy={"name": "fedweit", "lambda1": 1.0, "kappa": 0.5},
            scenario=concepts,
            model=small,
        ),
        RunConfig.from_settings(
            strategy={"name": "fedweit", "lambda1": 2.0},
            scenario={**concepts, "clients": 6},
            model=small,
            title="other",
        ),
        RunConfig.from_settings(
            strategy={"name": "ewc", "strength": 5.0},
            scenario=concepts,
            model="resnet18",
        ),
    ]
    assert variants == [*map(then, expected)]


def nested(table):
    """Return a table by dotted key."""
    return {
        f"{section}.{key}": value
        for section, keys in table.items()
        for key, value in keys.items()
    }


def test_a_former_study_without_variants_is_one_run():
    found = tomllib.loads(upgrade({"seeds": [2], "run": {"clients": 3}}))
    assert RunConfig.of(found["run"]).scenario.clients == 3
    assert found["variant"] == [{}]
    assert "local_only_counterparts" not in found


@pytest.mark.parametrize(
    ("text", "flat"),
    [
        (FORMER, True),
        (STUDY, True),
        ("clients = 3", True),
        ("isolated-twins = false", True),
        ("[run]\nclients = 3", True),
        ("seeds = [1]\n[run]\nseed = 1", True),
        ('[[variant]]\nstrategy = "ewc"', True),
        ("", False),
        (RunConfig().to_toml(), False),
        ("[run]\nseed = 3", False),
        ("seeds = [1]\n[run]\nscenario.clients = 3", False),
        ('[run]\n[[variant]]\nstrategy.name = "ewc"', False),
        ("run = 3", False),
        ("run = 3\nseeds = [1]", False),
        ("variant = [1]", False),
        ("client = 3", False),
        ("seed = [0]", False),
    ],
)
def test_a_file_of_an_earlier_version_is_told_from_todays(text, flat):
    assert is_flat(tomllib.loads(text)) is flat
