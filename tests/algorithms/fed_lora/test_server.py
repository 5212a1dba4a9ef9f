"""Federated LoRA, server half: what the weights become, what travels, what is refused.

All in float64. A transposed matrix fits no layer but the square one, and is another.
"""

import numpy as np
import pytest

from fcl_flower.aggregation.policy import Aggregation
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.core.types import TaskStage, Update
from strategies.fed_lora import FedLora, FedLoraParams

RULES = ["mean", "frozen", "alternating", "residual"]
EXACT = RULES[1:]
RANK = 2
SHAPES = {"body.adapters.0": (30, 20), "body.adapters.1": (24, 24)}
OBLONG, SQUARE = SHAPES
HEAD = "heads.0.weight"
COUNTS = {0: 3, 4: 5, 7: 11}
"""Examples by client."""


def drawn(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


W0 = {layer: drawn(*shape, seed=9) for layer, shape in SHAPES.items()}
MODEL = {HEAD: drawn(4, 6)}
for _layer, (_outputs, _inputs) in SHAPES.items():
    MODEL[f"{_layer}.down"] = drawn(RANK, _inputs)
    MODEL[f"{_layer}.up"] = np.zeros((_outputs, RANK))


def stage(number=1):
    return TaskStage(number, 0, starts_task=number == 1, ends_task=False)


def begun(rule):
    made = FedLora(FedLoraParams(aggregation=rule), ServerContext(0))
    return made, made.init(MODEL)


def weight(layer, received, sent=None):
    """Return W as a client has it that has received this, and perhaps trained since."""
    known = {**MODEL, **received.get("adapters/fixed", {})}
    known |= received["base"] if sent is None else sent
    found = W0[layer] + known[f"{layer}.up"] @ known[f"{layer}.down"]
    rest = received.get("adapters/residual", {})
    if f"{layer}.up" in rest:
        found = found + rest[f"{layer}.up"] @ rest[f"{layer}.down"]
    return found + rest.get(layer, 0)


def trained(received, client, number=0):
    """Return what a client makes of each tensor that it may train."""
    return {
        name: tensor + drawn(*tensor.shape, seed=10 * number + client)
        for name, tensor in received["base"].items()
    }


def round_of(made, state, number=1, counts=COUNTS):
    """Return the state after a round, and by layer the mean of the clients' weights."""
    received = {c: made.send(state, stage(number), c) for c in counts}
    sent = {c: trained(received[c], c, number) for c in counts}
    total = sum(counts.values())
    expected = {
        layer: sum(
            n / total * weight(layer, received[c], sent[c]) for c, n in counts.items()
        )
        for layer in SHAPES
    }
    updates = {c: Update({"base": sent[c]}, n) for c, n in counts.items()}
    for update in updates.values():
        made.check_update(state, update)
    return made.combine(state, stage(number), updates), expected


# ---------------------------------------------------------------- the weights


@pytest.mark.parametrize("rule", EXACT)
def test_the_weights_become_the_mean_of_the_clients_weights(rule):
    made, state = begun(rule)

    for number in range(1, 5):
        state, expected = round_of(made, state, number)

        for layer in SHAPES:
            found = weight(layer, state)
            np.testing.assert_allclose(found, expected[layer], rtol=0, atol=1e-12)


def test_the_mean_of_the_factors_misses_it_by_the_residual():
    made, state = begun("mean")
    sent = {client: trained(state, client, 1) for client in COUNTS}

    state, expected = round_of(made, state, 1)

    total = sum(COUNTS.values())
    for layer in SHAPES:
        products = [
            n
            / total
            * (sent[c][f"{layer}.up"] - state["base"][f"{layer}.up"])
            @ (sent[c][f"{layer}.down"] - state["base"][f"{layer}.down"])
            for c, n in COUNTS.items()
        ]
        missed = expected[layer] - weight(layer, state)
        np.testing.assert_allclose(missed, sum(products), rtol=0, atol=1e-12)
        assert np.abs(missed).max() > 1
    assert np.abs(missed - missed.T).max() > 1


@pytest.mark.parametrize("rule", RULES)
def test_one_client_has_its_own_weights_by_any_rule(rule):
    made, state = begun(rule)

    for number in (1, 2):
        state, expected = round_of(made, state, number, {4: 5})

        for layer in SHAPES:
            np.testing.assert_allclose(
                weight(layer, state), expected[layer], rtol=0, atol=1e-12
            )
    assert not state.get("adapters/residual")


def test_clients_that_learn_the_same_leave_no_residual():
    made, state = begun("residual")
    same = Update({"base": trained(state, 0)}, 3)

    state = made.combine(state, stage(), {0: same, 4: same})

    rest = state["adapters/residual"]
    for layer in SHAPES:
        assert not (rest[f"{layer}.up"] @ rest[f"{layer}.down"]).any()


@pytest.mark.parametrize("rule", RULES)
def test_a_client_without_examples_does_not_count(rule):
    made, state = begun(rule)

    with_it, _ = round_of(made, state, 1, {0: 3, 2: 0, 7: 11})
    without, _ = round_of(made, state, 1, {0: 3, 7: 11})

    for layer in SHAPES:
        np.testing.assert_array_equal(weight(layer, with_it), weight(layer, without))


@pytest.mark.parametrize("rule", RULES)
def test_of_clients_without_any_examples_nothing_is_learned(rule):
    made, state = begun(rule)

    after, _ = round_of(made, state, 1, {0: 1})
    nothing = {c: Update({"base": trained(after, c)}, 0) for c in (0, 4)}
    then = made.combine(after, stage(2), nothing)

    for layer in SHAPES:
        np.testing.assert_array_equal(weight(layer, then), weight(layer, after))


def test_the_residual_has_the_precision_of_the_factors():
    made = FedLora(FedLoraParams(aggregation="residual"), ServerContext(0))
    state = made.init({n: t.astype(np.float32) for n, t in MODEL.items()})

    for number in range(1, 4):
        sent = {c: trained(state, c, number) for c in COUNTS}
        updates = {
            c: Update({"base": {n: t.astype(np.float32) for n, t in a.items()}}, 1)
            for c, a in sent.items()
        }
        state = made.combine(state, stage(number), updates)

        assert {t.dtype.name for a in state.values() for t in a.values()} == {"float32"}


# ---------------------------------------------------------------- what travels


def names(arrays):
    return {name.rpartition(".")[2] for name in arrays if name != HEAD}


def test_what_is_trained_is_what_is_sent():
    """By rule and round: what clients train, and what else of LoRA they are sent."""
    expected = {
        "mean": [({"down", "up"}, set())] * 3,
        "frozen": [({"up"}, set())] * 3,
        "alternating": [({"up"}, {"down"}), ({"down"}, {"up"}), ({"up"}, {"down"})],
        "residual": [({"down", "up"}, set())] * 3,
    }
    for rule, rounds in expected.items():
        made, state = begun(rule)
        for number, (base, fixed) in enumerate(rounds, 1):
            received = made.send(state, stage(number), 0)
            assert names(received["base"]) == base
            assert names(received.get("adapters/fixed", {})) == fixed
            assert made.summands(state) == {"base": received["base"]}
            assert HEAD in received["base"]
            state, _ = round_of(made, state, number)


def test_no_clients_factors_can_be_read_from_the_residual():
    made, state = begun("residual")

    state, _ = round_of(made, state)

    rest = state["adapters/residual"]
    for layer in SHAPES:
        up, down = rest[f"{layer}.up"], rest[f"{layer}.down"]
        product, sizes = up @ down, np.diag(up.T @ up)
        values = np.linalg.svd(product, compute_uv=False)[: len(down)]
        # Those of the singular values, which know the sum alone.
        np.testing.assert_allclose(sizes, values)
        np.testing.assert_allclose(up.T @ up, np.diag(sizes), atol=1e-12)
        np.testing.assert_allclose(down @ down.T, np.diag(sizes), atol=1e-12)


def test_the_residual_travels_in_the_form_of_fewer_numbers():
    made, state = begun("residual")
    found = []
    for number in range(1, 5):
        state, _ = round_of(made, state, number)
        rest = state["adapters/residual"]
        sizes = [
            sum(t.size for n, t in rest.items() if n.startswith(layer))
            for layer in SHAPES
        ]
        found.append((sizes, sorted(names(rest))))

    # Two clients beside the last one, of rank 2: 4 rows and columns a round.
    assert found == [
        ([4 * 50, 4 * 48], ["down", "up"]),
        ([8 * 50, 8 * 48], ["down", "up"]),
        ([30 * 20, 24 * 24], ["0", "1"]),
        ([30 * 20, 24 * 24], ["0", "1"]),
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_client_that_missed_rounds_is_sent_what_all_others_are(rule):
    made, state = begun(rule)
    state, _ = round_of(made, state, 1)
    state, _ = round_of(made, state, 2, {0: 3, 7: 11})

    received = [made.send(state, stage(3), client) for client in (4, 0, 9)]

    assert received[0] == received[1] == received[2]
    assert made.on_state_lost(state, 4) is state


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("rule", "changes", "sentence"),
    [
        ("frozen", {f"{OBLONG}.down": (RANK, 20)}, "missing or unknown"),
        ("alternating", {f"{OBLONG}.down": (RANK, 20)}, "missing or unknown"),
        ("residual", {f"{OBLONG}.down": None}, "missing or unknown"),
        ("residual", {f"{OBLONG}.up": (RANK, 30)}, "of shape"),
        ("mean", {f"{SQUARE}.down": (RANK + 1, 24)}, "of shape"),
    ],
)
def test_factors_that_do_not_fit_are_refused(rule, changes, sentence):
    made, state = begun(rule)
    sent = dict(state["base"])
    for name, shape in changes.items():
        if shape is None:
            del sent[name]
        else:
            sent[name] = np.zeros(shape)

    with pytest.raises(WireError, match=sentence):
        made.check_update(state, Update({"base": sent}, 3))


def test_a_factor_whose_turn_it_is_not_is_refused():
    made, state = begun("alternating")
    early = Update({"base": trained(state, 0)}, 3)
    made.check_update(state, early)

    state, _ = round_of(made, state)

    with pytest.raises(WireError, match="missing or unknown"):
        made.check_update(state, early)


def test_products_of_single_clients_need_a_server_that_sees_them_and_a_mean():
    made, _ = begun("residual")
    made.aggregation = Aggregation("median")

    with pytest.raises(ConfigError, match=r"^strategy\.aggregation: got 'residual', "):
        made.init(MODEL)
    with pytest.raises(ConfigError, match=r"federation\.secure_aggregation"):
        made.check_summable()
    for rule in ("mean", "frozen", "alternating"):
        made, _ = begun(rule)
        made.aggregation = Aggregation("median")
        made.init(MODEL)
        made.check_summable()


def test_a_model_without_lora_is_refused():
    made, _ = begun("mean")

    with pytest.raises(
        ConfigError, match="expected lora-transformer, lora-vit or causal-lm"
    ):
        made.init({HEAD: MODEL[HEAD]})
