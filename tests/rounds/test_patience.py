"""Tasks that end early, where the clients' validation loss has got no lower."""

import pytest
from fakes import asked_in, rounds_of, run_in_process, summary_of, tiny, trained_by
from resuming import PulledPlugError

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.schedule import Schedule, stagnates
from fcl_flower.results import journal
from fcl_flower.results.events import Extended, Trained
from fcl_flower.results.recorder import Recorder
from fcl_flower.rounds.messages import METRICS, decode_request
from fcl_flower.setup.resolve import resolve

LOSSES = {1: [0.9, 0.5, 0.6, 0.5, 0.1], 2: [0.9, 0.8, 0.7, 0.6, 0.5]}
"""By task, counted from 1, what both clients tell round by round."""


SHORTER = {**LOSSES, 1: [0.5, 0.6, 0.1, 0.1, 0.1]}
"""By which the first task is over after three rounds with a patience of one."""


def scripted(told, end=None):
    """Return what makes clients tell such losses; the server ends in round ``end``."""
    begun = {}

    def tamper(client, request, reply):
        if client == 1 and end is not None and asked_in(request, end):
            raise PulledPlugError
        if request.kind == "train":
            stage = decode_request(request.content).stage
            first = begun.setdefault(stage.task, stage.round)
            loss = told[stage.task + 1][stage.round - first]
            reply.content.scalars[METRICS]["valid_loss"] = loss
        return reply

    return tamper


def config(folder, **settings):
    states = str(folder.parent / f"{folder.name}-states")
    return tiny(folder, **{"rounds": 4, **settings}, client_state=states)


def outcome(folder):
    """Return what counts of a run, without the words on why tasks ended."""
    summary = summary_of(folder)
    summary["remarks"].pop("early stop", None)
    return summary, rounds_of(folder)


@pytest.mark.run
def test_a_task_without_progress_has_one_more_round_which_is_told_to_be_its_last(
    tmp_path,
):
    run = config(tmp_path / "run", patience=2, rounds=5)
    transport = run_in_process(run, tamper=scripted(LOSSES))
    stages = trained_by(transport, 0)
    told = [(stage.round, stage.task, stage.ends_task) for stage in stages]
    # Two rounds after the second none is better: the decision falls after the fourth.
    assert told == [
        *((1, 0, False), (2, 0, False), (3, 0, False), (4, 0, False), (5, 0, True)),
        *((6, 1, False), (7, 1, False), (8, 1, False), (9, 1, False), (10, 1, True)),
    ]


@pytest.fixture(scope="module")
def early(tmp_path_factory):
    """The folder of a run whose first task is over after three rounds."""
    folder = tmp_path_factory.mktemp("early") / "run"
    run_in_process(config(folder, patience=1), tamper=scripted(SHORTER))
    return folder


@pytest.mark.run
@pytest.mark.parametrize(("losses", "rounds"), [([3, 3], 3), ([3, 2, 2], 4)])
def test_a_task_has_the_round_after_the_decision_and_no_more(tmp_path, losses, rounds):
    run = config(tmp_path / "run", patience=1, tasks=1, rounds=5)
    run_in_process(run, tamper=scripted({1: [*losses, 1, 1, 1]}))
    assert len(rounds_of(tmp_path / "run")) == rounds


@pytest.mark.run
def test_it_ends_as_a_run_that_was_planned_so(tmp_path, early):
    planned = config(tmp_path / "planned", rounds_by_task="3")
    run_in_process(planned, tamper=scripted(SHORTER))

    ours, others = outcome(early), outcome(tmp_path / "planned")
    assert ours[0]["total_rounds"] == len(ours[1]) == 7
    assert ours == others


@pytest.mark.run
def test_the_decision_stands_in_the_journal_the_configuration_and_on_the_page(early):
    events = list(journal.replay(early / journal.FILE))
    (place,) = [n for n, found in enumerate(events) if isinstance(found, Extended)]
    assert events[place].round == 2
    assert events[place].begun.about.rounds_by_task == [3]
    rounds = [found for found in events[:place] if isinstance(found, Trained)]
    assert len(rounds) == 2
    written = RunConfig.read(early / "config.toml", "")
    assert written.federation.listed_rounds == (3,)
    said = "task 0 after 3 rounds of at most 4, by federation.patience"
    assert summary_of(early)["remarks"]["early stop"] == said
    assert said in (early / "report.html").read_text()


@pytest.mark.run
def test_the_configuration_that_it_leaves_gives_the_same_numbers(tmp_path, early):
    again = RunConfig.read(early / "config.toml", "")
    states = str(tmp_path / "again-states")
    again = again.replace(output=str(tmp_path / "again"), client_state=states)
    run_in_process(again, tamper=scripted(SHORTER))
    assert outcome(tmp_path / "again") == outcome(early)


@pytest.mark.run
@pytest.mark.parametrize("end", [2, 3, 4])
def test_a_run_that_was_interrupted_decides_the_same(tmp_path, early, end):
    run = config(tmp_path / "run", patience=1)
    with pytest.raises(PulledPlugError):
        run_in_process(run, tamper=scripted(SHORTER, end))
    kept = RunConfig.read(tmp_path / "run" / "config.toml", "").replace(resume=True)
    told = {1: [0.5, 0.6, 0.1], 2: LOSSES[2]}
    if end < 4:  # the script counts from the round in which it begins
        told[1] = told[1][end - 1 :]
    run_in_process(kept, tamper=scripted(told))
    assert outcome(tmp_path / "run") == outcome(early)


@pytest.mark.run
@pytest.mark.parametrize("written", [False, True])
def test_a_server_that_ends_as_it_decides_decides_again(
    tmp_path, early, monkeypatch, written
):
    replan = Recorder.replan

    def pulled(recorder, *given):
        if written:
            replan(recorder, *given)
        raise PulledPlugError

    monkeypatch.setattr(Recorder, "replan", pulled)
    with pytest.raises(PulledPlugError):
        run_in_process(
            config(tmp_path / "run", patience=1),
            tamper=scripted(SHORTER),
        )
    monkeypatch.undo()
    kept = RunConfig.read(tmp_path / "run" / "config.toml", "").replace(resume=True)
    run_in_process(kept, tamper=scripted({1: [0.1], 2: LOSSES[2]}))
    assert outcome(tmp_path / "run") == outcome(early)
    events = journal.replay(tmp_path / "run" / journal.FILE)
    assert len([found for found in events if isinstance(found, Extended)]) == 1


@pytest.mark.parametrize(
    ("losses", "patience", "stale"),
    [
        ([], 1, False),
        ([None, None, None], 1, False),
        ([0.5], 1, False),
        ([0.5, 0.5], 1, True),
        ([0.5, 0.4], 1, False),
        ([0.4, 0.5, 0.45], 2, True),
        ([0.4, None, 0.45], 2, False),
        ([0.4, 0.5, 0.3, 0.6], 2, False),
    ],
)
def test_a_loss_that_gets_no_lower_stagnates(losses, patience, stale):
    assert stagnates(losses, patience) == stale


def test_a_task_that_is_closed_leaves_the_others_as_they_were():
    plan = Schedule(2, 3, 5, 1.0, 0, rounds_by_task=(2,)).closed_after(4)
    assert plan.rounds_by_task == (2, 3)
    assert [plan.end(task) for task in range(3)] == [2, 5, 10]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"strategy": "analytic", "dataset": "digits", "model": "patch-filters"},
            "measure no validation",
        ),
        ({"client_fraction": 0.5, "clients": 4}, "client_fraction below 1"),
        ({"asynchronous": True}, "in an asynchronous run"),
        (
            {"scenario": "concepts", "strategy": "concept-matching"},
            "whose tasks are hidden",
        ),
        (
            {"strategy": "fedavg", "unit": "client", "noise_multiplier": 1.0},
            "with privacy.unit 'client'",
        ),
        (
            {"strategy": "fedavg", "valid_fraction": 0.0, "lr_patience": 0},
            "with scenario.valid_fraction 0",
        ),
    ],
)
def test_patience_without_what_it_needs_is_refused(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=rf"federation\.patience: got 2, .*{said}"):
        resolve(tiny(tmp_path, patience=2, **settings))
