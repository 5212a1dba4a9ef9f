"""TARGET in whole runs: what it keeps, what goes with it, and what does not."""

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed

from fcl_flower.core.errors import ConfigError
from fcl_flower.federation.checkpoint import ContextStateStore
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve
from strategies.target.server import SAMPLES

SMALL = {
    "strategy.synthetic_samples": 48,
    "strategy.synthetic_batch": 24,
    "strategy.warmup": 1,
    "strategy.generator_steps": 10,
    "strategy.generator_width": 8,
    "strategy.student_epochs": 2,
}


def run(folder, **values):
    given = {"strategy": "target", "rounds": 2, "scenario.split": "iid", **SMALL}
    given |= {"max_train_per_class": 40, "learning_rate": 0.003, "epochs": 2}
    given |= {"growing_head": True, "public_fraction": 0.0}
    return tiny(folder, **{**given, **values})


def test_the_samples_travel_once_a_task_and_hold_forgetting_back(tmp_path):
    more = {"epochs": 8, "classes_per_task": 5}
    config = run(tmp_path / "with", **more)
    grid = run_in_process(config)
    run_in_process(run(tmp_path / "without", **more, **{"strategy.alpha": 0.0}))

    found, control = (summary_of(tmp_path / name) for name in ("with", "without"))
    assert found["client_accuracy"][0][0] == control["client_accuracy"][0][0]
    assert found["forgetting"] < control["forgetting"] - 0.2
    assert found["average_accuracy"] > control["average_accuracy"] + 0.05
    # 48 images of 8x8 bytes, 48 x 5 logits of four: once to each of two clients.
    nominal = 2 * (48 * 64 + 48 * 5 * 4)
    assert nominal < found["bytes_by_kind"]["down"]["memory"] < nominal + 4000
    assert "memory" not in found["bytes_by_kind"]["up"]
    for context in grid.contexts.values():
        kept = ContextStateStore(context).load(before=99).payload[SAMPLES]
        assert kept["x"].shape == (48, 1, 8, 8)
        plan = build.build_scenario(resolve(config))
        assert kept["labels"].tolist() == list(plan.labels_until(0))


def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(tmp_path):
    check_resumed(tmp_path, run, 4)  # the samples are there by now


@pytest.mark.parametrize(
    "protection",
    [
        {"federation.secure_aggregation": True, "clients": 3},
        {"privacy.unit": "client", "privacy.noise_multiplier": 0.01, "tasks": 2},
    ],
    ids=["secure aggregation", "noise"],
)
def test_samples_are_made_of_a_protected_mean(tmp_path, protection):
    run_in_process(run(tmp_path, rounds=1, **protection))
    assert summary_of(tmp_path)["bytes_by_kind"]["down"]["memory"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))


def test_where_concepts_are_known_samples_are_made_after_every_round(tmp_path):
    given = {"scenario.name": "concepts", "scenario.reveal_ids": True, "rounds": 3}
    given |= {"classes_per_task": 0, "clients": 3}
    config = tiny(tmp_path, strategy="target", **SMALL, **given)
    strategy = build.build_strategy(resolve(config))
    assert strategy.context.classes.until == (tuple(range(10)),) * 2
    run_in_process(config)
    assert summary_of(tmp_path)["bytes_by_kind"]["down"]["memory"] > 0
    assert not any(row["failed"] for row in rounds_of(tmp_path))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"head": "multi", "scenario": "overlapped"}, r"model\.head: got 'multi', exp"),
        ({"asynchronous": True}, r"asynchronous\.enabled: got True, expected false"),
        (
            {"scenario": "concepts", "classes_per_task": 0},
            r"scenario\.name: got 'concepts', expected one whose tasks are told apart",
        ),
        (
            {
                "scenario": "local-data",
                "model": "small",
                "head": "single",
                "data.class_names": "a,b",
                "classes_per_task": 0,
            },
            r"scenario\.name: got 'local-data', expected one whose classes are known",
        ),
        (
            {"privacy.unit": "example", "privacy.noise_multiplier": 1.0},
            r"privacy\.unit: got 'example', expected 'none' for target, which uses",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_with_it_is_refused(tmp_path, settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build.validate(resolve(tiny(tmp_path, strategy="target", **settings)))


def test_new_classes_are_its_scenario_and_may_open_one_after_the_other(tmp_path):
    config = resolve(tiny(tmp_path, strategy="target")).config
    assert config.scenario.name == "class-incremental"
    growing = tiny(tmp_path, strategy="target", growing_head=True)
    assert resolve(growing).config.model.growing_head
