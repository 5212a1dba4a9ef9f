"""Clients that vanish, return, come late or forget; runs that end and go on."""

import shutil

import numpy as np
import pytest
from fakes import (
    InProcessTransport,
    failure,
    rounds_of,
    run_in_process,
    tiny,
    trained_by,
)
from resuming import PulledPlugError, check_resumed, outcome, small

from fcl_flower.config.run_config import FederationSection
from fcl_flower.core.errors import ConfigError, RoundError, WireError
from fcl_flower.core.types import SparseArray
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.rounds import clients, messages, prepare, sync_loop
from fcl_flower.rounds.byte_counts import traffic
from fcl_flower.rounds.mailbox import Mailbox
from fcl_flower.rounds.transport import Content, Problem, Reply
from fcl_flower.simulation.in_process import run_simulated


def asked_in(request):
    return messages.decode_request(request.content)


def is_round(request, number):
    return request.kind == "train" and asked_in(request).stage.round == number


# ---- a run that is ended and resumed


def ending(kind, number, client):
    """The server ends when a client has answered a message of some round."""

    def tamper(who, request, reply):
        if request.kind == kind and (who, asked_in(request).stage.round) == (
            client,
            number,
        ):
            raise PulledPlugError
        return reply

    return tamper


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        pytest.param("fedavg", {}, marks=pytest.mark.soak),
        ("fedweit", {"strategy.knowledge": "all"}),
        pytest.param("fedavg", {"local_only": True}, marks=pytest.mark.soak),
        (
            "concept-matching",
            {
                **{"scenario": "concepts", "strategy.concepts": 2, "rounds": 4},
                **{"classes_per_task": 0, "scenario.window": 20, "model": "small"},
                "evaluate_every": 2,
            },
        ),
    ],
)
@pytest.mark.parametrize("moment", [("train", 3), ("evaluate", 4)])
def test_a_run_that_was_ended_and_resumed_ends_as_if_it_had_not_been(
    tmp_path, strategy, more, moment
):
    kind, number = moment
    if strategy == "fedweit" or more.get("local_only"):
        kind = "train"  # they are tested there
    shape = {"clients": 3, "rounds": 2, "strategy": strategy, **more}
    check_resumed(tmp_path, small(**shape), number, kind)
    config = (tmp_path / "ended" / "config.toml").read_text()
    assert "resume = false" in config


@pytest.mark.soak
@pytest.mark.run
@pytest.mark.parametrize("fails", [False, True])
def test_a_resumed_run_knows_who_had_lost_its_state(tmp_path, fails):
    shape = {"clients": 3, "rounds": 3, "min_updates": 2, "max_attempts": 2}

    def run(name, end=lambda who, request, reply: reply):
        memory, attempts = tmp_path / f"{name}-state", []

        def tamper(who, request, reply):
            if who == 1 and is_round(request, 1):
                shutil.rmtree(memory / "client-1")
            if fails and who in (1, 2) and is_round(request, 2):
                attempts.append(who)
                if len(attempts) in (2, 3):  # of 2, then of 1, whose reason this is
                    shutil.rmtree(memory / "client-1", ignore_errors=True)
                    return failure(request, "broken disk")
            return end(who, request, reply)

        config = tiny(
            tmp_path / name, strategy="fedavg", client_state=str(memory), **shape
        )
        resumed = config.replace(resume=(tmp_path / name).exists())
        run_in_process(resumed, tamper=tamper)

    run("whole")
    with pytest.raises(PulledPlugError):
        run("ended", ending("train", 3, client=0))
    run("ended")
    rows = rounds_of(tmp_path / "whole")
    assert ("lost its state" in rows[1]["reasons"]["1"]) is not fails
    assert rows[2]["clients"] == [0, 1, 2]
    assert outcome(tmp_path / "ended") == outcome(tmp_path / "whole")


@pytest.mark.run
@pytest.mark.parametrize("lost", ["newest", "all"])
def test_a_damaged_checkpoint_costs_a_round_or_is_refused(tmp_path, lost):
    config = tiny(
        tmp_path, strategy="fedavg", rounds=3, client_state=str(tmp_path / "m")
    )
    with pytest.raises(PulledPlugError):
        run_in_process(config, tamper=ending("train", 4, client=0))
    manifests = sorted((tmp_path / CHECKPOINT).glob("manifest-*"))
    for path in manifests if lost == "all" else manifests[-1:]:
        path.write_bytes(b"rubbish")
    again = config.replace(resume=True)
    if lost == "all":
        with pytest.raises(WireError, match="manifest-3 is damaged"):
            run_in_process(again)
        return
    transport = run_in_process(again)
    rounds = {asked_in(m).stage.round for _, m in transport.asked if m.kind == "train"}
    assert rounds == {3, 4, 5, 6}


@pytest.mark.run
@pytest.mark.parametrize("damaged", ["journal.jsonl", "checkpoint"])
def test_a_refused_resumption_leaves_the_record_as_it_is(tmp_path, damaged):
    config = tiny(tmp_path, strategy="fedavg", rounds=3)
    with pytest.raises(PulledPlugError):
        run_in_process(config, tamper=ending("train", 5, client=0))
    places = [tmp_path / damaged, *(tmp_path / damaged).glob("manifest-*")]
    for path in (place for place in places if place.is_file()):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def files():
        return {
            path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
        }

    before = files()
    with pytest.raises(WireError):
        run_in_process(config.replace(resume=True))
    assert len(rounds_of(tmp_path)) == 4
    assert files() == before


@pytest.mark.run
def test_an_unfinished_line_at_the_end_of_the_journal_is_dropped(tmp_path):
    config = tiny(tmp_path, strategy="fedavg", rounds=2)
    with pytest.raises(PulledPlugError):
        run_in_process(config, tamper=ending("train", 3, client=0))
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() + '{"what": "trained", "rou')
    run_in_process(config.replace(resume=True))
    assert len(rounds_of(tmp_path)) == 4


@pytest.mark.run
def test_a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path):
    config, errors = tiny(tmp_path, strategy="fedavg"), []

    def meanwhile(client, request, reply):
        if is_round(request, 2):
            for second in (config, config.replace(resume=True)):
                with pytest.raises(ConfigError, match=r"run\.output: got .* no other"):
                    run_in_process(second)
                errors.append(second)
        return reply

    run_in_process(config, tamper=meanwhile)
    assert len(errors) == 4
    assert len(rounds_of(tmp_path)) == 2


@pytest.mark.run
def test_a_run_that_ended_before_its_first_checkpoint_can_be_resumed(tmp_path):
    config = tiny(tmp_path, strategy="fedavg")
    (tmp_path / "journal.jsonl").write_text("what an earlier run has left\n")
    with pytest.raises(PulledPlugError):
        run_in_process(config.replace(resume=True), tamper=ending("train", 2, client=0))
    run_in_process(config.replace(resume=True))
    assert [row["round"] for row in rounds_of(tmp_path)] == [1, 2]


# ---- clients that come and go


class Coming(InProcessTransport):
    """Nodes that are there at some calls only: ``here(node, calls)``."""

    def __init__(self, nodes, config, here, **behaviour):
        super().__init__(nodes, config, delay=lambda client: 0, **behaviour)
        self.here = here
        self.round = 0

    def nodes(self):
        return [node for node in self.places if self.here(node, self.round)]

    def push(self, request, seconds):
        if request.kind == "train":
            self.round = asked_in(request).stage.round
        return super().push(request, seconds)


@pytest.mark.run
def test_a_client_that_vanishes_and_returns_goes_on_where_it_was(tmp_path):
    config = tiny(tmp_path, clients=3, rounds=3, timeout=5, grace=0)
    transport = Coming(
        [1, 2, 3], config, lambda node, done: node != 2 or done not in (1, 2)
    )
    run_simulated(transport, config)
    rows = rounds_of(tmp_path)
    assert [row["clients"] for row in rows] == [
        *([0, 1, 2], [0, 2], [0, 2]),
        *[[0, 1, 2]] * 3,
    ]
    assert rows[1]["reasons"] == rows[2]["reasons"] == {"1": "is not connected"}
    back = [asked_in(m) for c, m in transport.asked if c == 1 and m.kind == "train"]
    assert [(r.stage.round, r.since, r.stage.starts_task) for r in back] == [
        (1, 0, True),
        (4, 1, True),
        (5, 4, False),
        (6, 5, False),
    ]


class Outage(Coming):
    """Node 2 is not listed after round 1; each pause takes a second."""

    def __init__(self, nodes, config, monkeypatch, back_after):
        super().__init__(nodes, config, lambda node, done: True)
        self.now = self.gone = 0.0
        self.back_after = back_after
        monkeypatch.setattr(sync_loop, "time", self)
        monkeypatch.setattr(Mailbox, "pause", lambda box: self.pause())

    def monotonic(self):
        return self.now

    def pause(self):
        self.now += 1.0

    def nodes(self):
        listed = super().nodes()
        self.gone += self.round > 0
        return [n for n in listed if n != 2 or not 0 < self.gone <= self.back_after]


@pytest.mark.run
def test_rounds_wait_for_a_client_that_has_vanished_until_it_returns(
    tmp_path, monkeypatch
):
    config = tiny(tmp_path, strategy="fedavg", clients=3, rounds=3, grace=60)
    transport = Outage([1, 2, 3], config, monkeypatch, back_after=30)
    run_simulated(transport, config)
    trained = [row["clients"] for row in rounds_of(tmp_path)]
    assert trained == [[0, 1, 2]] * 6
    assert 0 < transport.now < 60


@pytest.mark.run
def test_a_client_that_has_gone_for_good_is_waited_for_once(tmp_path, monkeypatch):
    config = tiny(tmp_path, strategy="fedavg", clients=3, rounds=3, grace=60)
    transport = Outage([1, 2, 3], config, monkeypatch, back_after=10**9)
    run_simulated(transport, config)
    trained = [row["clients"] for row in rounds_of(tmp_path)]
    assert trained == [[0, 1, 2]] + [[0, 2]] * 5
    assert 60 <= transport.now <= 62


@pytest.mark.parametrize(
    ("participants", "quorum", "configured", "needed"),
    [
        *[(1, 1.0, 0, 1), (2, 1.0, 0, 1), (3, 1.0, 0, 2), (10, 1.0, 0, 5)],
        *[(10, 0.3, 0, 3), (25, 0.28, 0, 7), (10, 0.8, 0, 5), (10, 1.0, 9, 9)],
    ],
)
def test_a_round_needs_half_of_its_participants_unless_another_number_is_set(
    participants, quorum, configured, needed
):
    section = FederationSection(quorum=quorum, min_updates=configured)
    assert section.updates_needed(participants) == needed


@pytest.mark.run
def test_one_client_of_three_does_not_carry_a_round(tmp_path):
    config = tiny(tmp_path, strategy="fedavg", clients=3, timeout=0.3, max_attempts=1)

    def fails(who, request, reply):
        lost = who > 0 and request.kind == "train"
        return failure(request, "broken disk") if lost else reply

    expected = "round 1: 1 usable replies, 2 needed; left out: clients 1, 2: .*broken"
    with pytest.raises(RoundError, match=expected):
        run_in_process(config, tamper=fails)


@pytest.mark.run
def test_a_client_that_joins_late_begins_its_task_when_it_comes(tmp_path):
    config = tiny(tmp_path, clients=3, rounds=3, min_updates=2, timeout=0.3)
    transport = Coming([1, 2, 3], config, lambda node, done: node != 3 or done >= 1)
    run_simulated(transport, config)
    rows = rounds_of(tmp_path)
    assert rows[0]["reasons"] == {"2": "is not connected"}
    assert rows[1]["clients"] == [0, 1, 2]
    late = trained_by(transport, 2)
    assert [(s.round, s.starts_task) for s in late[:2]] == [(2, True), (3, False)]


@pytest.mark.run
def test_a_round_waits_for_a_client_that_died_and_is_still_listed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(clients, "RETURN_SECONDS", 0.05)
    deaths = []

    def dies(who, request, reply):
        dead = who == 1 and len(deaths) < 5
        if dead and (deaths or is_round(request, 2)):
            deaths.append(request.kind)
            return Reply(request, Problem("no heartbeat", "gone"))
        return reply

    config = tiny(tmp_path, strategy="fedavg", rounds=2, min_updates=2, max_attempts=2)
    run_in_process(config.replace(timeout=20.0), tamper=dies)
    assert deaths == ["train", *["query"] * 4], "asked who it is until it answers"
    assert [row["clients"] for row in rounds_of(tmp_path)] == [[0, 1]] * 4


@pytest.mark.run
def test_a_client_that_lost_its_state_receives_everything_again(tmp_path):
    memory = tmp_path / "m"
    config = tiny(tmp_path / "run", rounds=4, client_state=str(memory))

    def wipe(who, request, reply):
        if who == 1 and is_round(request, 1):
            shutil.rmtree(memory / "client-1")
        return reply

    transport = run_in_process(config, tamper=wipe)
    rows = rounds_of(tmp_path / "run")
    assert [row["clients"] for row in rows[:3]] == [[0, 1], [0], [0, 1]]
    assert "lost its state" in rows[1]["reasons"]["1"]
    first, third = (
        next(m for c, m in transport.asked if c == 1 and is_round(m, number))
        for number in (1, 3)
    )
    sizes = [
        {
            n: t.indices.size
            for n, t in messages.decode_payload(m.content)["base"].items()
        }
        for m in (first, third)
    ]
    assert sizes[0] == sizes[1], "the whole base, as in the beginning"
    assert asked_in(third).stage.starts_task


@pytest.mark.run
@pytest.mark.parametrize("always", [False, True])
def test_the_first_loss_of_a_state_costs_no_attempt(tmp_path, always):
    memory = tmp_path / "m"
    shape = {
        "rounds": 3,
        "min_updates": 2,
        "max_attempts": 1,
        "client_state": str(memory),
    }
    lost = []

    def wipe(who, request, reply):
        train = request.kind == "train"
        if who == 1 and train and (is_round(request, 1) or always):
            shutil.rmtree(memory / "client-1", ignore_errors=True)
            lost.append(request)
        if always and who == 1 and is_round(request, 2):
            return Reply(request, messages.state_lost(1))
        return reply

    config = tiny(tmp_path / "run", strategy="fedavg", **shape)
    if always:
        with pytest.raises(RoundError, match="has lost its state"):
            run_in_process(config, tamper=wipe)
        assert sum(is_round(request, 2) for request in lost) == 2
    else:
        run_in_process(config, tamper=wipe)
        assert [row["clients"] for row in rounds_of(tmp_path / "run")] == [[0, 1]] * 6


def enormous(tensor):
    if isinstance(tensor, SparseArray):
        return SparseArray(tensor.shape, tensor.indices, enormous(tensor.values))
    return np.full_like(tensor, 1e9)


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_an_update_of_absurd_norm_is_left_out_by_name(tmp_path, strategy):
    def inflate(who, request, reply):
        if who == 1 and request.kind == "train":
            payload = messages.decode_payload(reply.content)
            huge = {n: enormous(tensor) for n, tensor in payload["base"].items()}
            inflated = messages.MessageEncoder().payload({**payload, "base": huge})
            return Reply(request, Content(inflated.tensors, reply.content.scalars))
        return reply

    run_in_process(tiny(tmp_path, strategy=strategy), tamper=inflate)
    for row in rounds_of(tmp_path):
        assert row["clients"] == [0]
        assert row["reasons"]["1"].startswith("norm: expected at most")
    run_in_process(
        tiny(tmp_path, strategy=strategy, max_update_norm=0.0), tamper=inflate
    )
    assert rounds_of(tmp_path)[0]["clients"] == [0, 1]


# ---- messages of a size that does not pass


@pytest.fixture
def over_a_network(monkeypatch):
    def limited(most):
        monkeypatch.setattr(prepare, "LARGEST_MESSAGE", most)
        return {"delay": lambda client: 0}

    return limited


@pytest.mark.run
def test_a_model_that_is_too_large_to_be_sent_is_refused_before_training(
    tmp_path, over_a_network
):
    config = tiny(tmp_path, strategy="fedavg")
    with pytest.raises(ConfigError, match=r"^message: got .* MB to a client.* float16"):
        run_in_process(config, **over_a_network(10_000))
    assert rounds_of(tmp_path) == []
    run_in_process(config, **over_a_network(10**6))
    assert len(rounds_of(tmp_path)) == 2


@pytest.mark.run
def test_a_message_that_grows_too_large_later_is_sent_with_a_warning(
    tmp_path, over_a_network, caplog
):
    strategy = {"name": "fedweit", "adapter_bits": 32}
    config = tiny(tmp_path, strategy=strategy, tasks=3)
    transport = run_in_process(config)
    sizes = [
        sum(traffic(request.content).values())
        for _, request in transport.asked
        if request.kind == "train"
    ]
    first, later = max(sizes[:2]), max(sizes[2:])
    assert first < later
    again = config.replace(output=str(tmp_path / "again"))
    run_in_process(again, **over_a_network(first))
    assert "more than are known to pass" in caplog.text
    assert len(rounds_of(tmp_path / "again")) == 3
