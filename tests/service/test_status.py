"""When a service trains: a table of what clients have, and what follows."""

import math

import pytest

from fcl_flower.service.status import ClientTasks, Policy

NEVER = math.inf
NEW, OLD, GONE = "new", "old", "gone"


def client(kind, samples=100):
    """Return a client with a new task, with none, or that is not connected."""
    return ClientTasks(
        connected=kind != GONE,
        tasks=1 if kind == OLD else 2,
        learned=1,
        samples=0 if kind == OLD else samples,
        told=0.0,
    )


@pytest.mark.parametrize(
    ("policy", "kinds", "first_new", "last_begun", "at"),
    [
        # Nobody has a new task, whatever else.
        ({}, [], None, None, NEVER),
        ({"deadline": 5}, [OLD, GONE], None, 10.0, NEVER),
        # A quorum of those that are known: who is not connected counts among them.
        ({"quorum": 0.5}, [NEW, OLD], 20.0, None, 20.0),
        ({"quorum": 0.5}, [NEW, OLD, GONE], 20.0, None, NEVER),
        ({"quorum": 0.6}, [NEW, NEW, NEW, OLD, OLD], 20.0, None, 20.0),
        ({"quorum": 0.6}, [NEW, NEW, OLD, OLD, OLD], 20.0, None, NEVER),
        ({"quorum": 0.28}, [NEW] * 7 + [OLD] * 18, 20.0, None, 20.0),
        ({"quorum": 1.0}, [NEW, GONE], 20.0, None, NEVER),
        ({"quorum": 0.01}, [NEW, OLD], 20.0, None, 20.0),
        # A number of clients.
        ({"quorum": 2}, [NEW, OLD, OLD], 20.0, None, NEVER),
        ({"quorum": 2}, [NEW, NEW, OLD, OLD, OLD], 20.0, None, 20.0),
        ({"quorum": 3}, [NEW, NEW], 20.0, None, NEVER),
        # After the deadline fewer are enough.
        ({"quorum": 1.0, "deadline": 60}, [NEW, OLD], 20.0, None, 80.0),
        ({"quorum": 1.0, "deadline": 60}, [NEW, NEW], 20.0, None, 20.0),
        # No more often than so.
        ({"quorum": 1, "every": 50}, [NEW], 20.0, 10.0, 60.0),
        ({"quorum": 1, "every": 5}, [NEW], 20.0, 10.0, 20.0),
        ({"quorum": 1, "every": 50}, [NEW], 20.0, None, 20.0),
        ({"quorum": 2, "deadline": 60, "every": 500}, [NEW], 20.0, 10.0, 510.0),
        # Samples of all clients with a new task together.
        ({"quorum": 1, "min_samples": 200}, [NEW, NEW, OLD], 20.0, None, 20.0),
        ({"quorum": 1, "min_samples": 201}, [NEW, NEW, OLD], 20.0, None, NEVER),
        ({"quorum": 1, "min_samples": 201}, [NEW, NEW, GONE], 20.0, None, NEVER),
        (
            {"quorum": 1, "min_samples": 201, "deadline": 9},
            [NEW, NEW],
            20.0,
            None,
            29.0,
        ),
    ],
)
def test_the_next_training_is_due(policy, kinds, first_new, last_begun, at):
    clients = dict(enumerate(map(client, kinds)))

    assert Policy(**policy).next_training(clients, first_new, last_begun)[0] == at


@pytest.mark.parametrize(
    ("policy", "kinds", "sentence"),
    [
        ({}, [OLD], "a client with a new task"),
        ({"quorum": 1}, [NEW], "the time of the next training"),
        (
            {"quorum": 2, "min_samples": 500, "deadline": 9},
            [NEW],
            "a new task at 2 clients, where 1 have one and 500 new samples, where "
            "there are 100, or the deadline",
        ),
    ],
)
def test_it_says_what_it_waits_for(policy, kinds, sentence):
    clients = dict(enumerate(map(client, kinds)))
    first_new = 0.0 if NEW in kinds else None
    found = Policy(**policy).next_training(clients, first_new, None)
    assert found[1] == sentence
