"""The command ``fcl serve``: what it refuses, and how it shows a service."""

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from fcl_flower.cli.main import cli
from fcl_flower.cli.serve import show_status
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.files import lock_folder
from fcl_flower.service import supervisor
from fcl_flower.service.status import (
    BEGIN_NOW,
    SERVICE_LOCK,
    ClientTasks,
    Policy,
    ServiceStatus,
)

RUN = (
    *("--strategy", "fedavg", "--model", "mlp", "--set", "model.num_features=2"),
    *("--classes-per-task", "2", "--insecure"),
)


def call(*options):
    return CliRunner().invoke(
        cli,
        ["serve", *map(str, options)],
        standalone_mode=False,
        catch_exceptions=False,
    )


@pytest.fixture
def served(monkeypatch):
    """Return what the command would serve: configurations and policies."""
    found = []
    serve = lambda *given: found.append(given[1:3])  # noqa: E731
    monkeypatch.setattr(supervisor, "keep_serving", serve)
    return found


def status(**changes):
    clients = {
        0: ClientTasks(connected=True, tasks=3, learned=2, samples=40, told=990.0),
        1: ClientTasks(connected=True, tasks=1, learned=1, samples=0, told=400.0),
        2: ClientTasks(),
    }
    given = {
        "state": "waiting",
        "since": 700.0,
        "learned": 2,
        "sentence": "waits for a new task at 2 clients, where 1 have one",
        "clients": clients,
    }
    return ServiceStatus(**{**given, **changes})


def test_a_service_is_of_local_data_and_has_a_policy(tmp_path, served):
    more = ("--quorum", "3", "--deadline", "2d", "--every", "6h", "--min-samples", 500)
    call(*RUN, *more, "--look", "90s", "--clients", 4, "--output", tmp_path / "x")

    ((config, policy),) = served
    assert policy == Policy(
        quorum=3, deadline=172800, every=21600, min_samples=500, look=90
    )
    assert (config.scenario.name, config.scenario.clients) == ("local-data", 4)
    assert config.run.output == str(tmp_path / "x")
    assert config.run.id.startswith("x-")


def test_the_same_command_goes_on_and_another_is_refused(tmp_path, served):
    call(*RUN, "--seed", 3, "--output", tmp_path)
    kept = served[0][0].replace(tasks=7, clients=4, sat_out="1:2", rounds=2)
    (tmp_path / "config.toml").write_text(kept.to_file())

    call(*RUN, "--seed", 3, "--output", tmp_path, "--quorum", 0.9)

    assert served[1][0] == RunConfig.read(tmp_path / "config.toml", "")
    assert served[1][1].quorum == 0.9
    grown = kept.replace(**{"data.class_names": "a,b,c", "model.head": "single"})
    names = ("--set", "data.class_names=a,b", "--set", "model.head=single")
    (tmp_path / "config.toml").write_text(grown.replace(growing_head=True).to_file())
    call(*RUN, *names, "--seed", 3, "--output", tmp_path)
    (tmp_path / "config.toml").write_text(grown.to_file())
    with pytest.raises(ConfigError, match=r"data\.class_names: got 'a,b'"):
        call(*RUN, *names, "--seed", 3, "--output", tmp_path)
    with pytest.raises(ConfigError, match=r"run\.seed: got 4, expected 3, as the"):
        call(*RUN, "--seed", 4, "--output", tmp_path)
    switch = ("--set", "federation.per_class=true")
    with pytest.raises(ConfigError, match="per_class: got true, expected false, as"):
        call(*RUN, *switch, "--seed", 3, "--output", tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "output: got '', expected a folder"),
        (
            ("--output", "x", "--set", "scenario.name=overlapped"),
            "scenario.name: got 'overlapped', expected local-data",
        ),
        (
            ("--output", "x", "--set", "asynchronous.enabled=true"),
            "asynchronous.enabled: got ",
        ),
        (("--output", "x", "--set", "model.num_features=0"), "model.num_features"),
        (("--now", "nowhere"), "nowhere/service.json"),
        (("--status", "nowhere"), "nowhere/service.json"),
    ],
)
def test_what_makes_no_service_is_refused(tmp_path, monkeypatch, served, options, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        call(*RUN, *options)
    assert not served


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("quorum", "0", "got '0', expected a fraction"),
        ("quorum", "1.5", "got '1.5', expected a fraction"),
        ("quorum", "all", "got 'all', expected a fraction"),
        ("every", "6 hours", "got '6 hours', expected a duration"),
        ("deadline", "-1", "got '-1', expected a duration"),
    ],
)
def test_other_quorums_and_durations_are_refused(served, option, value, said):
    with pytest.raises(click.BadParameter) as refusal:
        call(*RUN, "--output", "x", f"--{option}", value)
    assert f"'--{option}': {said}" in refusal.value.format_message()


def test_a_service_is_told_to_begin(tmp_path):
    status().write(tmp_path)
    assert "begins when it looks" in call("--now", tmp_path).output
    assert (tmp_path / BEGIN_NOW).exists()


def test_the_status_of_a_service_is_words_and_a_table(capsys):
    show_status(Console(width=100), status(due=4600.0), 1000.0)
    said = capsys.readouterr().out
    assert "(5 min): waits for a new task at 2 clients, where 1 have one" in said
    assert "tasks learned: 2" in said
    assert "(in 60 min)" in said
    rows = [line.split() for line in said.splitlines() if line[1:2].isdigit()]
    assert [" ".join(row) for row in rows] == [
        "0 has a new task 3 2 40 10 s ago",
        "1 has no new task 1 1 0 10 min ago",
        "2 not connected 0 0 0 never",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "next training: not known yet"),
        ({"due": 900.0}, "next training: now"),
        ({"state": "training", "sentence": "trains on task 2"}, "trains on task 2"),
    ],
)
def test_it_says_when_the_next_training_begins(capsys, changes, said):
    show_status(Console(width=100), status(**changes), 1000.0)
    printed = capsys.readouterr().out
    assert said in printed
    assert ("next training" in printed) == (changes.get("state") != "training")


def test_the_command_reads_the_status_of_a_folder(tmp_path):
    status().write(tmp_path)
    said = call("--status", tmp_path).output
    assert "has a new task" in said
    assert "no service runs in this folder now" in said
    with lock_folder(tmp_path, "run.output", SERVICE_LOCK):
        assert "no service runs" not in call("--status", tmp_path).output
