"""All clients lose their state again and again: the run ends, and says so."""

import pytest
from fakes import InProcessTransport, rounds_of, summary_of, tiny

from fcl_flower.core.errors import RoundError
from fcl_flower.rounds.messages import NUMBER, SPEC, decode_request
from fcl_flower.rounds.state_losses import StateLosses
from fcl_flower.rounds.transport import TRAIN, Content
from fcl_flower.simulation.in_process import run_simulated

METHODS = pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
FORGETS = (SPEC, NUMBER)
KEPT = {"restarts": (), "forgets": FORGETS}
"""What is left of what a client keeps: nothing as after a restart, or the run."""


class Forgetful(InProcessTransport):
    """``loses(client, round)`` says what is left of a client's state, once a round.

    Before it trains; None for all of it.
    """

    def __init__(self, config, loses):
        nodes = [101 + 7 * client for client in range(config.scenario.clients)]
        super().__init__(nodes, config)
        self.loses = loses
        self.lost = set()
        self.trained = []

    def honest_answer(self, request, place):
        if request.kind == TRAIN:
            moment = place.number, decode_request(request.content).stage.round
            self.trained.append(moment)
            left = self.loses(*moment)
            if moment not in self.lost and left is not None:
                self.lost.add(moment)
                scalars = place.state.scalars
                kept = {name: scalars[name] for name in left if name in scalars}
                place.state = Content(scalars=kept)
        return super().honest_answer(request, place)


def forgetful(folder, strategy, loses, **settings):
    usual = {"strategy": strategy, "tasks": 1, "rounds": 4}
    config = tiny(folder, **{**usual, **settings})
    assert config.run.client_state == "context"
    return Forgetful(config, loses), config


def ran(*given, **settings):
    transport, config = forgetful(*given, **settings)
    run_simulated(transport, config)
    return transport


SAID = (
    r"^every client has lost its state \(clients 0, 1\), 2 times in a row or more: "
    "what they had learned is gone, so that the run ends here. A state lasts as long "
    "as a client's SuperNode, or in the folder that state-path in its --node-config "
    "names$"
)


@pytest.mark.run
@METHODS
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_run_ends_in_which_all_lose_their_state_in_every_round(
    tmp_path, strategy, kept
):
    transport, config = forgetful(tmp_path, strategy, lambda client, number: kept)
    with pytest.raises(RoundError, match=SAID):
        run_simulated(transport, config)

    # Who has forgotten the run has lost a state in the first round already.
    last = 2 if kept else 1
    assert len(rounds_of(tmp_path)) == last
    assert not (tmp_path / "summary.json").exists()
    assert transport.trained[-2:] == [(0, last + 1), (1, last + 1)]
    assert transport.trained.count((0, last + 1)) == 1, "no other attempt"


@pytest.mark.run
@METHODS
def test_so_does_an_asynchronous_one(tmp_path, strategy):
    shape = {"asynchronous": True, "simulated_durations": "1,1.75"}
    with pytest.raises(RoundError, match=SAID):
        ran(tmp_path, strategy, lambda client, number: (), **shape)


@pytest.mark.run
@METHODS
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_run_goes_on_of_whom_one_loses_its_state_each_time(tmp_path, strategy, kept):
    transport = ran(tmp_path, strategy, lambda who, number: kept if who else None)

    assert {number for _, number in transport.lost} == {1, 2, 3, 4}
    rows = rounds_of(tmp_path)
    assert len(rows) == 4
    assert all(0 in row["clients"] for row in rows)
    assert sum("lost its state" in row["reasons"].get("1", "") for row in rows) >= 1
    assert summary_of(tmp_path)["client_accuracy"][0] is not None


@pytest.mark.run
@METHODS
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_run_goes_on_of_whom_all_lose_their_state_once(tmp_path, strategy, kept):
    def loses(client, number):
        return kept if number == 2 else None

    transport = ran(tmp_path, strategy, loses)

    assert transport.lost == {(0, 2), (1, 2)}
    assert [row["clients"] for row in rounds_of(tmp_path)] == [[0, 1]] * 4
    assert summary_of(tmp_path)["average_accuracy"] is not None


@pytest.mark.run
@METHODS
def test_who_restarts_once_is_not_overlooked_while_it_is_told_the_run(
    tmp_path, strategy
):
    def loses(client, number):
        if client == 0:
            return FORGETS
        return () if number == 4 else None

    transport = ran(tmp_path, strategy, loses, rounds=5)

    assert {(0, 5), (1, 4)} <= transport.lost
    assert len(rounds_of(tmp_path)) == 5


@pytest.mark.run
@METHODS
def test_a_run_ends_that_all_have_forgotten_at_its_end(tmp_path, strategy):
    def loses(client, number):
        return FORGETS if number == 4 else None

    if strategy == "fedavg":  # what they evaluate is what they have learned since
        ran(tmp_path, strategy, loses)
        return
    with pytest.raises(RoundError, match=r"lost its state \(clients 0, 1\), once or m"):
        ran(tmp_path, strategy, loses)


# ---- by hand


def counted(*notes):
    losses = StateLosses()
    for lost, kept in notes:
        losses.note(lost, kept)
    return losses


def test_who_has_kept_its_state_since_has_lost_it_no_more():
    losses = counted([{0, 1}, ()], [(), {0}], [{0, 1}, ()])
    losses.check([0, 1], least=2)
    losses.check([0], least=2)
    with pytest.raises(RoundError, match=r"\(clients 1\), 2 times"):
        losses.check([1], least=2)


def test_who_was_never_asked_for_a_state_or_is_away_does_not_count():
    losses = counted([{0}, {2}], [{0}, ()])
    losses.check([0, 1, 2], least=2)
    with pytest.raises(RoundError, match=r"\(clients 0\)"):
        losses.check([0], least=2)


def test_a_few_who_report_losses_end_no_run_of_others_that_were_not_asked_yet():
    losses = counted([{0}, ()], [{0}, ()])
    losses.check([0, 1], least=2)
    with pytest.raises(RoundError, match=r"\(clients 0\)"):
        losses.check([0], least=2)


def test_nobody_counts_before_anybody_was_asked():
    StateLosses().check([0, 1], least=1)
    counted([(), {0}]).check([0], least=1)
