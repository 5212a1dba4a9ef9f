"""Names of groups, tables and scalars travel: another name is other bytes."""

import re

import pytest
from fakes import run_in_process, tiny

pytestmark = pytest.mark.run

STAGE = {*("first", "last", "round", "task")}
REQUEST = {*STAGE, "evaluate", "since"}
METRICS = {*("loss", "num-examples", "valid_accuracy", "valid_loss")}
SCORES = {*("accuracy", "model-bytes")}
ADAPTERS = {*("adapter_density", "attention/N/N", "foreign_norm", "mask_density")}
BY_CLASS = {*("answered", "right", "tested")}
TABLE = {"fcl.secure": {"clients", "N"}}


def seen(folder, **values):
    """Run a federation; return by kind and way of a request the names in it."""
    found = {}

    def look(client, request, reply):
        kind = request.kind
        for way, content in (("down", request.content), ("up", reply.content)):
            names = found.setdefault(f"{kind} {way}", {})
            for group, table in {
                **dict.fromkeys(content.tensors, ()),
                **content.scalars,
            }.items():
                inside = names.setdefault(re.sub(r"\d+", "N", group), set())
                inside |= {re.sub(r"\d+", "N", key) for key in table}
        return reply

    run_in_process(tiny(folder, **values), tamper=look)
    return found


@pytest.mark.parametrize(
    ("settings", "down", "up", "metrics", "scores"),
    [
        ({"strategy": "fedavg"}, ["base"], ["base"], METRICS, SCORES),
        (
            {"strategy": "fedavg", "per_class": True},
            *(["base"], ["base"], METRICS, SCORES | BY_CLASS),
        ),
        (
            {"strategy": "fedavg", "unit": "example", "noise_multiplier": 1.0},
            *(["base"], ["base"], {"epsilon", "num-examples"}, SCORES),
        ),
        (
            {"strategy": "scaffold"},
            *(["base", "control"], ["base", "control/change"], METRICS, SCORES),
        ),
        (
            {"strategy": "fedweit"},
            *(["base", "adapters/N/N"], ["base", "adapters"]),
            *(METRICS | ADAPTERS, SCORES),
        ),
    ],
    ids=["fedavg", "per class", "example privacy", "scaffold", "fedweit"],
)
def test_training_has_these_names(tmp_path, settings, down, up, metrics, scores):
    found = seen(tmp_path, **settings)
    groups = {group: set() for group in down}
    assert found["train down"] == {"fcl.stage": REQUEST, **groups}
    groups = {group: set() for group in up}
    told, last = {"fcl.stage": STAGE, "fcl.metrics": metrics}, {*scores, "inferred"}
    if "evaluate up" in found:
        assert found["train up"] == {**told, **groups, "fcl.scores": scores}
        assert found["evaluate up"] == {"fcl.scores": last}
    else:  # of adapters, clients are tested as they train
        assert found["train up"] == {**told, **groups, "fcl.scores": last}


def test_differences_have_these_names(tmp_path):
    found = seen(tmp_path, strategy="fedavg", wire_dtype="int8", rounds=2)
    assert found["train down"].keys() == {
        *("fcl.stage", "fcl.copies", "base", "base/+N"),
    }
    assert found["train down"]["fcl.copies"] == {"base"}
    assert found["train up"].keys() == {
        *("fcl.stage", "fcl.metrics", "fcl.scores", "base"),
    }


def test_sums_under_masks_have_these_names(tmp_path):
    found = seen(tmp_path, strategy="fedavg", clients=3, secure_aggregation=True)
    assert found["train down"].keys() == {"fcl.stage", "base", "meta/sum"}
    assert found["train up"].keys() == {
        *("fcl.stage", "fcl.metrics", "fcl.scores", "masked"),
    }
    for step in ("keys", "shares", "unmask"):
        assert found[f"query.secure_{step} up"] == TABLE
    among = {"fcl.secure-round": {"clients"}}
    assert found["query.secure_shares down"] == TABLE | among
