"""Foreign adapters that make a client's own validation worse."""

import re

import numpy as np
import pytest
import torch
from fakes import run_in_process, summary_of, tiny
from fedweit_cases import NOTHING, data, foreign_payload, learner, stage
from flwr.app import ArrayRecord, Message, RecordDict

from clients.fedweit.client import FedWeit
from fcl_flower.core.types import SparseArray
from fcl_flower.federation import messages

ADAPTERS = foreign_payload(1)["adapters/1/0"]


def spoilt(size):
    """Return a tamper that makes the adapters of client 1 noise of this size."""

    def tamper(client, message, reply):
        if client != 1 or "adapters" not in reply.content.array_records:
            return reply
        rng = np.random.default_rng(0)
        honest = messages.decode_arrays(reply.content["adapters"])
        noise = {
            name: SparseArray.of_nonzero(
                (size * rng.standard_normal(tensor.shape)).astype(np.float32)
            )
            for name, tensor in honest.items()
        }
        record = messages.MessageEncoder().arrays(noise)
        return Message(
            RecordDict(
                {**reply.content, "adapters": ArrayRecord(dict(record.items()))}
            ),
            reply_to=message,
        )

    return tamper


def scores(folder, size, **own):
    """Return the last accuracies of client 0, whom client 1 sends its adapter."""
    settings = {f"strategy.{key}": value for key, value in own.items()}
    config = tiny(folder, strategy="fedweit", seed=1, **settings)
    run_in_process(config, tamper=spoilt(size) if size else None)
    return summary_of(folder)["client_accuracy"][0][-1]


def test_an_adapter_that_validates_worse_is_as_if_it_had_never_come(tmp_path):
    without = scores(tmp_path / "none", 0, knowledge="none")
    kept = scores(tmp_path / "kept", 3.0, knowledge="all")
    dropped = scores(tmp_path / "dropped", 3.0, knowledge="all", drop_harmful=True)

    assert dropped == without
    assert kept != without


@pytest.mark.parametrize(
    ("loss", "used"), [(0.5, ["attention/0/0", "attention/1/0"]), (1.5, [])]
)
def test_the_loss_on_validation_samples_decides(tmp_path, monkeypatch, loss, used):
    learn = FedWeit.learn

    def with_told_loss(learner, state, stage, data):
        after, metrics, _ = learn(learner, state, stage, data)
        foreign = any(group.startswith("received/") for group in state)
        return after, metrics, loss if foreign else 1.0

    monkeypatch.setattr(FedWeit, "learn", with_told_loss)
    scores(tmp_path, 0, knowledge="all", drop_harmful=True)

    journal = (tmp_path / "journal.jsonl").read_text()
    assert sorted(set(re.findall(r"attention/\d/\d", journal))) == used


def test_the_loss_is_that_of_the_validation_samples():
    ours, given = learner(drop_harmful=True), data(1)
    begun = ours.start(ours.init(), NOTHING, 0)

    state, _, loss = ours.learn(begun, stage(0, ends_task=False), given)

    logits = ours.predict(state, NOTHING, 0, given.valid.x)
    expected = torch.nn.functional.cross_entropy(logits, given.valid.y)
    assert loss == pytest.approx(float(expected), rel=1e-4)


def offered(*clients):
    """Return what the server sends with adapters of some clients, of two tasks each."""
    return {
        **NOTHING,
        **{f"adapters/{c}/{t}": ADAPTERS for c in clients for t in (0, 1)},
    }


def tried(ours, offer, losses):
    """Return whose adapters are tried and whose kept, if these are the losses."""
    sets = []

    def learn(state, stage, data):
        clients = {g.split("/")[1] for g in state if g.startswith("received/")}
        sets.append("".join(sorted(clients)))
        return state, {}, losses[sets[-1]]

    ours.learn = learn
    state, _, _ = ours.begin(ours.init(), offer, stage(0, ends_task=False), data(1))
    kept = {group for group in state if group.startswith("received/")}
    return sets, kept


def kept_of(*clients):
    return {f"received/{c}/{t}" for c in clients for t in (0, 1)}


@pytest.mark.parametrize(
    ("losses", "tries", "kept"),
    [
        ({"12": 1.0, "": 1.0}, ["12", ""], "12"),
        ({"12": np.nan, "": np.nan}, ["12", ""], "12"),
        ({"12": 2.0, "": 1.0, "1": 1.5, "2": 1.0}, ["12", "", "1", "2"], ""),
        ({"12": 2.0, "": 1.0, "1": 1.5, "2": 0.9}, ["12", "", "1", "2"], "2"),
        ({"12": 2.0, "": 1.0, "1": 0.5, "2": 0.9}, ["12", "", "1", "2"], "1"),
    ],
)
def test_one_liar_costs_nobody_elses_adapters(losses, tries, kept):
    ours = learner(drop_harmful=True)

    assert tried(ours, offered(1, 2), losses) == (tries, kept_of(*kept))


@pytest.mark.parametrize(("together", "kept"), [(0.4, "13"), (0.6, "1")])
def test_those_who_help_are_tried_together(together, kept):
    losses = {"123": 2.0, "": 1.0, "1": 0.5, "2": 1.5, "3": 0.9, "13": together}
    ours = learner(drop_harmful=True)

    sets, used = tried(ours, offered(1, 2, 3), losses)

    assert sets == ["123", "", "1", "2", "3", "13"]
    assert used == kept_of(*kept)


def test_senders_are_told_apart_by_their_whole_number():
    ours = learner(drop_harmful=True)
    losses = {"110": 2.0, "": 1.0, "1": 0.5, "10": 1.5}

    assert tried(ours, offered(1, 10), losses)[1] == kept_of(1)


def test_what_comes_without_adapters_is_tried_once():
    ours = learner(drop_harmful=True)

    assert tried(ours, NOTHING, {"": 1.0}) == ([""], set())
    assert tried(ours, offered(1), {"1": 2.0, "": 1.0}) == (["1", ""], set())
    assert tried(learner(), offered(1), {"1": 2.0}) == (["1"], kept_of(1))
