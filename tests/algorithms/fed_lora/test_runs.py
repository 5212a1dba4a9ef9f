"""Federated LoRA in whole runs on digits: missed rounds, hostile clients, an end."""

import numpy as np
import pytest
import torch
from encoders import reading_digits
from fakes import asked_in, failure, rounds_of, run_in_process, summary_of, tiny
from mutants import array_of, with_array
from resuming import check_resumed, small

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError
from fcl_flower.exports.networks import exported
from fcl_flower.rounds import messages
from fcl_flower.rounds.transport import Reply
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import run_in_process as simulate

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_thread")]
UP = "body.adapters.0.up"


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return reading_digits(tmp_path_factory.mktemp("encoder"), "fed-lora")


def by(rule):
    return {"strategy.aggregation": rule}


def test_the_mean_gives_the_numbers_of_fedavg(tmp_path, settings):
    run_in_process(tiny(tmp_path / "a", **settings, **by("mean")))
    run_in_process(tiny(tmp_path / "b", **{**settings, "strategy": "fedavg"}))

    one, other = (summary_of(tmp_path / name) for name in "ab")
    assert one["client_accuracy"] == other["client_accuracy"]
    for way in ("up", "down"):
        sent = [found["bytes_by_kind"][way]["base"] for found in (one, other)]
        assert sent[0] == sent[1]


@pytest.mark.soak
@pytest.mark.parametrize("rule", ["alternating", "residual"])
def test_privacy_of_an_example_moves_what_is_trained(tmp_path, settings, rule):
    """Each client answers: single examples have gradients behind attention, too."""
    private = {"unit": "example", "noise_multiplier": 1.0}
    config = tiny(tmp_path, **settings, **by(rule), **private, head="single")

    run_in_process(config)

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    assert summary_of(tmp_path)["privacy"]["epsilon"] > 0


def test_each_rule_sends_what_it_says(tmp_path, settings):
    found = {}
    for rule in ("mean", "frozen", "alternating", "residual"):
        run_in_process(tiny(tmp_path / rule, **settings, **by(rule)))
        assert [row["failed"] for row in rounds_of(tmp_path / rule)] == [[]] * 4
        kinds = summary_of(tmp_path / rule)["bytes_by_kind"]
        found[rule] = {way: {**kinds[way]} for way in ("up", "down")}
        assert found[rule]["up"].keys() == {"base", "meta"}

    up = {rule: found[rule]["up"]["base"] for rule in found}
    assert up["residual"] == up["mean"] > up["alternating"] > 0.45 * up["mean"]
    assert up["mean"] > up["frozen"] > 0.45 * up["mean"]
    assert {rule for rule in found if "adapters" in found[rule]["down"]} == {
        "alternating",
        "residual",
    }


@pytest.mark.parametrize("rule", ["alternating", "residual"])
def test_some_clients_at_a_time_are_enough(tmp_path, settings, rule):
    config = tiny(tmp_path, **settings, **by(rule), client_fraction=0.67)

    run_in_process(config)

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4
    for matrix in summary_of(tmp_path)["client_accuracy"]:
        assert None not in matrix[1]


@pytest.mark.soak
@pytest.mark.parametrize(("rule", "number"), [("alternating", 2), ("residual", 3)])
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(
    tmp_path, settings, rule, number
):
    check_resumed(tmp_path, small(**settings, **by(rule)), number)


@pytest.mark.parametrize("bad", [np.full((16, 2), np.nan), np.ones((2, 16))])
def test_a_hostile_factor_is_left_out_as_if_its_client_had_failed(
    tmp_path, settings, bad
):
    def hostile(who, request, reply):
        if who != 1 or not asked_in(request, 2):
            return reply
        sent = messages.decode_payload(reply.content)["base"][UP]
        assert sent.shape == (16, 2)
        content = with_array(reply.content, "base", UP, array_of(np.float32(bad)))
        return Reply(request, content)

    def absent(who, request, reply):
        return failure(request, "gone") if who == 1 and asked_in(request, 2) else reply

    given = {**settings, **by("residual")}
    run_in_process(tiny(tmp_path / "a", **given), tamper=hostile)
    run_in_process(tiny(tmp_path / "b", **given), tamper=absent)

    rows = rounds_of(tmp_path / "a")
    assert [row["failed"] for row in rows] == [[], [1], [], []]
    found, expected = (summary_of(tmp_path / name) for name in "ab")
    assert found["client_accuracy"] == expected["client_accuracy"]


@pytest.mark.parametrize(
    "more",
    [
        {"secure_aggregation": True},
        {"aggregation": "median"},
        {"unit": "client", "noise_multiplier": 0.1, "clip": 1.0},
        {"local_only": True},
    ],
    ids=lambda more: next(iter(more.values())),
)
def test_alternating_turns_go_with_what_fedavg_goes_with(tmp_path, settings, more):
    run_in_process(tiny(tmp_path, **settings, **by("alternating"), **more))

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[]] * 4


@pytest.mark.parametrize("head", ["multi", "single"])
def test_a_saved_run_predicts_and_is_exported_with_the_residual(
    tmp_path, settings, head
):
    given = {**settings, **by("residual"), "head": head, "keep_clients": True}
    simulate(tiny(tmp_path, **given), tmp_path)

    model = fcl.load(tmp_path, client=0)
    found = exported(model, 1 if head == "multi" else None)

    assert "adapters/residual" in model.received
    torch.testing.assert_close(found.network(found.inputs), found.logits)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"asynchronous": True}, r"asynchronous\.enabled: got true"),
        ({"wire_dtype": "int8"}, r"federation\.wire_dtype: got 'int8'"),
        (
            {**by("residual"), "aggregation": "median"},
            r"strategy\.aggregation: got 'residual'",
        ),
        (
            {**by("residual"), "secure_aggregation": True},
            r"strategy\.aggregation: got 'residual'",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    tmp_path, settings, more, sentence
):
    with pytest.raises(ConfigError, match=sentence):
        validate(resolve(tiny(tmp_path, **settings, **more)))
