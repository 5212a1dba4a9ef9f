"""Each method with a network of which nothing but heads is trained."""

import importlib.util
from pathlib import Path

import pytest
from every_method import archetypes_first, suited
from fakes import rounds_of, run_in_process

from fcl_flower.algorithms.registry import algorithm, algorithms
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

PLACE = Path(__file__).parents[2] / "docs" / "compatibility.py"
SPEC = importlib.util.spec_from_file_location("compatibility", PLACE)
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)

SMALL = {
    **{"scenario.clients": 2, "federation.rounds_per_task": 1},
    **{"scenario.max_train_per_class": 12, "scenario.max_test_per_class": 4},
}


@pytest.mark.run
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("single_head", [False, True], ids=["each", "one"])
@pytest.mark.parametrize("name", archetypes_first(sorted(algorithms())))
def test_a_run_that_is_accepted_learns_and_all_others_are_refused_before_it(
    name, single_head, tmp_path
):
    method = algorithm(name)
    sizes = {k: v for k, v in suited(name, tmp_path).items() if k.startswith("strat")}
    more = {**SMALL, **sizes, "run.output": str(tmp_path / "run")}
    if not page.accepts_frozen_body(method, single_head=single_head):
        return

    run_in_process(page.with_frozen_body(method, single_head=single_head, **more))

    rows = rounds_of(tmp_path / "run")
    assert len(rows) == 2
    assert not any(row["failed"] for row in rows)


@pytest.mark.parametrize("name", ["ewc", "fedcurv", "fedprox-ewc"])
def test_methods_that_hold_shared_weights_refuse_a_network_without_any(name):
    config = page.with_frozen_body(algorithm(name), single_head=False)
    with pytest.raises(
        ConfigError, match=r"^model: got .* no trained weights, .*'sing"
    ):
        validate(resolve(config))
