"""Who has to go when too many are connected."""

from dataclasses import replace

import pytest

from fcl_flower.runtime.http import Bounds
from fcl_flower.runtime.proxy import Connections, network

BOUNDS = Bounds(guests=3, guests_of_address=2, members=3, members_of_key=2)


class Served:
    """Stands for the task that serves a connection."""

    cancelled = False

    def cancel(self):
        self.cancelled = True


def arrived(connections, *addresses):
    guests = [Served() for _ in addresses]
    for guest, address in zip(guests, addresses, strict=True):
        connections.admit(guest, address)
    return guests


def gone(guests):
    return [guest.cancelled for guest in guests]


def test_the_oldest_of_all_guests_makes_room_for_one_too_many():
    connections = Connections(BOUNDS)
    guests = arrived(connections, "a", "b", "c", "d", "e")
    assert gone(guests) == [True, True, False, False, False]
    assert len(connections) == BOUNDS.guests


def test_the_oldest_of_an_address_makes_room_for_one_too_many_of_it():
    connections = Connections(BOUNDS)
    guests = arrived(connections, "a", "b", "b", "b")
    assert gone(guests) == [False, True, False, False]
    assert len(connections) == 3


def test_members_make_no_room_and_are_none_too_many():
    connections = Connections(BOUNDS)
    guests = arrived(connections, "a", "b", "c")
    assert [connections.promote(guest, "x") for guest in guests] == [True, True, False]
    assert connections.promote(guests[0], "x"), "it is one already"
    assert connections.promote(guests[2], "y")
    more = arrived(connections, "a", "a", "b", "b", "c")
    assert not connections.promote(more[-1], "z"), "three members are all"
    assert not any(gone(guests))
    assert len(connections) == BOUNDS.members + BOUNDS.guests


def test_who_leaves_gives_its_place_to_others():
    connections = Connections(replace(BOUNDS, guests=1))
    first, second = arrived(connections, "a")[0], Served()
    connections.leave(first)
    connections.admit(second, "a")
    assert not first.cancelled
    for _ in range(3):  # each of the key's two places is free again
        members = [Served() for _ in range(BOUNDS.members_of_key)]
        assert all(connections.promote(one, "x") for one in members)
        for one in members:
            connections.leave(one)
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
    ],
)
def test_a_machine_is_an_address_or_the_network_from_which_it_takes_any(
    address, expected
):
    assert network(address) == expected
