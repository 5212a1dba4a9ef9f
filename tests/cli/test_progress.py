import io

import pytest
from rich.console import Console
from rich.text import Text

from fcl_flower.cli.progress import Display, _bars, describe, time_done


def progress(**values):
    return {
        "state": "training",
        "round": 3,
        "rounds": 10,
        "task": 0,
        "tasks": 2,
        "clients_done": 4,
        "clients": 4,
        "accuracy": None,
        "bytes_up": 1_234_567,
        "bytes_down": 999,
        "seconds": 60.0,
        "working": [],
        "left": 240.0,
        **values,
    }


def test_a_line_says_where_a_run_stands():
    assert describe(progress(accuracy=0.8125)) == (
        "task 0 of 0 to 1  round 3/10  clients 4/4  accuracy so far 0.812  "
        "up 1.23 MB  down 999 B  4 min 00 s left"
    )


def test_what_is_left_goes_down_with_the_clock_and_not_below_nothing():
    assert describe(progress(), since=30).endswith("  3 min 30 s left")
    assert describe(progress(), since=300).endswith("  0.0 s left")


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({"seconds": 60.0, "left": 240.0}, 0.2),
        ({"left": None}, 0),
        ({"seconds": 0.0, "left": 0.0}, 0),
        ({"seconds": 60.0, "left": 0.0}, 1),
        ({"seconds": 60.0, "left": 9.0, "state": "finished"}, 1),
    ],
)
def test_the_share_of_the_time_that_is_over_is_foretold(values, share):
    assert time_done(progress(**values)) == pytest.approx(share)


def test_the_first_round_promises_nothing():
    text = describe(progress(round=1, left=None))
    assert "left" not in text
    assert "accuracy so far -" in text


def test_before_the_first_round_there_is_only_waiting():
    assert describe(progress(round=0)) == "starting"


def test_a_finished_run_says_how_long_it_took():
    text = describe(progress(state="finished", round=10, seconds=125))
    assert text.endswith("  finished in 2 min 05 s")
    assert "left" not in text
    assert "clients" not in text


def lines_of(*shown, label="fedavg seed 0", **terminal):
    output = io.StringIO()
    console = Console(file=output, width=200, **terminal)
    with Display(console, label) as display:
        for one in shown:
            display.show(one)
    return output.getvalue()


def test_elsewhere_than_in_a_terminal_there_is_one_line_a_complete_round():
    text = lines_of(
        progress(round=0, clients_done=0, clients=0, state="starting"),
        progress(round=1, clients_done=1),
        progress(round=1, clients_done=4),
        progress(round=1, clients_done=4),  # the evaluation after it
        progress(round=2, clients_done=3),
        progress(round=2, clients_done=4),
        progress(round=2, clients_done=0, clients=0, state="finished"),
    )
    lines = text.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["fedavg seed 0: starting"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 1/10"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 2/10"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 2/10"],
    ]
    assert lines[-1].endswith("finished in 1 min 00 s")
    assert "\x1b" not in text


def test_in_a_terminal_there_is_a_bar_that_moves():
    text = lines_of(
        progress(round=1, clients_done=0),
        progress(round=10, state="finished"),
        force_terminal=True,
    )
    assert "\x1b[" in text
    assert "finished in 1 min 00 s" in text
    assert "━" in text


class Terminal:
    """What a terminal would show of a run, as a clock of ours goes on."""

    def __init__(self, label="fedavg seed 0"):
        self.now = 500.0
        self.console = Console(file=io.StringIO(), width=120, force_terminal=True)
        self.display = Display(self.console, label, lambda: self.now)

    def show(self, seconds=0.0, **values):
        self.now += seconds
        self.display.show(progress(**values))

    def picture(self, seconds=0.0):
        self.now += seconds
        with self.console.capture() as text:
            self.console.print(self.display.picture(), no_wrap=True)
        plain = Text.from_ansi(text.get()).plain
        return [line.rstrip() for line in plain.splitlines()]


def test_before_the_first_round_a_terminal_says_that_the_run_starts():
    terminal = Terminal()
    assert terminal.picture() == ["fedavg seed 0  starting"]
    terminal.show(round=0)
    assert terminal.picture() == ["fedavg seed 0  starting"]


def test_a_terminal_has_a_line_for_the_run_bars_and_a_line_for_each_that_works():
    terminal = Terminal("ours [red]")
    terminal.show(round=7, rounds=10, task=1, clients_done=1, working=[2, 5])
    terminal.show(3.0, round=7, rounds=10, task=1, clients_done=1, working=[3, 5])
    head, task, number, clients, *working = terminal.picture(2.0)

    assert head == (
        "ours [red]  accuracy so far -  up 1.23 MB  down 999 B  3 min 58 s left"
    )
    assert task.strip().startswith("task 1 of 0 to 1 ")
    assert number.split()[:2] == ["round", "7/10"]
    assert clients.split()[:2] == ["clients", "1/4"]
    assert [line.split("at work for ") for line in working] == [
        [f"  client 3{' ' * 9}", "2.0 s"],
        [f"  client 5{' ' * 9}", "5.0 s"],
    ]


def test_the_bars_are_of_the_run_the_task_and_the_round():
    terminal = Terminal()
    terminal.show(round=8, rounds=10, task=1, clients_done=1, clients=4)
    rows = [*_bars(terminal.display._progress)]
    assert rows == [
        ("task 1 of 0 to 1", 1.4, 2),  # seven of ten rounds
        ("round 8/10", 2, 5),
        ("clients 1/4", 1, 4),
    ]
    terminal.show(round=10, rounds=10, task=1, clients=0, state="finished")
    rows = [*_bars(terminal.display._progress)]
    assert rows == [("task 1 of 0 to 1", 2, 2), ("round 10/10", 5, 5)]
    assert terminal.picture()[0].endswith("finished in 1 min 00 s")


def test_of_many_that_work_some_have_a_line():
    terminal = Terminal()
    terminal.show(working=[*range(100)])
    lines = terminal.picture()
    assert sum("client " in line for line in lines) == 8
    assert lines[-1].split() == ["and", "92", "more", "at", "work"]
    terminal.show(working=[*range(8)])
    assert "more" not in terminal.picture()[-1]


def test_who_begins_anew_works_since_then():
    terminal = Terminal()
    terminal.show(working=[1])
    terminal.show(4.0, working=[])
    terminal.show(1.0, working=[1])
    assert terminal.picture(2.0)[-1].endswith("at work for 2.0 s")


def test_a_name_with_brackets_is_shown_as_it_is():
    for terminal in (True, False):
        text = lines_of(progress(), label="ours [red] [/x]", force_terminal=terminal)
        assert "ours [red] [/x]" in text
