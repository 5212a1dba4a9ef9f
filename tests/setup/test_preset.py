"""Presets: what a published protocol fixes, and that a user's own settings win."""

import numpy as np
import pytest
from plans import by_task, images_in_turn

import fcl_flower as fcl
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.config.run_config import RunConfig
from fcl_flower.setup.build import Built
from fcl_flower.setup.preset import preset_names, read_preset
from fcl_flower.setup.resolve import resolve

PRESET = "fcil-cifar100"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Return a folder with a set of CIFAR-100's name, classes and shape."""
    folder = tmp_path_factory.mktemp("data")
    images_in_turn(folder, "cifar100", 100, 10, shape=(32, 32, 3))
    return folder


def small(root):
    """Return settings with which a run of the protocol takes seconds."""
    return {
        **{"data_root": str(root), "model": "small", "progress": False},
        **{"clients": 2, "rounds": 2, "epochs": 1, "batch_size": 8, "tasks": 3},
        **{"classes_per_task": 5, "max_test_per_class": 2, "learning_rate": 0.01},
    }


@pytest.mark.run
def test_the_protocol_is_what_its_page_says(root):
    preset = read_preset(PRESET)
    params = preset.params_for(["icarl"])
    given = {**preset.settings, **params, "strategy.name": "icarl"}
    run = Built(resolve(RunConfig.of({**given, "data.root": str(root)})))
    plan, training = run.scenario, run.training()

    order = np.random.RandomState(1993).permutation(100).reshape(10, 10)
    learned = [{n for one in tasks for n in one.classes} for tasks in by_task(plan)]
    assert learned == [set(part.tolist()) for part in order]
    assert len(plan.clients) == 5
    assert run.scenario_params.split == "dirichlet:0.5"
    used = [t for tasks in plan.clients for t in tasks]
    assert sum(len(task.train) for task in used) == 1000, "no sample is held back"
    assert not plan.public
    assert not any(len(task.valid) for task in used)
    assert (run.config.model.name, run.config.model.growing_head) == ("resnet18", True)
    assert run.schedule.num_rounds == 1000
    assert (training.epochs, training.batch_size) == (2, 128)
    choice = training.optimizer
    assert (choice.name, choice.momentum, choice.weight_decay) == ("sgd", 0.9, 5e-4)
    assert training.learning_rate == 0.04
    rates = [training.scheduled(0.1, number, 0) for number in (1, 51, 100, 101)]
    assert rates == pytest.approx([0.1, 0.05, 0.1 * 0.000247, 0.1], abs=1e-6)
    assert (run.params.memory_per_class, run.params.memory_policy) == (20, "herding")


KEEPING = "bic dde-icarl der fedcbdr glfc icarl podnet replay replay-reg ss-il"


@pytest.mark.parametrize("name", KEEPING.split())
def test_methods_with_a_memory_keep_the_same_number_of_each_class(name):
    params = read_preset(PRESET).params_for([name])
    short = {key.removeprefix("strategy."): value for key, value in params.items()}
    assert algorithm(name).params(short).room(100) == 2000


def test_methods_without_a_memory_are_given_none():
    assert read_preset(PRESET).params_for(["fedavg", "target"]) == {}


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "replay", "icarl"])
def test_a_run_of_the_protocol_comes_to_its_end(root, strategy):
    result = fcl.simulate(strategy, preset=PRESET, **small(root))

    config = result.config
    assert (config.training.lr_schedule, config.scenario.valid_fraction) == (
        "cosine",
        0,
    )
    assert (config.scenario.tasks, config.training.learning_rate) == (3, 0.01), "won"
    assert 0 <= result.average_incremental_accuracy <= 1
    seen = result.summary["sample_accuracy"]
    assert result.average_incremental_accuracy == pytest.approx(np.mean(seen))


@pytest.mark.run
def test_each_method_of_a_comparison_gets_what_it_knows(root):
    found = fcl.compare(
        ["fedavg", "replay"],
        preset=PRESET,
        counterparts=False,
        **{**small(root), "strategy": {"memory_per_class": 1}, "tasks": 1, "rounds": 1},
    )
    params = [dict(result.config.strategy.params) for result in found.results]
    kept = {"budget": "fixed", "memory_per_class": 1, "memory_policy": "herding"}
    assert params == [{}, kept]
    frame = found.table()
    assert all(row["average_incremental_accuracy"] is not None for row in frame)


@pytest.mark.run
def test_a_preset_is_refused_beside_what_has_all_settings(root, tmp_path):
    with pytest.raises(
        fcl.ConfigError, match=r"^preset: got 'fcil-cifar100', expected "
    ):
        fcl.simulate(RunConfig(), preset=PRESET)
    with pytest.raises(
        fcl.ConfigError, match=r"^preset: got 'fcil-cifar100', expected "
    ):
        fcl.simulate("fedavg", preset=PRESET, resume=tmp_path)
    with pytest.raises(fcl.ConfigError, match=r"^preset: got 'fcil', expected "):
        fcl.simulate("fedavg", preset="fcil")
    with pytest.raises(fcl.ConfigError, match=r"^preset: got 3, expected a name"):
        fcl.simulate("fedavg", preset=3)


def test_every_preset_is_made_of_settings_that_there_are():
    assert preset_names() == [PRESET]
    for name in preset_names():
        RunConfig.of(read_preset(name).settings)
