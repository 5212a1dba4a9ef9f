"""A federation of Flower's own programs learns as a run in one process does."""

import pytest
from fakes import run_in_process, summary_of
from local_runs import add_task
from plain_flower import PlainFlower
from text_sets import write_topics

from fcl_flower.config.run_config import RunConfig

NODES = ("", "")
"""What each SuperNode is configured with."""
SMALL = {
    "scenario.clients": 2,
    "scenario.tasks": 2,
    "federation.rounds_per_task": 1,
    "run.seed": 3,
}
DIGITS = {
    "data.datasets": "digits",
    "scenario.classes_per_task": 2,
    "model.name": "small",
}
SINGLE = {**DIGITS, "model.head": "single"}
METHODS = {
    "fedavg": DIGITS,
    "fedweit": DIGITS,
    "analytic": DIGITS,
    "concept-matching": {"data.datasets": "digits"},
    "fedseit": {},
    "icarl": SINGLE,
    "fedet": {**SINGLE, "strategy.params": "groups = 1"},
}
ONE_CORE = ("--federation-config", "client-resources-num-cpus=1")
"""For each of the two nodes that Flower simulates by default."""
COMPARED = ("average_accuracy", "forgetting", "accuracy_matrix", "bytes_up")
AT_ONCE = 2
"""Runs: a SuperNode answers one message at a time, but waits between two of a run."""
ANEW = "has lost its state and starts anew"


def begun(folder, *nodes):
    """Return a federation of a SuperLink and these SuperNodes; the caller ends it."""
    lab = PlainFlower(folder)
    try:
        lab.superlink()
        for number, config in enumerate(nodes):
            lab.supernode(f"node-{number}", config)
    except BaseException:
        lab.end()
        raise
    return lab


@pytest.fixture(scope="module")
def methods(request, tmp_path_factory):
    """The methods that are chosen, each in a folder of its name; all is over."""
    here = (item for item in request.session.items if item.path == request.path)
    chosen = (item for item in here if "methods" in item.fixturenames)
    names = [item.callspec.params["name"] for item in chosen]
    lab = begun(tmp_path_factory.mktemp("plain"), *NODES)
    try:
        for place, name in enumerate(names):
            if place >= AT_ONCE:
                lab.code(names[place - AT_ONCE])
            settings = settings_of(name, lab.folder / f"data-{name}")
            lab.submit(name, {**settings, "run.output": lab.folder / name})
        lab.codes = {name: lab.code(name) for name in names}
    finally:
        lab.end()
    return lab


def settings_of(name, folder):
    """Return the settings of a small run of a method, and of no folder for it."""
    more = METHODS[name]
    if name == "fedseit":  # which learns from text
        folder.mkdir()
        found = write_topics(folder)
        more = {
            "data.datasets": found["dataset"],
            "data.root": found["data_root"],
            "data.word_vectors": found["word_vectors"],
            "scenario.classes_per_task": 2,
        }
    return {"strategy.name": name, **SMALL, **more}


def numbers(folder):
    found = summary_of(folder)
    return {key: found[key] for key in COMPARED}


def alone(settings, folder, **behaviour):
    """Return the numbers of the same run in this process."""
    run_in_process(RunConfig.of({**settings, "run.output": str(folder)}), **behaviour)
    return numbers(folder)


@pytest.mark.deploy
@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_numbers_of_a_run_in_one_process(methods, name, tmp_path):
    assert methods.codes[name] == 0, methods.tail(name)

    found = numbers(methods.folder / name)

    assert found == alone(settings_of(name, tmp_path / "data"), tmp_path / "alone")
    assert "left out" not in methods.said(name)


@pytest.mark.deploy
def test_a_client_that_is_killed_returns_without_its_state_and_the_run_ends(tmp_path):
    rounds = {"scenario.tasks": 1, "federation.rounds_per_task": 8}
    settings = {**settings_of("fedweit", tmp_path), **rounds}
    lab = begun(tmp_path / "lab", *NODES)
    try:
        lab.submit("run", {**settings, "run.output": tmp_path / "run"})
        lab.until("run", "round 2 of 8")
        lab.kill("node-1")
        lab.supernode("node-1", NODES[1])

        assert lab.code("run") == 0, lab.tail("run")
        assert ANEW in lab.said("run")
    finally:
        lab.end()


@pytest.mark.deploy
def test_clients_learn_from_the_folders_that_their_nodes_name(tmp_path):
    places = [tmp_path / f"data-{number}" for number in range(2)]
    for number, place in enumerate(places):
        add_task(place, 1, number, ["c0", "c1"])
        add_task(place, 2, number + 2, ["c2", "c3"])
    settings = {
        "strategy.name": "fedweit",
        **SMALL,
        "scenario.name": "local-data",
        "scenario.classes_per_task": 2,
        "model.name": "mlp",
        "model.num_features": 3,
    }
    named = [f'data-path="{place}"' for place in places]
    nodes = [" ".join(both).strip() for both in zip(NODES, named, strict=True)]
    lab = begun(tmp_path / "lab", *nodes)
    try:
        lab.submit("run", {**settings, "run.output": tmp_path / "run"})
        assert lab.code("run") == 0, lab.tail("run")
    finally:
        lab.end()

    # Which node gets which number is the server's affair.
    there = [{"data-path": str(place)} for place in places]
    orders = {"one": there, "other": there[::-1]}
    expected = [alone(settings, tmp_path / k, places=v) for k, v in orders.items()]
    assert numbers(tmp_path / "run") in expected


@pytest.mark.ray
def test_a_simulation_has_the_numbers_of_a_run_in_one_process(tmp_path):
    settings = settings_of("fedweit", tmp_path / "data")
    lab = PlainFlower(tmp_path / "lab")
    try:
        lab.superlink("--simulation")
        lab.submit("run", {**settings, "run.output": tmp_path / "run"}, *ONE_CORE)
        assert lab.code("run") == 0, lab.tail("run")
    finally:
        lab.end()

    assert numbers(tmp_path / "run") == alone(settings, tmp_path / "alone")
