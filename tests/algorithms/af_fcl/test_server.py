"""AF-FCL's server: the means of both, what is refused, and its settings' ranges."""

import numpy as np
import pytest
from fakes import exact

from fcl_flower.algorithms.registry import algorithm
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.af_fcl import AfFclParams
from strategies.af_fcl.server import AfFcl

STAGE = TaskStage(round=1, task=0, starts_task=True, ends_task=True)
NAME = "couplings.3.exit.bias"


def server(seed=0, features=8):
    made = AfFcl(AfFclParams(flow_hidden=3), seed)
    made.features, made.classes = features, 4
    return made, made.init({"w": np.zeros(2, np.float32)})


def update(state, shift, examples):
    moved = {
        group: {name: values + np.float32(shift) for name, values in tensors.items()}
        for group, tensors in state.items()
    }
    return Update(moved, examples)


def test_model_and_flow_are_sent_and_averaged_by_examples():
    strategy, state = server()
    assert state.keys() == {"base", "flow"}
    assert state["flow"][NAME].shape == (8,)
    assert exact(strategy.configure_train(state, STAGE, 0)) == exact(state)
    tested = strategy.configure_evaluate(state, STAGE, 0)
    assert exact(tested) == exact({"base": state["base"]})
    updates = {0: update(state, 1.0, 3), 1: update(state, 5.0, 1)}
    for one in updates.values():
        strategy.check_update(state, one)
    new = strategy.aggregate_train(state, STAGE, updates)
    np.testing.assert_allclose(new["base"]["w"], 2.0)
    for name, values in state["flow"].items():
        np.testing.assert_allclose(new["flow"][name], values + 2.0, rtol=1e-5)
    none = {0: update(state, 1.0, 0)}
    assert exact(strategy.aggregate_train(state, STAGE, none)) == exact(state)


def test_the_flow_is_the_seeds_own():
    assert exact(server()[1]) == exact(server()[1])
    assert exact(server()[1])["flow"] != exact(server(seed=1)[1])["flow"]


def test_a_flow_that_is_missing_or_misshapen_is_refused():
    strategy, state = server()
    honest = update(state, 1.0, 2).payload
    with pytest.raises(WireError, match=r"groups \['base'\]: expected"):
        strategy.check_update(state, Update({"base": honest["base"]}, 1))
    less = {n: v for n, v in honest["flow"].items() if n != NAME}
    with pytest.raises(WireError, match=rf"flow: tensors \['{NAME}'\] are missing"):
        strategy.check_update(state, Update({**honest, "flow": less}, 1))
    wide = {**honest["flow"], NAME: np.zeros(9, np.float32)}
    with pytest.raises(WireError, match=rf"flow/{NAME}: expected float32 of shape \(8"):
        strategy.check_update(state, Update({**honest, "flow": wide}, 1))
    more = {**honest, "memory/teacher": honest["base"]}
    with pytest.raises(WireError, match="groups"):
        strategy.check_update(state, Update(more, 1))


@pytest.mark.parametrize(
    ("key", "value", "edge"),
    [
        ("replay", -0.1, 0.0),
        ("exploration", -0.1, 0.0),
        ("exploration", 1.1, 1.0),
        ("flow_memory", -0.1, 0.0),
        ("feature_distillation", -0.1, 0.0),
        ("output_distillation", -0.1, 0.0),
        ("temperature", 0.0, 0.1),
        ("flow_rate", 0.0, 0.1),
        ("flow_layers", 3, 4),
        ("flow_hidden", 0, 1),
    ],
)
def test_a_parameter_out_of_range_is_refused(key, value, edge):
    with pytest.raises(ConfigError, match=rf"strategy\.{key}: got {value}, expected"):
        algorithm("af-fcl").params({key: value})
    assert getattr(algorithm("af-fcl").params({key: edge}), key) == edge


def test_what_is_compared_is_one_of_two():
    with pytest.raises(ConfigError, match=r"compared: got 'both', expected 'latents'"):
        algorithm("af-fcl").params({"compared": "both"})
