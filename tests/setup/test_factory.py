import pytest
import torch

from fcl_flower.algorithms.base import ClientLearner, ServerStrategy
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.registry import create_model
from fcl_flower.setup import factory
from fcl_flower.setup.resolve import resolve
from strategies.local import NoOpStrategy


def small(**values):
    settings = {"clients": 2, "tasks": 2, "classes_per_task": 2}
    return resolve(RunConfig.from_settings(**{**settings, **values}))


def test_a_device_that_is_not_there_is_refused():
    assert factory.find_device("cpu") == "cpu"
    assert factory.find_device("auto") in {"cpu", "cuda"}
    for name in ("gpu", "cuda:97", ""):
        with pytest.raises(ConfigError) as problem:
            factory.find_device(name)
        assert str(problem.value) == (
            f"training.device: got {name!r}, expected auto, cpu or a device that torch "
            "finds here"
        )


def test_a_single_head_knows_all_labels():
    run = small(head="single")
    plan = factory.build_scenario(run)
    network = factory.build_model(run, plan)
    assert [head.out_features for head in network.heads] == [plan.num_labels]


def test_each_task_has_a_head_of_its_own():
    run = small(head="multi", seed=3)
    multi = factory.build_model(run, factory.build_scenario(run))
    assert [head.out_features for head in multi.heads] == [2, 2]
    expected = create_model("small", tasks=2, classes=2, single_head=False, seed=3)
    found = multi.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found[name], tensor), name


def test_all_settings_of_the_scenario_reach_it():
    run = small(seed=5, valid_fraction=0.4)
    plan = factory.build_scenario(run)
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
    )
    found = factory.build_training(run)
    assert (found.epochs, found.batch_size, found.learning_rate) == (3, 7, 0.25)
    assert (found.lr_patience, found.early_stopping_patience) == (2, 5)


def test_all_settings_of_the_rounds_reach_the_schedule():
    run = small(clients=4, rounds=3, client_fraction=0.5, evaluate_every=2, seed=4)
    schedule = factory.build_schedule(run, factory.build_scenario(run))
    assert schedule.num_rounds == 6
    assert {len(schedule.participants(number)) for number in range(1, 7)} == {2}


def test_hidden_concepts_are_one_task_to_the_rounds():
    run = small(scenario="concepts", rounds=5, classes_per_task=0)
    schedule = factory.build_schedule(run, factory.build_scenario(run))
    assert schedule.num_rounds == 5


@pytest.mark.parametrize("name", algorithms())
def test_both_sides_of_every_algorithm_are_built_with_its_parameters(name):
    run = resolve(RunConfig.from_settings(strategy=name, clients=2, tasks=2))
    plan = factory.build_scenario(run)
    strategy = factory.build_strategy(run)
    learner = factory.build_learner(run, plan, client=1)
    assert isinstance(strategy, ServerStrategy)
    assert isinstance(learner, ClientLearner)
    assert strategy.params == learner.params == run.params
    assert learner.context.client == 1


def test_a_local_only_run_has_a_server_that_sends_nothing():
    run = small(strategy="fedweit", local_only=True)
    assert isinstance(factory.build_strategy(run), NoOpStrategy)
    plan = factory.build_scenario(run)
    assert isinstance(factory.build_learner(run, plan, client=0), LocalOnlyLearner)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        (
            {"strategy": "fedet", "asynchronous": True},
            "asynchronous.enabled: got True, expected false for fedet, which looks at "
            "all updates of a round together",
        ),
        ({"tasks": 6, "classes_per_task": 2}, "tasks: got 6, expected "),
        ({"device": "gpu"}, "training.device: got 'gpu', expected auto, cpu or a"),
    ],
)
def test_what_would_fail_later_is_refused_before_a_run(settings, start):
    with pytest.raises(ConfigError) as problem:
        factory.validate(resolve(RunConfig.from_settings(clients=2, **settings)))
    assert str(problem.value).startswith(start)
