"""What the reverse proxy may hold, and one who lets it wait."""

import asyncio

import pytest

from fcl_flower.runtime.reverse_proxy.bounds import RESERVED, Bounds
from fcl_flower.runtime.reverse_proxy.caller import Caller, GoneError


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("limit", [128, 200, 256, 1024, 4096, 2**16])
def test_connections_and_all_else_stay_within_the_descriptors(limit, keys):
    bounds = Bounds.of_descriptors(limit, keys=keys)
    # A member may take a second one, to the SuperLink.
    assert bounds.guests + 2 * bounds.members + RESERVED <= limit
    assert 1 <= bounds.guests_of_address <= bounds.guests
    assert bounds.members_of_key >= 1
    assert bounds.guests <= Bounds.guests
    assert bounds.members <= Bounds.members


def test_many_descriptors_give_all_that_is_meant_to_be():
    assert Bounds.of_descriptors(2**16, keys=True) == Bounds()


def test_one_who_takes_no_answer_is_waited_for_some_seconds():
    class Stuck:
        def write(self, data):
            pass

        async def drain(self):
            await asyncio.Event().wait()

    async def refuse():
        caller = Caller(asyncio.StreamReader(), Stuck(), Bounds(idle_seconds=0.05))
        async with asyncio.timeout(10):
            await caller.refuse(503)

    with pytest.raises(GoneError):
        asyncio.run(refuse())
