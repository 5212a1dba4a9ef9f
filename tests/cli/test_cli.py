import json
import os
import signal
import sys
import tomllib

import numpy as np
import pytest
from fakes import run_in_process, summary_of

from fcl_flower import __version__
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.cli import main
from fcl_flower.cli.options import NOT_OPTIONS
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError
from fcl_flower.runtime import simulation

TINY = ["--clients", "2", "--tasks", "2", "--rounds", "1", "--classes-per-task", "2"]


class Answer:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def fcl(monkeypatch, capsys, tmp_path):
    """Call the command in this process; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FCL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fcl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        shown = capsys.readouterr()
        return Answer(ended.value.code or 0, shown.out, shown.err)

    yield call
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def simulated(monkeypatch):
    """Put the in-process grid in the place of Flower's simulation runtime."""
    ran = []

    def simulate(config, folder, *, workers, gpus_per_client, watch):
        ran.append((config, folder, workers, gpus_per_client))
        run_in_process(config.replace(output=str(folder)))
        watch(json.loads((folder / "progress.json").read_text()))
        return json.loads((folder / "summary.json").read_text())

    monkeypatch.setattr(simulation, "simulate", simulate)
    return ran


@pytest.fixture
def nothing_runs(monkeypatch):
    def simulate(*given, **named):
        raise AssertionError("a run began")

    monkeypatch.setattr(simulation, "simulate", simulate)


def assert_one_sentence(answer, *parts):
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("fcl: ")
    for part in parts:
        assert part in line
    assert "Traceback" not in answer.err + answer.out


# ---- what is refused


WRONG_TYPES = [
    (f"--{name.replace('_', '-')}", "a1")
    for name, field in RunConfig.model_fields.items()
    if field.annotation in (int, float)
]


@pytest.mark.parametrize(("option", "value"), WRONG_TYPES)
def test_a_number_that_is_none_is_refused(fcl, nothing_runs, option, value):
    answer = fcl("simulate", option, value)
    assert_one_sentence(answer, option, repr(value), "is not a valid")


def test_every_number_of_a_run_is_an_option():
    assert len(WRONG_TYPES) == 30


REFUSED = [
    (["--strategy", "fedsgd"], ["strategy: got 'fedsgd'", "fedavg", "fedweit"]),
    (["--set", "lambda9=1"], ["set lambda9", "lambda1"]),
    (["--set", "lambda1=-1"], ["set lambda1: -1", "greater than or equal to 0"]),
    (["--set", "lambda1=much"], ["set lambda1: 'much'", "a valid number"]),
    (["--set", "gate=tanh"], ["set gate: 'tanh'", "'sigmoid'"]),
    (["--set", "lambda1"], ["set: 'lambda1'", "KEY=VALUE"]),
    (["--set", "=1"], ["set: '=1'", "KEY=VALUE"]),
    (["--set", "lambda1="], ["set: 'lambda1='", "KEY=VALUE"]),
    (["--set", "a b=1"], ["set: 'a b=1'", "KEY=VALUE"]),
    (["--set", "λ=1"], ["set"]),
    (["--set", "lambda1={a=1}"], ["set"]),
    (["--set", "lambda1=2020-01-01"], ["set"]),
    (["--tasks", "6"], ["tasks: got 6", "5"]),
    (["--classes-per-task", "11"], ["tasks: got 4", "11 classes"]),
    (["--dataset", "nowhere"], ["nowhere"]),
    (["--dataset", "digits,digits"], ["dataset"]),
    (["--dataset", "../../etc/passwd"], ["passwd"]),
    (["--scenario", "easy"], ["scenario: got 'easy'", "overlapped"]),
    (["--model", "vgg"], ["model: got 'vgg'", "small"]),
    (["--model", "lenet5"], ["model", "lenet"]),
    (["--head", "many"], ["--head", "'many'", "'single'"]),
    (["--precision", "int8"], ["--precision", "'int8'", "'bfloat16'"]),
    (["--clients", "-2"], ["clients: -2 is refused", "greater than or equal to 0"]),
    (["--min-replies", "5"], ["min-replies: 5 is refused", "4 x 1.0"]),
    (["--min-replies", "3", "--fraction", "0.5"], ["min-replies: 3 is refused"]),
    (["--fraction", "1.01"], ["fraction: 1.01", "less than or equal to 1"]),
    (["--fraction", "0"], ["fraction: 0.0", "greater than 0"]),
    (["--fraction", "nan"], ["fraction: nan", "a finite number"]),
    (["--learning-rate", "inf"], ["learning-rate: inf", "a finite number"]),
    (["--seed", "-1"], ["seed: -1 is refused", "greater than or equal to 0"]),
    (["--device", "gpu"], ["device: 'gpu'", "auto, cpu"]),
    (["--workers", "0"], ["--workers", "0"]),
    (["--gpus-per-client", "-1"], ["--gpus-per-client", "-1"]),
    (["--config", "missing.toml"], ["config: 'missing.toml'", "expected a TOML file"]),
    (["--nonsense"], ["--nonsense"]),
    (["--seed"], ["--seed", "requires an argument"]),
    (["extra"], ["extra"]),
]


@pytest.mark.parametrize(("arguments", "parts"), REFUSED, ids=str)
def test_bad_input_is_answered_with_one_sentence(fcl, nothing_runs, arguments, parts):
    assert_one_sentence(fcl("simulate", *arguments), *parts)
    assert not os.listdir()  # and leaves nothing behind


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("clients = ", ["config", "expected a TOML file"]),
        ("clients = '3'", ["clients: '3' is refused", "a valid integer"]),
        ("client = 3", ["client: unknown key"]),
        ("[run]\nclients = 3", ["run: unknown key"]),
        ("set = 'lambda1'", ["set"]),
    ],
)
def test_a_malformed_file_is_answered_with_one_sentence(
    fcl, nothing_runs, tmp_path, text, parts
):
    (tmp_path / "run.toml").write_text(text)
    assert_one_sentence(fcl("simulate", "--config", "run.toml"), *parts)


def test_a_file_that_is_no_text_is_answered_with_one_sentence(fcl, tmp_path):
    (tmp_path / "run.toml").write_bytes(bytes(range(128, 256)))
    assert_one_sentence(fcl("simulate", "--config", "run.toml"), "config: 'run.toml'")
    assert_one_sentence(fcl("simulate", "--config", "."), "config: '.'")


def test_a_file_in_the_way_of_the_results_is_named(fcl, nothing_runs, tmp_path):
    (tmp_path / "taken").write_text("")
    for place in ("taken", "taken/below"):
        answer = fcl("simulate", *TINY, "--output", place)
        assert_one_sentence(answer, f"output: '{place}' is refused", "can be written")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_is_read_only_is_named(fcl, nothing_runs, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    answer = fcl("simulate", *TINY, "--output", "locked/run")
    assert_one_sentence(answer, "output: 'locked/run' is refused")


def test_a_place_that_cannot_be_written_is_named(fcl, nothing_runs, monkeypatch):
    def refuse(self, *given, **named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    answer = fcl("simulate", *TINY, "--output", "locked")
    assert_one_sentence(answer, "output: 'locked'", "Permission denied")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["unknown"], ["unknown"]),
        (["--unknown"], ["--unknown"]),
        (["study"], ["FILE"]),
        (["study", "missing.toml"], ["study: 'missing.toml'"]),
        (["report"], ["FOLDERS"]),
        (["report", "missing"], ["missing"]),
        (["report", "missing", "other"], ["missing"]),
        (["scenario", "--tasks", "0"], ["tasks: 0 is refused"]),
        (["scenario", "--save", "no/such/folder"], ["save: 'no/such/folder'"]),
        (["compare", "--strategies", "fedavg,fedsgd"], ["strategy: got 'fedsgd'"]),
        (["compare", "--strategies", ","], ["strategies: ','", "separated by commas"]),
        (["compare", "--strategies", "ewc,ewc"], ["strategies: 'ewc,ewc'"]),
        (["compare", "--seeds", "0,a"], ["seeds: 'a'", "whole numbers"]),
        (["compare", "--seeds", "-1"], ["seeds: '-1'"]),
        (["compare", "--seeds", "²"], ["seeds: '²'"]),
        (["compare", "--seeds", "1,1"], ["seeds: '1,1'"]),
        (["compare", "--seed", "1"], ["--seed"]),
        (["compare", "--set", "lambda9=1"], ["set lambda9", "fedavg,fedweit"]),
        (["compare", "--set", "kappa=7"], ["set kappa: 7"]),
        (["compare", "--clients", "-1"], ["clients: -1 is refused"]),
    ],
    ids=str,
)
def test_bad_input_of_the_other_commands(fcl, nothing_runs, arguments, parts):
    assert_one_sentence(fcl(*arguments), *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--only", "fedsgd"], ["only: 'fedsgd'", "fedavg, local"]),
        (["--seeds", "x"], ["seeds: 'x'"]),
        (["--data-root", "nowhere", "--only", "fedavg"], []),
    ],
)
def test_bad_choices_within_a_study(fcl, nothing_runs, tmp_path, options, parts):
    (tmp_path / "study.toml").write_text(
        '[run]\ndataset = "mine"\n[[variant]]\nstrategy = "fedavg"\n'
    )
    assert_one_sentence(fcl("study", "study.toml", *options), *parts)


def test_an_interrupt_is_no_traceback(fcl, monkeypatch):
    def interrupt(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "simulate", interrupt)
    answer = fcl("simulate", *TINY)
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_a_request_to_end_lets_a_run_clean_up(fcl, monkeypatch):
    cleaned = []

    def terminated(*given, **named):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

    monkeypatch.setattr(simulation, "simulate", terminated)
    assert fcl("simulate", *TINY).code == 143
    assert cleaned == [True]


def test_a_run_that_fails_is_no_mistake_of_the_user(fcl, monkeypatch):
    def fail(*given, **named):
        raise RoundError("the run did not finish; the reason stands in x/flower.log")

    monkeypatch.setattr(simulation, "simulate", fail)
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


def test_help_shows_every_setting_with_its_default(fcl):
    answer = fcl("simulate", "--help")
    assert answer.code == 0
    text = " ".join(answer.out.split())
    for name, field in RunConfig.model_fields.items():
        if name not in NOT_OPTIONS:
            assert f"--{name.replace('_', '-')}" in text
            assert " ".join(field.description.split()) in text
    assert "[default: 0.15]" in text


def test_the_version_is_shown(fcl):
    answer = fcl("--version")
    assert (answer.code, answer.out) == (0, f"fcl, version {__version__}\n")


def test_the_list_shows_all_there_is(fcl, tmp_path):
    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    np.savez(folder / "clothes.npz", x_train=np.zeros(1))
    answer = fcl("list")
    assert answer.code == 0
    for name, entry in algorithms().items():
        assert name in answer.out
        assert entry.summary in answer.out
        assert entry.paper in answer.out
    for name in ("overlapped", "mixed", "resnet18", "lenet", "digits", "hub:NAME"):
        assert name in answer.out
    assert "clothes" in answer.out


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


def test_a_run_says_what_came_out_and_where_the_report_is(fcl, simulated, tmp_path):
    answer = fcl("simulate", "--strategy", "fedavg", *TINY, "--output", "here")
    assert answer.code == 0
    found = summary_of(tmp_path / "here")
    lines = answer.out.splitlines()
    assert lines[-1] == (
        f"accuracy {found['average_accuracy']:.3f}, forgetting "
        f"{found['forgetting']:.3f}; report: here/report.html"
    )
    assert lines[-2].startswith("fedavg seed 0: task 2/2  round 2/2")
    assert (tmp_path / "here" / "report.html").exists()


def test_a_run_without_a_place_gets_a_new_one_with_a_speaking_name(
    fcl, simulated, tmp_path
):
    for _ in range(2):
        fcl("simulate", "--strategy", "local", *TINY, "--seed", "5")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "local-overlapped-digits-seed5",
        "local-overlapped-digits-seed5-2",
    }


def test_a_finished_run_is_not_replaced_by_accident(fcl, simulated, tmp_path):
    first = ["simulate", "--strategy", "local", *TINY, "--output", "here"]
    assert fcl(*first).code == 0
    assert_one_sentence(fcl(*first), "output: 'here' holds a finished run")
    assert len(simulated) == 1
    assert fcl(*first, "--seed", "1", "--overwrite").code == 0
    assert summary_of(tmp_path / "here")["seed"] == 1


def test_options_reach_the_run(fcl, simulated):
    fcl(
        *("simulate", "--strategy", "fedweit", *TINY, "--output", "here"),
        *("--set", "lambda1=0.5", "--set", "knowledge=sample:3"),
        *("--set", 'gate="identity"', "--set", " kappa = 1 "),
        *("--local-only", "--head", "single", "--learning-rate", "1"),
        *("--workers", "3", "--gpus-per-client", "0.5"),
    )
    ((config, folder, workers, gpus),) = simulated
    assert config.set == (
        'lambda1 = 0.5, knowledge = "sample:3", gate = "identity", kappa = 1'
    )
    assert (config.strategy.local_only, config.model.head) == (True, "single")
    assert (config.training.learning_rate, config.scenario.clients) == (1.0, 2)
    assert (folder.name, workers, gpus) == ("here", 3, 0.5)


def test_a_switch_of_two_words_is_on_or_off(fcl, simulated):
    ids = ("simulate", "--scenario", "concepts", "--clients", "2", "--tasks", "2")
    fcl(*ids, "--concept-ids", "--output", "on")
    fcl(*ids, "--no-concept-ids", "--output", "off")
    assert [run[0].concept_ids for run in simulated] == [True, False]


def test_several_settings_in_one_argument_are_not_lost(fcl, simulated):
    fcl("simulate", *TINY, "--set", "lambda1=0.5, lambda2=7", "--output", "here")
    assert simulated[0][0].set == "lambda1 = 0.5, lambda2 = 7"


def test_by_default_one_client_trains_on_each_core(fcl, simulated):
    fcl("simulate", "--strategy", "local", *TINY)
    assert simulated[0][2] == len(os.sched_getaffinity(0))


def test_a_run_can_be_repeated_from_its_own_record(fcl, simulated, tmp_path):
    fcl(
        *("simulate", "--strategy", "fedprox", *TINY, "--set", "mu=0.5"),
        *("--seed", "4", "--output", "first"),
    )
    fcl("simulate", "--config", "first/config.toml", "--output", "again")
    first, again = (
        tomllib.loads((tmp_path / name / "config.toml").read_text())
        for name in ("first", "again")
    )
    assert first.pop("output") != again.pop("output")
    assert first == again
    assert summary_of(tmp_path / "first") == summary_of(tmp_path / "again")


def test_options_and_settings_go_on_top_of_a_file(fcl, simulated, tmp_path):
    text = RunConfig.from_settings(
        strategy="fedweit",
        clients=2,
        tasks=1,
        rounds=1,
        **{"strategy.params": "lambda1 = 3, kappa = 0.5"},
    ).to_toml()
    (tmp_path / "run.toml").write_text(text)
    fcl(
        *("simulate", "--config", "run.toml", "--seed", "9", "--set", "lambda1=4"),
        *("--output", "here"),
    )
    config = simulated[0][0]
    assert (config.run.seed, config.scenario.tasks) == (9, 1)
    assert config.set == "lambda1 = 4, kappa = 0.5"


def test_a_run_without_scores_is_no_traceback(fcl, monkeypatch):
    monkeypatch.setattr(
        simulation,
        "simulate",
        lambda *given, **named: {"average_accuracy": None, "forgetting": None},
    )
    answer = fcl("simulate", *TINY, "--output", "here")
    assert answer.code == 0
    assert "accuracy unknown, forgetting unknown; report: here" in answer.out


def test_a_comparison_gives_settings_to_those_who_know_them(fcl, simulated, tmp_path):
    answer = fcl(
        *("compare", "--strategies", "fedavg, fedprox,stl", "--seeds", "0,1", *TINY),
        *("--set", "mu=0.5", "--output", "both"),
    )
    assert answer.code == 0
    assert [
        (config.title, config.run.seed, config.set) for config, *_ in simulated
    ] == [
        (title, seed, text)
        for seed in (0, 1)
        for title, text in (
            ("fedavg", ""),
            ("local", ""),
            ("fedprox", "mu = 0.5"),
            ("fedprox isolated", "mu = 0.5"),
            ("stl", ""),
        )
    ]
    assert "fedprox isolated" in answer.out
    assert "transfer gain" in answer.out
    assert "both/comparison.html" in answer.out
    assert (tmp_path / "both" / "comparison.html").exists()
    simulated.clear()
    again = fcl(
        *("compare", "--strategies", "fedavg", "--no-local-only", *TINY),
        *("--output", "both"),
    )
    assert again.code == 0
    assert simulated == []


@pytest.mark.parametrize(
    ("given", "dataset", "scenario"),
    [
        (["fedavg,concept-matching"], "digits", "concepts"),
        (["fedavg,concept-matching", "--scenario", "classes"], "digits", "classes"),
        (["fedavg,fedseit"], "stdlib-docs", "text"),
        (["fedavg,stl"], "digits", "overlapped"),
    ],
)
def test_compared_methods_share_what_suits_the_first_that_has_needs(
    fcl, simulated, given, dataset, scenario
):
    small = ("--clients", "2", "--tasks", "2", "--rounds", "1", "--no-local-only")
    answer = fcl("compare", *small, "--strategies", *given, "--output", "here")
    assert answer.code == 0
    assert [(c.dataset, c.scenario) for c, *_ in simulated] == [(dataset, scenario)] * 2


def test_a_study_runs_what_its_file_and_the_choices_say(fcl, simulated, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "study.toml").write_text(
        """
        seeds = [0, 1, 2]
        [run]
        clients = 2
        tasks = 1
        rounds = 1
        [[variant]]
        strategy = "fedavg"
        [[variant]]
        strategy = "stl"
        """
    )
    answer = fcl("study", folder / "study.toml", "--seeds", "2", "--only", "stl,local")
    assert answer.code == 0
    assert [(config.title, config.run.seed) for config, *_ in simulated] == [
        ("local", 2),
        ("stl", 2),
    ]
    assert (tmp_path / "runs" / "mine" / "table.md").exists()


def test_reports_are_made_again_and_compared(fcl, simulated, tmp_path):
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
    from fcl_flower.core.errors import ConfigError
    from fcl_flower.setup import factory

    cut, seeds = factory.build_scenario, []

    def refusing(config):
        seeds.append(config.run.seed)
        if config.run.seed == 2:
            raise ConfigError("clients: too many for seed 2")
        return cut(config)

    monkeypatch.setattr(factory, "build_scenario", refusing)
    study = tmp_path / "study.toml"
    study.write_text('seeds = [1, 2]\n[[variant]]\nstrategy = "local"\n')
    assert_one_sentence(fcl("study", str(study)), "seed 2")
    assert seeds == [1, 2]
