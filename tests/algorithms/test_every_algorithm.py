"""What holds for each algorithm, whatever it does inside."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from every_method import suited
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from text_sets import write_topics
from watched import Seen, note_learner

import strategies
from fcl_flower.algorithms.base import ClientQueries, Params, ServerQueries, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.local_training import LocalTraining
from fcl_flower.algorithms.registry import (
    Algorithm,
    algorithm,
    algorithms,
    local_only_counterpart,
)
from fcl_flower.core import registry as core_registry
from fcl_flower.core.errors import (
    ConfigError,
    ContractError,
    PluginWarning,
    RoundError,
)
from fcl_flower.data.examples import Examples, TaskData
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.server_trainer import ServerTrainer
from strategies.fedavg import FedAvg

NAMES = sorted(algorithms())


@pytest.mark.run
@pytest.mark.parametrize("name", ["fedavg", "fedet", "analytic"])
def test_without_validation_samples_all_is_trained_on_and_nothing_decided(
    tmp_path, name
):
    given = {"strategy": name, **suited(name, tmp_path), "lr_patience": 0}
    usual = {"name": algorithm(name).scenario or "overlapped"}
    run_in_process(tiny(tmp_path / "held", **given, scenario=usual))
    none = {**usual, "valid_fraction": 0.0}
    run_in_process(tiny(tmp_path / "none", **given, scenario=none))

    held, none = (
        json.loads((tmp_path / name / "scenario.json").read_text())["clients"]
        for name in ("held", "none")
    )
    whole = [t["train"] + t["valid"] for tasks in held for t in tasks]
    assert [t["train"] for tasks in none for t in tasks] == whole
    assert not any(row["failed"] for row in rounds_of(tmp_path / "none"))
    assert {row["valid_loss"] for row in rounds_of(tmp_path / "none")} == {None}


@pytest.mark.parametrize(
    "look", [lambda test: test.x, len, lambda test: [*test], lambda test: test[0]]
)
@pytest.mark.parametrize("call", ["train", "answer_query"])
def test_a_learner_that_looks_at_test_data_is_found(look, call):
    none = Examples(torch.empty(0, 1), torch.empty(0).long())

    def looked(turn):
        return look(turn.data.test)

    learner = SimpleNamespace(train=looked, answer_query=looked, select_model=None)
    seen = Seen(Path())
    note_learner(seen, learner, seal=True)
    with pytest.raises(AssertionError, match="test data"):
        getattr(learner, call)(Turn({}, {}, None, TaskData(none, none, none, 1)))
    assert seen.looks


# ---- local-only


def accuracies(folder, **values):
    run_in_process(tiny(folder, **values))
    return summary_of(folder)["client_accuracy"]


@pytest.mark.run
def test_local_only_fedavg_is_sequential_local_training(tmp_path):
    given = {"head": "single", "rounds": 2}
    alone = accuracies(tmp_path / "a", strategy="fedavg", local_only=True, **given)
    local = accuracies(tmp_path / "b", strategy="local", **given)
    together = accuracies(tmp_path / "c", strategy="fedavg", **given)
    assert alone == local
    assert alone != together


@pytest.mark.run
def test_local_only_clients_do_not_know_of_each_other(tmp_path):
    def without_others(who, request, reply):
        trains = request.kind == "train"
        return failure(request, "absent") if who and trains else reply

    config = tiny(tmp_path / "a", strategy="ewc", local_only=True)
    run_in_process(config)
    run_in_process(config.replace(output=str(tmp_path / "b")), tamper=without_others)
    run_in_process(
        config.replace(output=str(tmp_path / "c"), local_only=False, epochs=2)
    )
    run_in_process(
        config.replace(output=str(tmp_path / "d"), local_only=False, epochs=2),
        tamper=without_others,
    )
    first = {run: summary_of(tmp_path / run)["client_accuracy"][0] for run in "abcd"}
    assert first["a"] == first["b"]
    # The same measure sees cross-talk where there is some.
    assert first["c"] != first["d"]


def test_a_local_only_learner_keeps_the_state_of_both_sides_apart(tmp_path):
    config = tiny(tmp_path, strategy="fedweit", local_only=True)
    made = Built(resolve(config)).learner(1)
    assert isinstance(made, LocalOnlyLearner)
    state = made.init()
    assert {g for g in state if g.startswith("server:")} >= {"server:base"}
    assert "base" in state


def test_the_counterpart_is_the_same_algorithm_without_communication(tmp_path):
    def counterpart(**values):
        found = local_only_counterpart(tiny(tmp_path, **values))
        return found and (found.strategy.name, found.strategy.local_only, found.title)

    assert counterpart(strategy="fedavg") == ("local", False, "local")
    assert counterpart(strategy="ewc") == ("ewc", True, "ewc local-only")
    assert counterpart(strategy="ewc", title="EWC 10") == (
        "ewc",
        True,
        "EWC 10 local-only",
    )
    assert counterpart(strategy="ewc", local_only=True) is None
    assert counterpart(strategy="local") is None
    assert counterpart(strategy="stl") is None


# ---- the table


@pytest.mark.parametrize("name", ["fedsgd", "replay_reg", "fedweit.server", ""])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(ConfigError, match=rf"strategy: got '{name}', "):
        algorithm(name)


def test_a_misspelt_name_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"; did you mean 'fedweit'\?$"):
        algorithm("fedwiet")


@pytest.mark.parametrize("name", NAMES)
def test_a_declaration_and_its_two_sides_fit_each_other(name):
    entry = algorithm(name)
    assert entry.name == name
    assert entry.summary
    assert not entry.summary.endswith(".")
    assert entry.paper
    assert re.fullmatch(r"strategies\.[\w.]+:\w+", entry.server)
    assert re.fullmatch(r"(clients|fcl_flower)\.[\w.]+:\w+", entry.client)
    assert entry.counterpart in {"", *NAMES}
    server, client = entry.load_server(), entry.load_client()
    assert issubclass(server, ServerQueries) == issubclass(client, ClientQueries)
    if entry.trainer:
        assert issubclass(entry.load_trainer(), ServerTrainer)
    assert type(entry.params({})) is entry.params_type
    with pytest.raises(ConfigError, match=r"\.lambda9: got 'lambda9', expected"):
        entry.params({"lambda9": 1})


def test_a_preset_has_parameters_of_its_own_which_a_user_may_change():
    preset = replace(
        algorithm("fedprox"), defaults={"strategy.mu": 0.5, "scenario.name": "text"}
    )
    assert algorithm("fedprox").params({}).mu == 0.005
    assert preset.params({}).mu == 0.5
    assert preset.params({"mu": 0.25}).mu == 0.25
    assert preset.scenario == "text"


class Point:
    """An entry point of an installed package."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def load(self):
        return self.value


def test_an_installed_package_may_add_an_algorithm(tmp_path, monkeypatch):
    theirs = replace(algorithm("ewc"), name="theirs")
    monkeypatch.setattr(
        core_registry,
        "entry_points",
        lambda group: [Point("theirs", theirs)] * (group == "fcl_flower.algorithms"),
    )
    assert algorithms()["theirs"] is theirs
    run = resolve(tiny(tmp_path, strategy="theirs"))
    assert type(Built(run).learner(0)) is theirs.load_client()


def test_an_entry_point_that_is_no_algorithm_is_named(monkeypatch):
    monkeypatch.setattr(core_registry, "entry_points", lambda group: [Point("odd", 3)])
    with pytest.warns(PluginWarning, match=r"entry point odd .*; it is left out"):
        assert "fedavg" in algorithms()


def test_an_entry_point_under_another_name_is_left_out_by_name(monkeypatch):
    point = Point("odd", replace(algorithm("fedavg"), name="even"))
    monkeypatch.setattr(core_registry, "entry_points", lambda group: [point])
    with pytest.warns(PluginWarning, match="entry point odd: got the algorithm 'even'"):
        assert "odd" not in algorithms()


@pytest.mark.parametrize("name", ["fedavg", "replay-reg"])
def test_an_entry_point_does_not_take_the_name_of_ours(monkeypatch, name):
    point = Point(name, replace(algorithm("ewc"), name=name))
    monkeypatch.setattr(core_registry, "entry_points", lambda group: [point])
    assert algorithm(name).paper != point.value.paper
    with pytest.warns(
        PluginWarning, match=f"entry point {name} of .*: got the name of"
    ):
        assert algorithms()[name].paper != point.value.paper


@pytest.mark.parametrize(
    "text", ["", "ALGORITHM = 3", "from strategies.fedavg import ALGORITHM"]
)
def test_a_module_without_a_declaration_of_its_own_is_named(
    tmp_path, monkeypatch, text
):
    (tmp_path / "undeclared.py").write_text(text)
    monkeypatch.setattr(strategies, "__path__", [str(tmp_path)])
    try:
        for found in (algorithms, lambda: algorithm("undeclared")):
            with pytest.raises(ContractError, match=r"strategies\.undeclared: got"):
                found()
    finally:
        sys.modules.pop("strategies.undeclared", None)


@pytest.mark.process
def test_one_algorithm_is_found_without_importing_the_others():
    program = (
        "import sys; from fcl_flower.algorithms.registry import algorithm; "
        "algorithm('ewc'); print(*sorted(n for n in sys.modules if 'strateg' in n))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["strategies", "strategies.ewc"]


def test_a_side_that_is_none_is_named():
    swapped = Algorithm(
        name="swapped",
        server="fcl_flower.algorithms.local_training:LocalTraining",
        client="strategies.fedavg:FedAvg",
    )
    with pytest.raises(ContractError, match=r"swapped: got server \S+:LocalTraining"):
        swapped.load_server()
    with pytest.raises(ContractError, match=r"got client strategies\.fedavg:FedAvg, e"):
        swapped.load_client()
    missing = replace(swapped, server="strategies.fedavg:Nothing")
    with pytest.raises(ContractError, match="Nothing, expected a ServerStrategy"):
        missing.load_server()
    with pytest.raises(ContractError, match="got trainer '', expected the path"):
        missing.load_trainer()


def test_the_sides_may_be_classes():
    own = Algorithm(name="own", server=FedAvg, client=LocalTraining)
    assert own.load_server() is FedAvg
    assert own.load_client() is LocalTraining
    assert own.federated
    assert own.params({}) == Params()


@pytest.mark.run
def test_a_query_to_a_learner_that_answers_none_names_the_learner(
    tmp_path, monkeypatch, caplog
):
    odd = replace(
        algorithm("fedseit"),
        name="odd",
        client="fcl_flower.algorithms.local_training:LocalTraining",
    )
    monkeypatch.setattr(
        core_registry, "entry_points", lambda group: [Point("odd", odd)]
    )
    given = {"strategy.knowledge": "sit:1", "strategy.name": "odd"}
    config = tiny(tmp_path, **write_topics(tmp_path), **given, tasks=1)
    with pytest.raises(RoundError):  # it cannot train on what it receives, either
        run_in_process(config)
    assert "LocalTraining: got a query, expected none" in caplog.text
