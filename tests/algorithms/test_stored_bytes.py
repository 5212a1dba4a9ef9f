"""What a client must keep from its finished tasks, method by method."""

import numpy as np
import pytest
from class_streams import FIRST, SECOND, data, model, place, start

from clients.replay.buffer import rows_of
from fcl_flower.algorithms.hooks import KnowsModel
from fcl_flower.algorithms.local_only import LocalOnlyLearner
from fcl_flower.algorithms.registry import algorithm
from fcl_flower.federation.client import model_bytes
from fcl_flower.federation.codec import encode

OLD_MODEL = {"memory/teacher"}
# By method, of a client within its second task: what it stores, and what is the task's;
# of what it receives, what predictions need, and what only training does.
JUDGED = {
    "fedavg": ({"heads"}, set(), {"base"}, set()),
    "ewc": ({"heads", "fisher", "anchor"}, set(), {"base"}, set()),
    "fedcurv": (
        {"heads"},
        set(),
        {"base"},
        {"curvature/fisher", "curvature/weighted"},
    ),
    "scaffold": ({"heads", "control"}, set(), {"base"}, {"control"}),
    "fot": ({"heads"}, set(), {"base"}, set()),
    "replay": ({"heads", "memory"}, set(), {"base"}, set()),
    "der": ({"heads", "memory"}, set(), {"base"}, set()),
    "fedcbdr": ({"heads", "memory", "memory/classes"}, set(), {"base"}, set()),
    "lwf": ({"heads", "memory/classes"}, OLD_MODEL, {"base"}, set()),
    "icarl": ({"heads", "exemplars", "memory/classes"}, OLD_MODEL, {"base"}, set()),
    "dde-icarl": (
        {"heads", "exemplars", "momentum", "memory/classes"},
        OLD_MODEL,
        {"base"},
        set(),
    ),
    "bic": ({"heads", "memory", "memory/classes"}, OLD_MODEL, {"base", "bias"}, set()),
    "ss-il": (
        {"heads", "memory", "memory/tasks", "memory/classes"},
        OLD_MODEL,
        {"base"},
        set(),
    ),
}


def size(payload, groups):
    return sum(len(encode(t).data) for g in groups for t in payload[g].values())


@pytest.mark.parametrize("name", JUDGED)
def test_what_a_client_stores(name):
    stored, of_the_task, predicting, training = JUDGED[name]
    entry = algorithm(name)
    params = entry.params({})
    learner = entry.load_client()(params, model(), place())
    server = entry.load_server()(params, 0)
    if isinstance(server, KnowsModel):
        server.features, server.classes, server.single_head = 4, 6, True
    server_state = server.init(start()["base"])
    received = server.configure_train(server_state, FIRST, 0)
    state, update = learner.train(learner.init(), received, FIRST, data(0))
    server_state = server.aggregate_train(server_state, FIRST, {0: update, 1: update})
    received = server.configure_train(server_state, SECOND, 2)
    if name == "fedcbdr":  # which stores nothing without the server's word
        rows = np.arange(20)
        memory = {**rows_of(data(0).train, rows, 0), "rank": rows}
        state = {**state, "memory": memory}
    state, _ = learner.train(state, received, SECOND, data(1))

    assert state.keys() == stored | of_the_task | {"optimizer"}
    assert received.keys() == predicting | training
    for payload, left_out in ((state, of_the_task), (received, training)):
        assert all(size(payload, [group]) for group in left_out)
    expected = size(state, stored) + size(received, predicting)
    assert model_bytes(learner, state, received) == expected


def test_who_is_alone_stores_the_servers_part_too():
    entry = algorithm("lwf")
    params = entry.params({})
    inner = entry.load_client()(params, model(), place())
    learner = LocalOnlyLearner(inner, entry.load_server()(params, 0))
    state, _ = learner.train(learner.init(), {}, FIRST, data(0))
    state, _ = learner.train(state, {}, SECOND, data(1))
    assert size(state, OLD_MODEL)
    assert size(state, ["optimizer"])
    expected = size(state, {"server:base", "heads", "memory/classes"})
    assert model_bytes(learner, state, {}) == expected
