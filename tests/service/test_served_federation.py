"""A service with two real clients, of which one gets its second task late."""

from contextlib import suppress

import pytest
from local_federation import LocalFederation
from services import DoneError, World, deliver
from waiting import await_true

from fcl_flower.core.errors import ConfigError
from fcl_flower.service.status import Policy, ServiceStatus

pytestmark = pytest.mark.deploy

RUN = (
    *("--strategy", "fedavg", "--model", "mlp", "--set", "model.num_features=3"),
    *("--classes-per-task", 2, "--clients", 2, "--rounds", 2, "--seed", 3),
    *("--quorum", "1.0", "--deadline", "0", "--look", "0.5s"),
)


def serve(lab, name):
    address = f"127.0.0.1:{lab.control}"
    more = ("--server", address, "--insecure", "--output", "service")
    lab.fcl(name, "serve", *RUN, *more)


def until(lab, holds):
    """Wait until the status of the service is as it should be; return it."""

    def found():
        with suppress(ConfigError):  # it has not begun yet
            status = ServiceStatus.read(lab.folder / "service")
            return status if holds(status) else None

    return await_true(found, lab.tails)


def learned(lab, tasks):
    until(lab, lambda now: (now.state, now.learned) == ("waiting", tasks))


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """All that happened until the second task was learned; all is over."""
    lab = LocalFederation(tmp_path_factory.mktemp("lab"))
    try:
        for name in "ab":
            deliver(lab.folder / name, 1)
        lab.server(certs="")
        for number, name in enumerate("ab"):
            lab.client(number, "--data", name, certs="")
        serve(lab, "first")
        learned(lab, 1)
        deliver(lab.folder / "a", 2)
        lab.waiting = until(lab, lambda now: now.first_new is not None)
        lab.left = lab.kill("first")
        serve(lab, "second")
        deliver(lab.folder / "b", 2)
        learned(lab, 2)
    finally:
        lab.alive = lab.end()
    return lab


def test_a_service_that_was_killed_learns_what_an_undisturbed_one_learns(lab, tmp_path):
    def waits(tasks, now):
        if tasks == 2:
            raise DoneError
        for place in world.places:
            deliver(place, tasks + 1)

    policy = Policy(quorum=1.0, look=10.0)
    world = World(tmp_path, policy, waits, rounds=2, seed=3)
    assert world.serve()

    assert world.outcome(lab.folder / "service") == world.outcome()


def test_it_waits_for_the_client_whose_task_is_late(lab):
    assert lab.waiting.sentence == "waits for a new task at 2 clients, where 1 have one"
    assert lab.waiting.learned == 1


def test_nothing_is_left_of_a_service_that_was_killed(lab):
    assert lab.left == lab.alive == []
    assert "stopping run" in lab.said("second")
