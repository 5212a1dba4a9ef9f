import json
import os
import shlex
import signal
import tomllib

import numpy as np
import pytest
from fakes import summary_of

from fcl_flower import __version__
from fcl_flower.cli.options import FLAGS
from fcl_flower.config.parsing import describe
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, RoundError
from fcl_flower.privacy.accounting import client_release, gaussian_epsilon
from fcl_flower.setup import build
from fcl_flower.simulation.local_runs import Backend

PRESET = "fcil-cifar100"
TINY = ["--clients", "2", "--tasks", "2", "--rounds", "1", "--classes-per-task", "2"]

# ---- what is refused


def test_a_folder_that_cannot_be_written_is_named(fcl, nothing_runs, monkeypatch):
    def refuse(self, *given, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    answer = fcl("simulate", *TINY, "--output", "locked")
    answer.is_refusal("output: got 'locked'", "Permission denied")


def test_an_interrupt_is_no_traceback(fcl, run_fails):
    def interrupt():
        raise KeyboardInterrupt

    run_fails(interrupt)
    answer = fcl("simulate", *TINY)
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_a_request_to_end_lets_a_run_clean_up(fcl, run_fails):
    cleaned = []

    def terminated():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

    run_fails(terminated)
    assert fcl("simulate", *TINY).code == 143
    assert cleaned == [True]


def test_a_run_that_fails_is_no_mistake_of_the_user(fcl, run_fails):
    def fail():
        return RoundError("the run did not finish; the reason stands in x/flower.log")

    run_fails(fail)
    answer = fcl("simulate", *TINY)
    assert answer.code == 1
    assert answer.err.splitlines()[-1] == (
        "fcl: the run did not finish; the reason stands in x/flower.log"
    )


# ---- what is shown


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_shows_the_commands(fcl, arguments):
    answer = fcl(*arguments)
    assert (answer.code, answer.err) == (0, "")
    for command in ("simulate", "compare", "study", "list", "scenario", "report"):
        assert command in answer.out


def test_the_help_of_a_run_fits_on_one_screen(fcl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    answer = fcl("simulate", "--help")
    lines = answer.out.splitlines()
    assert answer.code == 0
    assert len(lines) <= 45
    assert 90 < max(map(len, lines)) <= 100
    for flag in ("--set", "--config", "--data", "--backend", "--output", "--resume"):
        assert f"{flag} " in answer.out


def test_a_flag_says_what_its_setting_says(fcl, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = " ".join(fcl("simulate", "--help").out.split())
    for name, key in FLAGS.items():
        section, leaf = key.split(".")
        kind = RunConfig.model_fields[section].annotation
        (setting,) = (one for one in describe(kind) if one.key == leaf)
        said = setting.help.partition(";")[0].rstrip(".")
        assert f"--{name.replace('_', '-')} " in text
        assert f"{said}." in text
    for default in ("fedweit", "1", "0", "auto"):
        assert f"[default: {default}]" in text
    assert "[default: False]" not in text
    assert "[default: ]" not in text


def test_the_version_is_shown(fcl):
    answer = fcl("--version")
    assert (answer.code, answer.out) == (0, f"fcl, version {__version__}\n")


def test_a_scenario_is_shown_and_saved_without_running_anything(
    fcl, nothing_runs, tmp_path
):
    answer = fcl("scenario", *TINY, "--seed", "3", "--save", "plan.json")
    assert answer.code == 0
    title, header, *lines = answer.out.splitlines()
    assert "overlapped on digits, seed 3: 2 clients, 2 tasks of 2 classes" in title
    assert header.split()[:3] == ["client", "task", "name"]
    assert [line.split()[:2] for line in lines] == [
        ["0", "0"],
        ["0", "1"],
        ["1", "0"],
        ["1", "1"],
    ]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["seed"], len(plan["clients"])) == (3, 2)


# ---- what is run


@pytest.mark.run
def test_a_run_says_what_came_out_and_where_the_report_is(fcl, ran, tmp_path):
    answer = fcl("simulate", "--strategy", "fedavg", *TINY, "--output", "here")
    assert answer.code == 0
    found = summary_of(tmp_path / "here")
    lines = answer.out.splitlines()
    assert lines[-1] == (
        f"accuracy {found['average_accuracy']:.3f}, forgetting "
        f"{found['forgetting']:.3f}; report: here/report.html"
    )
    assert lines[-2].startswith("fedavg seed 0: task 1 of 0 to 1  round 2/2")
    assert (tmp_path / "here" / "report.html").exists()
    (run,) = ran
    assert run.backend == Backend("in-process", None, 0.0, processes=1)


@pytest.mark.run
def test_a_run_without_a_folder_gets_a_new_one_with_a_speaking_name(fcl, ran, tmp_path):
    for _ in range(2):
        fcl("simulate", "--strategy", "local", *TINY, "--seed", "5")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "local-overlapped-digits-seed5",
        "local-overlapped-digits-seed5-2",
    }


@pytest.mark.run
@pytest.mark.parametrize(
    "command", [["simulate", "--strategy", "local"], ["compare", "--strategies", "ewc"]]
)
def test_the_folder_for_the_results_may_be_a_setting(fcl, ran, tmp_path, command):
    named = [*command, *TINY, "--set", "run.output=mine"]
    assert fcl(*named).code == 0
    assert (tmp_path / "mine").is_dir()
    assert not (tmp_path / "runs").exists()


@pytest.mark.run
def test_a_finished_run_is_not_replaced_by_accident(fcl, ran, tmp_path):
    first = ["simulate", "--strategy", "local", *TINY, "--output", "here"]
    assert fcl(*first).code == 0
    fcl(*first).is_refusal("output: got 'here' with a finished run")
    assert len(ran) == 1
    assert fcl(*first, "--seed", "1", "--overwrite").code == 0
    assert summary_of(tmp_path / "here")["seed"] == 1


@pytest.mark.run
def test_options_reach_the_run(fcl, ran):
    fcl(
        *("simulate", "--strategy", "fedweit", *TINY, "--output", "here"),
        *("--set", "lambda1=0.5", "--set", "strategy.knowledge=sample:3"),
        *("--set", 'gate="identity"', "--set", " kappa = 1 "),
        *("--local-only", "--set", "model.head=single", "--learning-rate", "1"),
        *("--set", "federation.wire-dtype=float16", "--dataset", "digits"),
        *("--backend", "flower", "--workers", "3", "--gpus-per-client", "0.5"),
    )
    (run,) = ran
    config = run.config
    assert config.strategy.params == {
        **{"lambda1": 0.5, "knowledge": "sample:3", "gate": "identity", "kappa": 1}
    }
    assert (config.strategy.local_only, config.model.head) == (True, "single")
    assert (config.training.learning_rate, config.scenario.clients) == (1.0, 2)
    assert config.federation.wire_dtype == "float16"
    assert run.folder.name == "here"
    assert run.backend == Backend("flower", workers=3, gpus_per_client=0.5)


@pytest.mark.run
def test_several_runs_of_a_comparison_may_be_at_work_at_once(fcl, ran):
    names = ["compare", "--strategies", "local,stl", *TINY]
    fcl(*names, "--jobs", "2")
    assert [run.backend for run in ran] == [Backend(processes=2)] * 2
    ran.clear()
    fcl(*names, "--jobs", "2", "--workers", "3")
    assert [run.backend for run in ran] == [Backend(workers=3, processes=2)] * 2


def test_an_interrupted_comparison_says_how_to_go_on(fcl, run_fails):
    def interrupt():
        raise KeyboardInterrupt

    run_fails(interrupt)
    answer = fcl("compare", "--strategies", "local", *TINY, "--output", "here")
    assert answer.code == 130
    assert answer.err.strip() == (
        "interrupted; the same command with --output here goes on with it"
    )


@pytest.mark.run
def test_parameters_of_the_scenario_and_the_model_reach_the_run(fcl, ran):
    fcl(
        *("simulate", "--strategy", "fedavg", "--scenario", "concepts"),
        *("--clients", "2", "--tasks", "2", "--rounds", "2", "--output", "here"),
        *("--set", "scenario.mean_duration=8", "--set", "scenario.window=16"),
        *("--set", "scenario.reveal-ids=true"),
    )
    (run,) = ran
    assert run.config.scenario.params == {
        **{"mean_duration": 8, "window": 16, "reveal_ids": True}
    }


@pytest.mark.run
def test_tasks_that_were_never_trained_on_are_told_at_the_end(fcl, ran):
    half = [*TINY, "--strategy", "local", "--set", "federation.client_fraction=0.5"]
    told = "2 of 4 client-tasks were never trained on, as their clients took no part"
    lines = fcl("simulate", *half).out.splitlines()
    assert lines[-2].startswith(told)
    assert "never trained" not in fcl("simulate", *TINY, "--strategy", "local").out
    half[half.index("--strategy")] = "--strategies"
    assert f"local seed 0: {told}" in fcl("compare", *half).out


@pytest.mark.run
def test_a_setting_may_repeat_a_flag_and_comes_last(fcl, ran):
    fcl("simulate", *TINY, "--seed", "3", "--set", "run.seed=4", "--output", "here")
    assert ran[0].config.run.seed == 4


@pytest.mark.run
def test_flags_without_a_value_are_off_unless_given(fcl, ran):
    fcl("simulate", *TINY, "--strategy", "fedavg", "--output", "off")
    fcl("simulate", *TINY, "--strategy", "fedavg", "--asynchronous", "--output", "on")
    assert [run.config.asynchronous.enabled for run in ran] == [False, True]


@pytest.mark.run
def test_a_run_can_be_repeated_from_its_own_record(fcl, ran, tmp_path):
    fcl(
        *("simulate", "--strategy", "fedprox", *TINY, "--set", "mu=0.5"),
        *("--seed", "4", "--output", "first"),
    )
    fcl("simulate", "--config", "first/config.toml", "--output", "again")
    first, again = (
        tomllib.loads((tmp_path / name / "config.toml").read_text())
        for name in ("first", "again")
    )
    for key in ("output", "client_state"):
        assert first["run"].pop(key) != again["run"].pop(key)
    assert first == again
    assert summary_of(tmp_path / "first") == summary_of(tmp_path / "again")


@pytest.mark.run
def test_options_and_settings_go_on_top_of_a_file(fcl, ran, tmp_path):
    text = RunConfig.from_settings(
        strategy={"name": "fedweit", "lambda1": 3, "kappa": 0.5},
        clients=2,
        tasks=1,
        rounds=1,
    ).to_toml()
    (tmp_path / "run.toml").write_text(text)
    fcl(
        *("simulate", "--config", "run.toml", "--seed", "9", "--set", "lambda1=4"),
        *("--output", "here"),
    )
    config = ran[0].config
    assert (config.run.seed, config.scenario.tasks) == (9, 1)
    assert config.strategy.params == {"lambda1": 4, "kappa": 0.5}


@pytest.mark.run
def test_an_interrupted_run_is_resumed_with_its_own_settings(fcl, ran, tmp_path):
    options = [*TINY, "--strategy", "fedavg", "--seed", "6"]
    fcl("simulate", *options, "--output", "whole")
    fcl("simulate", *options, "--output", "here")
    (tmp_path / "here" / "summary.json").unlink()
    answer = fcl("simulate", "--resume", "here")
    assert answer.code == 0, answer.err
    run = ran[-1]
    assert (run.config.run.resume, run.config.run.seed) == (True, 6)
    assert summary_of(tmp_path / "here") == summary_of(tmp_path / "whole")


def test_a_run_without_scores_is_no_traceback(fcl, run_fails):
    nothing = dict.fromkeys(["average_accuracy", "forgetting", "honest_accuracy"])
    run_fails(lambda: nothing | {"left_out": {}, "remarks": {}})
    answer = fcl("simulate", *TINY, "--output", "here")
    assert answer.code == 0
    assert "accuracy unknown, forgetting unknown; report: here" in answer.out


PRIVATE = ["--set", "privacy.unit=client", "--set", "privacy.noise_multiplier=2"]


@pytest.mark.run
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_run_that_ends_with_its_privacy_budget_says_so(fcl, rounds):
    budget = gaussian_epsilon(rounds * client_release(2.0), 1e-5) + 1e-6
    limit = ["--rounds", "2", "--set", f"privacy.epsilon={budget}"]
    answer = fcl("simulate", *TINY, *PRIVATE, *limit)
    assert answer.code == 0, answer.err
    shown = " ".join(answer.out.split())
    assert f"privacy budget: stopped before round {rounds + 1}, after which" in shown
    assert "so that there is no accuracy over all tasks" in shown
    assert "no client was evaluated" not in shown


@pytest.mark.run
def test_a_run_that_asks_for_no_scores_says_so(fcl):
    answer = fcl("simulate", *TINY, *PRIVATE, "--set", "privacy.scores=false")
    assert answer.code == 0, answer.err
    assert "no client was evaluated: privacy.scores is false" in answer.out


# ---- local data


@pytest.fixture
def tables(tmp_path):
    """Write the folders of two clients, each with two tasks of two classes."""
    rng = np.random.default_rng(0)
    for client in ("a", "b"):
        for number in (1, 2):
            rows = ["x,label,y"]
            for label, corner in (("big cat", 5), ("dog", -5)):
                rows += [
                    f"{x:.3f},{label},{y:.3f}"
                    for x, y in rng.normal(corner, 1, (20, 2))
                ]
            task = tmp_path / client / f"task-{number:02}"
            task.mkdir(parents=True)
            (task / "train.csv").write_text("\n".join(rows) + "\n")
    return ["--data", "a", "--data", "b"]


@pytest.mark.run
def test_local_data_are_simulated_from_a_folder_a_client(fcl, ran, tmp_path, tables):
    options = ["--strategy", "fedavg", "--rounds", "3", "--epochs", "5"]
    answer = fcl("simulate", *tables, *options, "--output", "here")
    assert answer.code == 0, answer.err
    (run,) = ran
    assert [path.name for path in run.backend.local_data] == ["a", "b"]
    scenario = run.config.scenario
    assert (scenario.name, scenario.clients, scenario.tasks) == ("local-data", 2, 2)
    assert (run.config.model.name, run.config.model.num_features) == ("mlp", 2)
    found = summary_of(tmp_path / "here")
    assert found["average_accuracy"] > 0.9
    assert found["clients"] == 2


@pytest.mark.run
def test_strategies_are_compared_on_local_data(fcl, ran, tmp_path, tables):
    shape = ["--rounds", "2", "--epochs", "2", "--no-local-only", "--output", "here"]
    answer = fcl(*("compare", "--strategies", "fedavg,fedweit", *tables, *shape))
    assert answer.code == 0, answer.err
    assert [run.config.strategy.name for run in ran] == ["fedavg", "fedweit"]
    for run in ran:
        assert [path.name for path in run.backend.local_data] == ["a", "b"]
        assert run.config.scenario.clients == 2
        assert run.config.model.name == "mlp"
        assert summary_of(run.folder)["average_accuracy"] > 0.5


@pytest.mark.run
def test_finished_runs_are_kept_for_the_data_they_have_learned(
    fcl, ran, tmp_path, tables
):
    options = ["--rounds", "1", "--no-local-only", "--output", "here"]
    command = ["compare", "--strategies", "fedavg", *options]
    assert fcl(*command, *tables).code == 0
    refused = fcl(*command, "--data", "b", "--data", "a")
    refused.is_refusal("data: got 'b'", "'here/fedavg-seed0'")
    (tmp_path / "a").rename(tmp_path / "moved")
    assert fcl(*command, "--data", "moved", "--data", "b").code == 0
    assert len(ran) == 1
    train = tmp_path / "b" / "task-02" / "train.csv"
    train.write_text(train.read_text() + "0.0,dog,0.0\n")
    fcl(*command, "--data", "moved", "--data", "b").is_refusal("data: got 'b'")
    assert len(ran) == 1


@pytest.mark.run
def test_an_interrupted_run_goes_on_with_the_data_it_has_learned(
    fcl, ran, tmp_path, tables, monkeypatch
):
    def stop_after_a_round(progress):
        if progress["round"] == 2:
            raise KeyboardInterrupt

    options = ["--strategy", "fedavg", "--rounds", "3", "--output", "here"]
    with monkeypatch.context() as patched:
        shown = "fcl_flower.simulation.progress.Display.show"
        patched.setattr(shown, lambda self, job, progress: stop_after_a_round(progress))
        assert fcl("simulate", *tables, *options).code == 130
    train = tmp_path / "a" / "task-01" / "train.csv"
    whole = train.read_text()
    train.write_text(whole + "0.0,dog,0.0\n")
    refused = fcl("simulate", *tables, "--resume", "here")
    refused.is_refusal("data: got 'a'", "'here'")
    train.write_text(whole)
    assert fcl("simulate", *tables, "--resume", "here").code == 0


@pytest.mark.run
def test_a_study_takes_local_data(fcl, ran, tmp_path, tables):
    (tmp_path / "mine.toml").write_text(
        """
        seeds = [1]
        local_only_counterparts = false
        [run]
        scenario.name = "local-data"
        federation.rounds_per_task = 1
        [[variant]]
        strategy.name = "fedavg"
        """
    )
    fcl("study", "mine.toml", "--output", "here").is_refusal("data: got ''", "folder")
    answer = fcl("study", "mine.toml", *tables, "--output", "here")
    assert answer.code == 0, answer.err
    (run,) = ran
    assert [path.name for path in run.backend.local_data] == ["a", "b"]
    assert run.config.scenario.tasks == 2


@pytest.mark.run
def test_the_settings_that_check_data_proposes_work_when_pasted(fcl, ran, tables):
    answer = fcl("check-data", "a")
    assert answer.code == 0, answer.err
    assert "task" in answer.out
    line = answer.out.splitlines()[-1]
    assert line == (
        "settings: --scenario local-data --set scenario.tasks=2 "
        "--set scenario.classes_per_task=2 --set data.columns=x,y --set model.name=mlp "
        "--set model.num_features=2"
    )
    pasted = shlex.split(line.removeprefix("settings: "))
    again = fcl("simulate", *tables, *pasted, "--strategy", "fedavg", "--rounds", "1")
    assert again.code == 0, again.err
    assert ran[0].config.scenario.clients == 2


def test_check_data_looks_at_all_clients(fcl, tables, tmp_path):
    other = tmp_path / "b" / "task-01" / "train.csv"
    other.write_text(other.read_text().replace("big cat", "Big cat"))
    answer = fcl("check-data", "a", "b")
    assert answer.code == 0, answer.err
    assert "big cat (16), dog (16)" in answer.out
    assert "Big cat (16), dog (16)" in answer.out
    warnings = [w for w in answer.out.splitlines() if w.startswith("warning: ")]
    assert warnings[0].startswith("warning: classes look alike, 'Big cat' (b, task-01)")
    assert "warning: a, task-01: column 'x', 'y' is all that tells" in warnings[1]
    merged = fcl("check-data", "a", "b", "--set", "data.labels=merge")
    assert "look alike" not in merged.out
    assert "data.labels=merge" in merged.out.splitlines()[-1]
    other.write_text(other.read_text().replace("x,", "X,", 1))
    sentence = "b/task-01/train.csv: the table has 'X' and lacks 'x', expected the"
    for command in (["check-data", "a", "b"], ["simulate", *tables]):
        fcl(*command).is_refusal(sentence, "columns of a/task-01/train.csv")


def test_what_is_said_of_columns_must_go_together(fcl, tables):
    given = ["--set", "data.columns=x,z"]
    fcl("check-data", "a", *given).is_refusal("has 'y' and lacks 'z'", "data.columns")
    wide = ["--set", "model.num_features=2", "--set", "data.columns=x,y,z"]
    fcl("check-data", "a", *wide).is_refusal("data.columns", "names of 2 columns")
    named = ["--set", "data.labels=keep", "--dataset", "digits"]
    fcl("simulate", *named).is_refusal("data.labels: got 'keep', expected 'refuse'")


@pytest.mark.run
def test_proposed_settings_are_quoted_for_a_shell(fcl, ran, tables):
    given = ["--set", "model.head=single", "--set", "data.class_names=big cat,dog"]
    answer = fcl("check-data", "a", *given, "--set", 'run.title="2024"')
    assert answer.code == 0, answer.err
    pasted = shlex.split(answer.out.splitlines()[-1].removeprefix("settings: "))
    again = fcl("simulate", *tables, *pasted, "--strategy", "fedavg", "--rounds", "1")
    assert again.code == 0, again.err
    (run,) = ran
    assert run.config.data.classes == ("big cat", "dog")
    assert (run.config.model.head, run.config.run.title) == ("single", "2024")


def test_data_that_do_not_suit_the_settings_are_refused(fcl, tables):
    answer = fcl("check-data", "a", "--classes-per-task", "1")
    answer.is_refusal("scenario.classes_per_task: got 1", "at least 2")
    answer = fcl("check-data", "a", "--set", "model.num_features=3")
    answer.is_refusal("train.csv", "expected (3,)")


# ---- several runs


@pytest.mark.run
def test_options_win_over_a_preset(fcl, ran):
    preset = ("--preset", PRESET, "--dataset", "digits", "--tasks", "2")
    answer = fcl(
        *("simulate", "--strategy", "icarl", *preset, "--model", "small"),
        *("--clients", "2", "--rounds", "1", "--epochs", "1", "--output", "out"),
        *("--set", "memory_per_class=3", "--set", "training.learning_rate=0.01"),
    )
    assert answer.code == 0, answer.err
    assert "average incremental accuracy 0." in answer.out
    (config,) = [run.config for run in ran]
    assert (config.data.datasets, config.training.learning_rate) == ("digits", 0.01)
    assert config.scenario.params["class_order"] == "seed:1993"
    assert config.scenario.clients == 2
    assert (config.training.optimizer, config.training.batch_size) == ("sgd", 128)
    kept = {"memory_per_class": 3, "memory_policy": "herding"}
    assert dict(config.strategy.params) == kept, "it knows no other"


def test_a_preset_that_there_is_not_or_that_says_nothing_is_refused(fcl):
    fcl("simulate", "--preset", "fcil").is_refusal("preset: got 'fcil'", PRESET)
    beside = ("--preset", PRESET, "--config", "out/config.toml")
    fcl("simulate", *beside).is_refusal("preset: got", "none beside --config")
    resumed = ("--preset", PRESET, "--resume", "out")
    fcl("simulate", *resumed).is_refusal("preset: got", "no settings beside resume")


@pytest.mark.run
def test_a_comparison_gives_a_preset_to_those_who_know_it(fcl, ran):
    preset = ("--preset", PRESET, "--dataset", "digits", "--tasks", "2")
    answer = fcl(
        *("compare", "--strategies", "fedavg,replay", *preset, "--model", "small"),
        *("--clients", "2", "--rounds", "1", "--epochs", "1", "--no-local-only"),
        *("--set", "memory_per_class=3", "--learning-rate", "0.01"),
    )
    assert answer.code == 0, answer.err
    kept = {"budget": "fixed", "memory_per_class": 3, "memory_policy": "herding"}
    assert [dict(run.config.strategy.params) for run in ran] == [{}, kept]
    assert "average incremental accuracy" in answer.out


@pytest.mark.run
def test_a_comparison_gives_settings_to_those_who_know_them(fcl, ran, tmp_path):
    answer = fcl(
        *("compare", "--strategies", "fedavg, fedprox,stl", "--seeds", "0,1", *TINY),
        *("--set", "mu=0.5", "--set", "training.lr_patience=2", "--output", "both"),
    )
    assert answer.code == 0, answer.err
    assert [
        (run.config.title, run.config.run.seed, dict(run.config.strategy.params))
        for run in ran
    ] == [
        (title, seed, params)
        for seed in (0, 1)
        for title, params in (
            ("fedavg", {}),
            ("local", {}),
            ("fedprox", {"mu": 0.5}),
            ("fedprox local-only", {"mu": 0.5}),
            ("stl", {}),
        )
    ]
    assert {run.config.training.lr_patience for run in ran} == {2}
    assert "fedprox local-only" in answer.out
    assert "transfer gain" in answer.out
    assert "both/comparison.html" in answer.out
    assert (tmp_path / "both" / "comparison.html").exists()
    ran.clear()
    again = fcl(
        *("compare", "--strategies", "fedavg", "--no-local-only", *TINY),
        *("--set", "training.lr_patience=2", "--output", "both"),
    )
    assert again.code == 0, again.err
    assert ran == []


@pytest.mark.run
@pytest.mark.parametrize(
    ("given", "dataset", "scenario"),
    [
        (["fedavg,concept-matching"], "digits", "concepts"),
        (["fedavg,concept-matching", "--scenario", "classes"], "digits", "classes"),
        (["fedavg,fedseit"], "stdlib-docs", "text"),
        (["fedavg,stl"], "digits", "overlapped"),
    ],
)
def test_compared_strategies_share_what_suits_the_first_that_has_needs(
    fcl, ran, given, dataset, scenario
):
    small = ("--clients", "2", "--tasks", "2", "--rounds", "1", "--no-local-only")
    answer = fcl("compare", *small, "--strategies", *given, "--output", "here")
    assert answer.code == 0, answer.err
    assert [(run.config.data.datasets, run.config.scenario.name) for run in ran] == [
        (dataset, scenario)
    ] * 2


@pytest.mark.run
def test_a_study_runs_what_its_file_and_the_choices_say(fcl, ran, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.toml").write_text(
        """
        seeds = [0, 1, 2]
        [run]
        scenario.clients = 2
        scenario.tasks = 1
        federation.rounds_per_task = 1
        [[variant]]
        strategy.name = "fedavg"
        [[variant]]
        strategy.name = "stl"
        """
    )
    answer = fcl("study", folder / "study.toml", "--seeds", "2", "--only", "stl,local")
    assert answer.code == 0, answer.err
    assert [(run.config.title, run.config.run.seed) for run in ran] == [
        ("local", 2),
        ("stl", 2),
    ]
    assert (tmp_path / "runs" / "mine" / "table.md").exists()


@pytest.mark.run
def test_a_study_chooses_first_and_says_what(fcl, ran, tmp_path):
    (tmp_path / "study.toml").write_text(
        """
        seeds = [1]
        choice_seeds = [7]
        local_only_counterparts = false
        [run]
        scenario.clients = 2
        scenario.tasks = 1
        federation.rounds_per_task = 1
        [[variant]]
        strategy.name = "stl"
        candidates.training.learning_rate = [1e-9, 0.01]
        [[variant]]
        strategy.name = "local"
        candidates.training.epochs = [1, 2]
        """
    )
    answer = fcl("study", "study.toml", "--only", "stl", "--output", "out")
    assert answer.code == 0, answer.err
    assert [
        (run.config.title, run.config.run.seed, run.config.training.learning_rate)
        for run in ran
    ] == [
        ("stl learning_rate=1e-09", 7, 1e-9),
        ("stl learning_rate=0.01", 7, 0.01),
        ("stl", 1, 0.01),
    ]
    assert "training.learning_rate = 0.01" in answer.out
    assert "training.epochs" not in answer.out
    assert (tmp_path / "out" / "choice" / "comparison.html").exists()
    assert (tmp_path / "out" / "comparison.html").exists()


@pytest.mark.run
def test_a_study_of_rows_that_leave_nothing_open_chooses_nothing(fcl, ran, tmp_path):
    (tmp_path / "study.toml").write_text(
        """
        choice_seeds = [7]
        local_only_counterparts = false
        [run]
        scenario.clients = 2
        scenario.tasks = 1
        federation.rounds_per_task = 1
        [[variant]]
        strategy.name = "local"
        [[variant]]
        strategy.name = "stl"
        candidates.training.epochs = [1, 2]
        """
    )
    answer = fcl("study", "study.toml", "--only", "local", "--output", "out")
    assert answer.code == 0, answer.err
    assert [(run.config.title, run.config.run.seed) for run in ran] == [("local", 0)]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("local-seed0", "comparison.html", "table.md", "table.json")
    }


@pytest.mark.run
def test_a_first_round_lost_to_divergence_begins_again_at_another_rate(fcl, tmp_path):
    options = [*TINY, "--strategy", "stl", "--set", "training.optimizer=sgd"]
    lost = fcl("simulate", *options, "--learning-rate", "1e30", "--output", "here")
    assert lost.code == 1
    assert "training diverged" in lost.err
    assert "fcl simulate --resume here --learning-rate RATE" in lost.err
    fcl("simulate", "--resume", "here").is_refusal("resume: got 'here'", "lost its")
    again = fcl("simulate", "--resume", "here", "--learning-rate", "0.1")
    assert again.code == 0, again.err
    fcl("simulate", *options, "--learning-rate", "0.1", "--output", "whole")
    assert summary_of(tmp_path / "here") == summary_of(tmp_path / "whole")


@pytest.mark.run
def test_adapters_that_end_empty_are_said_once_at_the_end(fcl, tmp_path):
    strong = ["--strategy", "fedweit", "--set", "lambda1=1000"]
    answer = fcl("simulate", *TINY, *strong, "--output", "here")
    assert answer.code == 0, answer.err
    said = "adapters ended empty, from which no client can learn: strategy.lambda1 was"
    assert answer.out.count(said) == 1
    assert said in summary_of(tmp_path / "here")["remarks"]["advice"]
    answer = fcl("simulate", *TINY, "--strategy", "fedweit", "--output", "there")
    assert "adapters ended" not in answer.out


@pytest.mark.run
def test_reports_are_made_again_and_compared(fcl, ran, tmp_path):
    for seed in (0, 1):
        fcl("simulate", "--strategy", "stl", *TINY, "--seed", seed, "--output", seed)
    (tmp_path / "0" / "report.html").unlink()
    answer = fcl("report", "0")
    assert (answer.code, answer.out) == (0, "0/report.html\n")
    assert (tmp_path / "0" / "report.html").exists()
    answer = fcl("report", "0", "1", "--output", "both")
    assert (answer.code, answer.out) == (0, "both/comparison.html\n")
    assert (tmp_path / "both" / "comparison.html").exists()


def test_a_study_is_refused_for_a_seed_that_cannot_be_cut(fcl, monkeypatch, tmp_path):
    cut, seeds = build.draw_scenario, []

    def refusing(config, *given):
        seeds.append(config.run.seed)
        if config.run.seed == 2:
            raise ConfigError("scenario.clients: too many for seed 2")
        return cut(config, *given)

    monkeypatch.setattr(build, "draw_scenario", refusing)
    study = tmp_path / "study.toml"
    study.write_text('seeds = [1, 2]\n[[variant]]\nstrategy.name = "local"\n')
    fcl("study", str(study)).is_refusal("seed 2")
    assert seeds == [1, 2]


@pytest.mark.run
def test_a_simulation_of_local_data_goes_on_with_more_tasks_and_clients(
    fcl, tmp_path, tables
):
    for client in ("a", "b", "c"):
        for number in (1, 2, 3):
            task = tmp_path / client / f"task-{number:02}"
            task.mkdir(parents=True, exist_ok=True)
            rows = [f"{n % 2}.{n},{'cat' if n % 2 else 'dog'},1" for n in range(20)]
            (task / "train.csv").write_text("\n".join(["x,label,y", *rows]) + "\n")
    two, third = ["--data", "a", "--data", "b"], ["--data", "c"]
    shape = ["--strategy", "fedavg", "--rounds", "1", "--set", "run.keep_clients=true"]
    done = fcl("simulate", *two, *shape, "--tasks", "1", "--output", "here")
    assert done.code == 0, done.err
    more = ["simulate", "--resume", "here", "--tasks", "3", "--clients", "3"]
    fcl(*more, *two).is_refusal("data: got 'a b', expected 3 folders")
    fcl(*more).is_refusal("data: got '', expected 3 folders")
    fcl(*more, *two, *third, "--epochs", "2").is_refusal(
        "epochs: got 2", "more --tasks"
    )
    fcl("simulate", "--resume", "here", *two).is_refusal("or more --tasks; this one")
    assert summary_of(tmp_path / "here")["tasks"] == 1, "nothing has changed"
    longer = fcl(*more, *two, *third, "--rounds", "2")
    assert longer.code == 0, longer.err
    found = summary_of(tmp_path / "here")
    assert (found["tasks"], found["clients"], found["total_rounds"]) == (3, 3, 5)
    assert found["client_accuracy"][2][0] == [None] * 3
