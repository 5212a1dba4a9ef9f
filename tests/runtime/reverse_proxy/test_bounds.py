"""What the reverse proxy may hold, and one who lets it wait."""

import asyncio
import resource
import subprocess
import sys

import pytest

from fcl_flower.runtime.http import RESERVED, Bounds, Caller, GoneError


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


RAISED = """
import resource
from fcl_flower.runtime.http import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))
print(raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("soft", "hard", "found"),
    [
        (256, 1024, (1024, 1024, 1024)),
        (1024, 1024, (1024, 1024, 1024)),
        (256, 2**17, (2**16, 2**16, 2**17)),
    ],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_allowed(soft, hard, found):
    if hard > resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        pytest.skip("this process may not open as many files")
    code = RAISED.replace("SOFT", str(soft)).replace("HARD", str(hard))

    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert tuple(map(int, said.stdout.split())) == found


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
