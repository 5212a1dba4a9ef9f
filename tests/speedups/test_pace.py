"""How often a client looks for messages."""

import inspect

from flwr.supernode import start_client_internal

from fcl_flower.deploy.speedups.pace import looking_often


class Clock:
    """Time that passes by pauses alone; messages arrive at given times."""

    def __init__(self, arrivals):
        self.time = 100.0
        self.arrivals = list(arrivals)
        self.looks = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds

    def step(self, *, server):
        assert server == "the server"
        self.looks.append(self.time)
        if self.arrivals and self.arrivals[0] <= self.time:
            self.arrivals.pop(0)
            return 7
        return None


def test_a_client_without_a_run_leaves_the_pause_to_flower():
    clock = Clock([])
    step = looking_often(clock.step, clock.now, clock.sleep)

    for _ in range(3):
        assert step(server="the server") is None
        clock.sleep(3.0)

    assert clock.looks == [100.0, 103.0, 106.0]


def test_a_message_soon_after_an_answer_is_found_soon():
    clock = Clock([100.0, 160.5, 170.0])
    step = looking_often(clock.step, clock.now, clock.sleep)
    assert step(server="the server") == 7
    clock.sleep(60.0)  # it trains, and answers

    assert step(server="the server") == 7

    assert 160.5 <= clock.time < 160.5 + 0.2
    assert step(server="the server") == 7
    assert 170.0 <= clock.time < 170.0 + 0.2 * 10  # a fifth of the wait


def test_looks_become_rare_when_nothing_comes():
    clock = Clock([100.0])
    step = looking_often(clock.step, clock.now, clock.sleep)
    assert step(server="the server") == 7

    assert step(server="the server") is None
    first = len(clock.looks)
    clock.sleep(3.0)
    assert step(server="the server") is None

    assert (
        clock.time - 100.0 > 15.0
    )  # from here on a fifth of the time is Flower's pause
    assert first - 1 <= 22  # looks; Flower would have had six
    assert len(clock.looks) == first + 1


def test_flower_alone_looks_every_three_seconds():
    assert "time.sleep(3)" in inspect.getsource(start_client_internal)
