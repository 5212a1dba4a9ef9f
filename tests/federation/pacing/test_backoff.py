"""When a client that was late is asked again, by hand."""

from fcl_flower.federation import pacing
from fcl_flower.results.record import Lateness


def late(server_round, times=1, busy_until=0.0):
    return Lateness(server_round, times, busy_until)


def test_the_pause_doubles_up_to_the_longest():
    pauses = [pacing.next_round(late(10, times)) - 11 for times in range(1, 9)]
    assert pauses == [0, 1, 2, 4, 8, 16, 16, 16]


def test_a_resting_client_is_named_with_the_round_of_its_return():
    known = {1: late(4, 3), 2: late(4, 1)}
    why = "was late 3 times in a row, and is asked again in round 7"
    assert pacing.backing_off(known, 6, [0, 1, 2]) == {1: why}
    assert pacing.backing_off(known, 7, [0, 1, 2]) == {}
    assert pacing.backing_off(known, 6, [0, 2]) == {}


def test_a_client_is_busy_until_its_time():
    known = {1: late(4, busy_until=2.5), 2: late(4, busy_until=3.0)}
    assert pacing.busy(known, 2.5, [0, 1, 2]) == {2}
    assert pacing.busy(known, 2.4, [0, 1]) == {1}


def test_time_passes_until_enough_are_free():
    known = {1: late(4, busy_until=2.5), 2: late(4, busy_until=3.0)}
    found = [
        pacing.next_free_time(known, 2.0, [0, 1, 2], least) for least in (1, 2, 3, 9)
    ]
    assert found == [2.0, 2.5, 3.0, 3.0]
    assert pacing.next_free_time(known, 2.0, [], 1) == 2.0
    assert pacing.next_free_time(known, 9.0, [1, 2], 2) == 9.0
