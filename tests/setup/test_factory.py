from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.build import create_model, from_module
from fcl_flower.models.registry import MODELS
from fcl_flower.setup import build
from fcl_flower.setup.build import Built, find_device
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.optimizers import OptimizerChoice
from strategies.local import NoOpStrategy


def small(**values):
    settings = {"clients": 2, "tasks": 2, "classes_per_task": 2}
    return resolve(RunConfig.from_settings(**{**settings, **values}))


def test_a_device_that_is_not_there_is_refused():
    assert find_device("cpu") == "cpu"
    assert find_device("auto") in {"cpu", "cuda"}
    for name in ("gpu", "cuda:97", ""):
        with pytest.raises(ConfigError) as problem:
            find_device(name)
        assert str(problem.value) == (
            f"training.device: got {name!r}, expected auto, cpu or a device that torch "
            "finds here"
        )


def test_a_single_head_knows_all_labels():
    run = small(head="single")
    plan = Built(run).scenario
    network = Built(run).model()
    assert [head.out_features for head in network.heads] == [plan.num_labels]


def test_each_task_has_a_head_of_its_own():
    run = small(head="multi", seed=3)
    multi = Built(run).model()
    assert [head.out_features for head in multi.heads] == [2, 2]
    expected = create_model("small", tasks=2, classes=2, single_head=False, seed=3)
    found = multi.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_all_settings_of_the_scenario_reach_it():
    run = small(seed=5, valid_fraction=0.4)
    plan = Built(run).scenario
    assert (plan.seed, len(plan.clients), plan.classes_per_task) == (5, 2, 2)
    task = plan.clients[0][0]
    share = len(task.valid) / (len(task.valid) + len(task.train))
    assert share == pytest.approx(0.4, abs=0.02)


def test_all_settings_of_the_training_reach_it():
    run = small(
        epochs=3,
        batch_size=7,
        learning_rate=0.25,
        lr_patience=2,
        early_stopping_patience=5,
        optimizer="sgd",
        momentum=0.5,
        weight_decay=0.125,
        nesterov=True,
        precision="bfloat16",
    )
    found = Built(run).training()
    assert found.optimizer == OptimizerChoice("sgd", 0.5, 0.125, nesterov=True)
    assert found.precision == "bfloat16"
    assert (found.epochs, found.batch_size, found.learning_rate) == (3, 7, 0.25)
    assert (found.lr_patience, found.early_stopping_patience) == (2, 5)


def test_all_settings_of_the_rounds_reach_the_schedule():
    run = small(clients=4, rounds=3, client_fraction=0.5, evaluate_every=2, seed=4)
    schedule = Built(run).schedule
    assert schedule.num_rounds == 6
    assert {len(schedule.participants(number)) for number in range(1, 7)} == {2}


def test_hidden_concepts_are_one_task_to_the_rounds():
    run = small(scenario="concepts", rounds=5, classes_per_task=0)
    schedule = Built(run).schedule
    assert schedule.num_rounds == 5


def test_a_local_only_run_has_a_server_that_sends_nothing():
    run = small(strategy="fedweit", local_only=True)
    assert isinstance(Built(run).strategy(), NoOpStrategy)
    assert isinstance(Built(run).learner(client=0), LocalOnlyLearner)


# ---- aggregation policies and attacks

REFUSING = {"analytic", "disco", "dolfin", "lorm", "fedcurv", "fot", "matched-ensemble"}


def refusal(**settings):
    try:
        Built(resolve(RunConfig.from_settings(**settings))).strategy()
    except ConfigError as problem:
        return str(problem)
    return ""


def test_a_strategy_that_averages_otherwise_refuses_a_policy():
    given = {"clients": 4, "tasks": 2, "aggregation": "median"}
    found = {name: refusal(strategy=name, **given) for name in algorithms()}

    assert {name for name, why in found.items() if why} == REFUSING


def test_the_policy_of_a_run_reaches_its_strategy_and_no_client_that_is_alone():
    run = small(
        aggregation="krum",
        hostile_fraction=0.3,
        clip_to_median=2.0,
        weighting="uniform",
        examples_limit=3.0,
    )

    strategy = Built(run).strategy()

    assert strategy.aggregation == Aggregation("krum", 0.3, 2.0, "uniform", 3.0)
    alone = small(aggregation="krum", local_only=True)
    learner = Built(alone).learner(client=0)
    assert learner._strategy.aggregation == Aggregation()


def test_attacks_that_a_strategy_is_open_to_are_let_through():
    for strategy, attack in (("fedweit", "adapters"), ("analytic", "label-flip")):
        given = {"strategy": strategy, "attack": attack, "clients": 4}
        assert not refusal(attackers=1, **given)


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("fedweit", {"aggregation": "literal", "gate": "sigmoid"}),
        ("concept-matching", {"aggregation": "median"}),
    ],
)
def test_a_rule_of_the_strategys_own_goes_with_the_mean_alone(strategy, params):
    own = {f"strategy.{key}": value for key, value in params.items()}
    settings = {"strategy": strategy, "clients": 4, "tasks": 2, **own}

    build.validate(resolve(RunConfig.from_settings(**settings)))
    with pytest.raises(
        ConfigError, match=r"^strategy\.aggregation: got '\w+', expected"
    ):
        build.validate(resolve(RunConfig.from_settings(**settings, aggregation="krum")))


def test_a_step_of_one_example_is_refused_for_batch_normalisation():
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))
    with MODELS.registered("mine", from_module(body, (1, 8, 8))):
        run, one = small(model="mine"), small(model="mine", batch_size=1)
        learner = Built(run).learner(client=0)
        assert learner.context.training.smallest_batch == 2
        with pytest.raises(ConfigError, match="batch_size: got 1, expected at least 2"):
            Built(one).learner(client=0)


def test_what_both_sides_compute_with_is_there_before_it_is_limited(monkeypatch):
    done = []
    monkeypatch.setattr(build, "threadpool_limits", done.append)
    sides = {
        f"load_{side}": lambda side=side: done.append(side)
        for side in ("server", "client")
    }
    build.limited_threads(SimpleNamespace(**sides), 4)
    assert done == ["server", "client", 4]
