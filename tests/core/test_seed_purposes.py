"""Seeds are names: with another purpose, or key, every number is another."""

import ast
import hashlib
import pathlib
from itertools import product
from types import SimpleNamespace

import pytest

import clients
import fcl_flower
import strategies
from fcl_flower.core import schedule

ROUNDS, CLIENTS = range(1, 3), range(3)
TRAINING = {
    *(f"participants/{r}" for r in ROUNDS),
    *(
        f"{what}/{client}/{r}/0"
        for what, client, r in product(("shuffle", "dropout"), CLIENTS, ROUNDS)
    ),
    *("model", "heads"),
}


def drawn(monkeypatch, strategy, seed, **settings):
    """Run three clients for two rounds; return the names of all seeds of the run.

    The run's seed is one of no other test, so that nothing is drawn already.
    """
    found = set()

    def sha256(text):
        found.add(text.decode())
        return hashlib.sha256(text)

    monkeypatch.setattr(schedule, "hashlib", SimpleNamespace(sha256=sha256))
    fcl_flower.simulate(
        *(strategy,),
        **{"clients": 3, "tasks": 2, "dataset": "digits", "model": "small"},
        **{"seed": seed, "progress": False, **settings},
    )
    return {text.partition("/")[2] for text in found if text.startswith(f"{seed}/")}


def purposes(names):
    return {name.partition("/")[0] for name in names}


def test_a_seed_is_the_head_of_a_hash_of_its_names():
    digest = hashlib.sha256(b"7/shuffle/2/1/0").digest()
    assert (
        schedule.derive(7, "shuffle", 2, 1, 0) == int.from_bytes(digest[:8], "big") >> 1
    )


@pytest.mark.run
def test_class_groups_are_drawn_and_learned_by_these_names(monkeypatch):
    found = drawn(monkeypatch, "fedavg", 8731, rounds=1)
    orders = {f"scenario-order/{client}" for client in CLIENTS}
    known = TRAINING | orders | {"scenario-groups"}
    assert found >= known
    assert purposes(found - known) == {"samples-share", "samples-valid"}


@pytest.mark.run
def test_hidden_concepts_are_drawn_and_learned_by_these_names(monkeypatch):
    found = drawn(monkeypatch, "concept-matching", 8732, rounds=2)
    known = {
        *(f"stream-concept/{client}/{r}" for client, r in product(CLIENTS, ROUNDS)),
        *(f"concept-valid/{client}/{k}" for client, k in product(CLIENTS, range(2))),
        *(f"{what}/{k}" for what in ("concept-train", "concept-test") for k in (0, 1)),
        *(f"representative/{client}" for client in CLIENTS),
        *(f"k-means/{r}" for r in ROUNDS),
        "concept-classes/0",
        *TRAINING,
    }
    assert found >= known
    assert purposes(found - known) == {"stream-order"}


@pytest.mark.run
def test_new_classes_are_drawn_replayed_and_sent_by_these_names(monkeypatch):
    wire = {"wire_dtype": "int8", "error_feedback": False}
    found = drawn(monkeypatch, "replay", 8733, rounds=1, **wire)
    known = {
        *(
            f"sample-memory/{client}/{task}"
            for client, task in product(CLIENTS, (0, 1))
        ),
        *(
            f"scenario-valid/{client}/{task}"
            for client, task in product(CLIENTS, (0, 1))
        ),
        *(
            f"scenario-{what}/{task}"
            for what in ("test", "class-share")
            for task in (0, 1)
        ),
        *(
            f"scenario-{what}/digits/{k}"
            for what in ("train", "sharers")
            for k in range(10)
        ),
        "scenario-classes",
        *TRAINING,
    }
    assert found >= known
    assert purposes(found - known) == {"rounding", "rounding of the broadcast"}


def test_all_other_purposes_are_in_the_code_as_they_were():
    known = {
        *("attack", "auxiliary", "bench", "bic-bias", "bic-held-out", "choice"),
        *("concept", "consolidation", "dirichlet", "disclosed", "domains", "examples"),
        *("encoding-network", "fedet", "fine-tuning", "finetune", "generator", "group"),
        *("heads", "iid", "images", "kept-classes", "knowledge", "layer", "lorm"),
        *("local-max-test", "local-max-train", "member", "noise", "own-test"),
        *("perturbation", "pool", "privacy", "projection", "replay", "router"),
        *("samples", "sketch", "ss-il", "student", "subsets", "summary"),
        *("synthesis", "valid", "word", "word2vec"),
        *("augment", "augment-stored"),
    }
    found = {
        node.value
        for package in (fcl_flower, strategies, clients)
        for path in pathlib.Path(package.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert known <= found
