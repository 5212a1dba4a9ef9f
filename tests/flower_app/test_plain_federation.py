"""A federation of Flower's own programs learns as a run in one process does."""

import pytest
from fakes import run_in_process, summary_of
from grids import Grid
from local_runs import add_task
from plain_flower import PlainFlower
from text_sets import write_topics

from fcl_flower.config.run_config import RunConfig
from fcl_flower.flower_app.grid import GridTransport
from fcl_flower.rounds.run import run_federation

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
LOCAL = {
    "strategy.name": "fedweit",
    "scenario.name": "local-data",
    "scenario.classes_per_task": 2,
    "model.name": "mlp",
    "model.num_features": 3,
}
BOTH_NEEDED = {
    "federation.rounds_per_task": 2,
    "federation.min_updates": 2,
    "federation.max_attempts": 9,
}
"""No round of a run ends without the client that is killed."""
ONE_CORE = ("--federation-config", "client-resources-num-cpus=1")
"""For each of the two nodes that Flower simulates by default."""
COMPARED = ("average_accuracy", "forgetting", "accuracy_matrix", "bytes_up")


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


@pytest.fixture(scope="module")
def lab(request, tmp_path_factory):
    """All that happened in a federation, whose second client may be killed."""
    lab = PlainFlower(tmp_path_factory.mktemp("plain"))
    lab.places = [lab.folder / f"data-{number}" for number in range(2)]
    for number, place in enumerate(lab.places):
        add_task(place, 1, number, ["c0", "c1"])
        add_task(place, 2, number + 2, ["c2", "c3"])
    nodes = [f'data-path="{place}"' for place in lab.places]
    try:
        lab.superlink()
        for number, config in enumerate(nodes):
            lab.supernode(f"node-{number}", config)
        more = {"scenario.tasks": 1, **BOTH_NEEDED} if request.param else {}
        lab.submit("run", {**LOCAL, **SMALL, **more, "run.output": lab.folder / "run"})
        if request.param:
            lab.until("run", "round 1 of 2")
            lab.kill("node-1")
            lab.supernode("node-1", nodes[1])
        lab.ended = lab.code("run")
    finally:
        lab.end()
    return lab


@pytest.mark.deploy
@pytest.mark.parametrize("lab", [False], indirect=True)
def test_clients_learn_from_the_folders_that_their_nodes_name(lab, tmp_path):
    assert lab.ended == 0, lab.tail("run")

    # Which node gets which number is the server's affair.
    there = [{"data-path": str(place)} for place in lab.places]
    orders = {"one": there, "other": there[::-1]}
    settings = {**LOCAL, **SMALL}
    expected = [alone(settings, tmp_path / k, places=v) for k, v in orders.items()]
    assert numbers(lab.folder / "run") in expected
    assert "left out" not in lab.said("run")


@pytest.mark.soak
@pytest.mark.deploy
@pytest.mark.parametrize("lab", [True], indirect=True)
def test_a_client_that_is_killed_returns_without_its_state_and_the_run_ends(lab):
    assert lab.ended == 0, lab.tail("run")
    assert "has lost its state and starts anew" in lab.said("run")


@pytest.mark.soak
@pytest.mark.deploy
@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_numbers_of_a_run_in_one_process(name, tmp_path):
    lab = PlainFlower(tmp_path / "lab")
    settings = settings_of(name, tmp_path / "data")
    try:
        lab.superlink()
        for number in range(2):
            lab.supernode(f"node-{number}")
        lab.submit("run", {**settings, "run.output": tmp_path / "run"})
        assert lab.code("run") == 0, lab.tail("run")
    finally:
        lab.end()

    assert numbers(tmp_path / "run") == alone(settings, tmp_path / "alone")
    assert "left out" not in lab.said("run")


@pytest.mark.run
@pytest.mark.parametrize("name", METHODS)
def test_clients_that_keep_nothing_but_their_context_have_the_same_numbers(
    name, tmp_path
):
    settings = settings_of(name, tmp_path / "data")
    config = RunConfig.of({**settings, "run.output": str(tmp_path / "run")})

    run_federation(config, GridTransport(Grid((7, 9), config.flat(), forget=True)))

    assert numbers(tmp_path / "run") == alone(settings, tmp_path / "alone")


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
