"""Schedules of the learning rate, against torch's own and numbers by hand."""

import math

import pytest
import torch
from fakes import run_in_process, tiny
from resuming import check_resumed, small

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import Schedule
from fcl_flower.data.examples import Examples
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training import loop
from fcl_flower.training.loop import Fit, Training, fit
from fcl_flower.training.rates import RateSchedule

STEPS = {"lr_schedule": "step", "lr_steps": "0.7, 0.9", "lr_factor": 0.2}
COSINE = {"lr_schedule": "cosine", "lr_patience": 0}


def plan(tasks=2, rounds=5, **given):
    return Schedule(4, tasks, rounds, fraction=1.0, seed=0, **given)


def rates(schedule, epochs, rounds):
    """Return the rate of each epoch of some rounds, with 0.1 at the start."""
    training = Training(epochs, 8, 0.1, schedule=schedule)
    return [
        training.scheduled(0.1, number, epoch / epochs)
        for number in rounds
        for epoch in range(epochs)
    ]


def torchs(make, epochs):
    """Return the rate of each epoch by a scheduler of torch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, found = make(optimizer), []
    for _ in range(epochs):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_over_the_rounds_of_a_task_is_torchs_over_its_epochs():
    schedule = RateSchedule("cosine", plan(rounds=5))
    expected = torchs(
        lambda found: torch.optim.lr_scheduler.CosineAnnealingLR(found, T_max=15), 15
    )

    assert rates(schedule, 3, range(1, 6)) == pytest.approx(expected)
    assert rates(schedule, 3, range(6, 11)) == pytest.approx(expected), "next task"


def test_steps_over_the_rounds_of_a_task_are_those_of_icarl():
    """70 epochs, divided by 5 after 49 and 63 of them; here in 35 rounds of 2."""
    schedule = RateSchedule("step", plan(rounds=35), (0.7, 0.9), 0.2)
    expected = torchs(
        lambda found: torch.optim.lr_scheduler.MultiStepLR(found, [49, 63], gamma=0.2),
        70,
    )

    assert rates(schedule, 2, range(1, 36)) == pytest.approx(expected)


def test_each_task_has_the_length_of_its_own_rounds():
    schedule = RateSchedule("cosine", plan(tasks=3, rounds=4, rounds_by_task=(1, 2)))

    assert rates(schedule, 1, range(1, 8)) == pytest.approx(
        [0.1, 0.1, 0.05, *(0.05 * (1 + math.cos(math.pi * n / 4)) for n in range(4))]
    )


def test_a_training_of_no_round_keeps_its_rate():
    assert rates(RateSchedule("cosine", plan()), 2, [0]) == [0.1, 0.1]


def test_the_steps_of_a_round_are_taken_at_the_scheduled_rate():
    """One leaf of slope 1, by plain SGD: its value is minus the sum of the rates."""
    leaf = torch.nn.Parameter(torch.zeros(()))
    choice = loop.OptimizerChoice("sgd")
    schedule, state = RateSchedule("cosine", plan(rounds=2)), {}
    for number in (1, 2):
        job = Fit(
            parameters={"w": leaf},
            objective=lambda x, y: leaf * 1.0,
            examples=Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64)),
            training=Training(2, 4, 0.1, 0, optimizer=choice, schedule=schedule),
            seed=0,
            round=number,
            optimizer_state=state,
        )
        state = fit(job).optimizer_state
    total = sum(0.05 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4))

    assert leaf.item() == pytest.approx(-total, rel=1e-6)


def built(**settings):
    given = {"strategy": "fedavg", "dataset": "digits", "clients": 2, **settings}
    return Built(resolve(RunConfig.from_settings(**given))).training()


def test_the_settings_of_a_schedule_reach_the_training():
    found = built(**STEPS, lr_patience=0, rounds=20).schedule

    assert (found.name, found.steps, found.factor) == ("step", (0.7, 0.9), 0.2)
    assert [found.at(number, 0.0) for number in (14, 15, 19, 21)] == pytest.approx(
        [1.0, 0.2, 0.04, 1.0]
    )
    assert built(lr_patience=0).schedule is None


def test_hidden_concepts_have_one_schedule_for_the_whole_run():
    found = built(**COSINE, scenario="concepts", tasks=2, rounds=4).schedule

    assert [found.at(number, 0.0) for number in (1, 3)] == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"lr_schedule": "cosine"},
            "training.lr_patience: got 5, expected 0 with training.lr_schedule "
            "'cosine', which sets all rates",
        ),
        (
            {**COSINE, "patience": 2},
            "federation.patience: got 2, expected 0 with training.lr_schedule "
            "'cosine', which sets all rates",
        ),
        (
            {"lr_schedule": "step", "lr_patience": 0},
            "training.lr_steps: got '', expected ascending fractions between 0 and 1, "
            "such as '0.7,0.9'",
        ),
        (
            {**STEPS, "lr_patience": 0, "lr_steps": "0.9,0.7"},
            "training.lr_steps: got '0.9,0.7', expected ascending fractions between 0 "
            "and 1, such as '0.7,0.9'",
        ),
        (
            {**STEPS, "lr_patience": 0, "lr_steps": "0.5,49"},
            "training.lr_steps: got '0.5,49', expected ascending fractions between 0 "
            "and 1, such as '0.7,0.9'",
        ),
        (
            {**COSINE, "lr_steps": "0.5"},
            "training.lr_steps: got '0.5', expected none unless training.lr_schedule "
            "is 'step', without which it has no effect",
        ),
        (
            {"lr_factor": 0.5},
            "training.lr_factor: got 0.5, expected 0.1 unless training.lr_schedule is "
            "'step', without which it has no effect",
        ),
        (
            {"nesterov": True, "optimizer": "sgd"},
            "training.nesterov: got true, expected false unless training.momentum is "
            "set, without which it has no effect",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_settings_of_the_rate_that_contradict_each_other_are_refused(
    settings, sentence
):
    with pytest.raises(ConfigError) as problem:
        RunConfig.from_settings(**settings)

    assert str(problem.value) == sentence


def seen_rates(monkeypatch):
    """Note the rate of every step of the training loop."""
    found = []

    class Noting(loop.Optimizer):
        def step(self):
            found.append(self.rate)
            super().step()

    monkeypatch.setattr(loop, "Optimizer", Noting)
    return found


@pytest.mark.run
def test_a_run_that_goes_on_after_an_end_has_the_same_rates(tmp_path, monkeypatch):
    found = seen_rates(monkeypatch)
    settings = {**COSINE, "optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.5}

    check_resumed(tmp_path, small(**settings, nesterov=True, rounds=2), 2)

    assert {round(rate, 9) for rate in found} == {0.1, 0.05}


@pytest.mark.run
def test_a_client_without_its_turn_comes_back_at_the_rate_of_the_round(
    tmp_path, monkeypatch
):
    found = seen_rates(monkeypatch)
    rates_by_round = [0.05 * (1 + math.cos(math.pi * n / 3)) for n in range(3)]

    config = tiny(tmp_path, **COSINE, rounds=3, client_fraction=0.5, tasks=1)
    run_in_process(config.replace(learning_rate=0.1))

    assert {round(rate, 9) for rate in found} == {round(r, 9) for r in rates_by_round}
