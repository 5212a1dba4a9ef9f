"""What a client that is alone keeps from its finished tasks."""

from class_streams import FIRST, SECOND, data, model, place

from fcl_flower.algorithms.base import ServerContext, Turn
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.rounds.client import model_bytes
from fcl_flower.rounds.codec import encode

OLD_MODEL = {"memory/teacher"}


def size(payload, groups):
    return sum(len(encode(t).data) for g in groups for t in payload[g].values())


def test_who_is_alone_stores_the_servers_part_too():
    entry = algorithm("lwf")
    params = entry.params({})
    inner = entry.load_client()(params, model(), place())
    learner = LocalOnlyLearner(inner, entry.load_server()(params, ServerContext(0)))
    state, _ = learner.train(Turn(learner.init(), {}, FIRST, data(0)))
    state, _ = learner.train(Turn(state, {}, SECOND, data(1)))
    assert size(state, OLD_MODEL)
    assert size(state, ["optimizer"])
    expected = size(state, {"server:base", "heads", "memory/classes"})
    assert model_bytes(learner, state, {}) == expected
