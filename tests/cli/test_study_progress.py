"""What is shown of several runs, with a clock of our own."""

import io
import time
from pathlib import Path

import pytest
from fakes import tiny
from rich.console import Console

from fcl_flower.cli.progress import StudyDisplay
from fcl_flower.core.errors import RoundError
from fcl_flower.runtime.local_runs import Job
from fcl_flower.setup.resolve import resolve


def jobs_of(*runs, of):
    return [
        Job(resolve(tiny("", strategy=name, seed=seed)), Path(f"{number}"), number, of)
        for number, name, seed in runs
    ]


def progress(rounds_done, **values):
    finished = rounds_done == 4
    return {
        "state": "finished" if finished else "training",
        "round": rounds_done + (not finished),
        "rounds": 4,
        "task": 0,
        "tasks": 2,
        "clients_done": 2,
        "clients": 2,
        "accuracy": None,
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": 10.0,
        "working": [],
        "left": 10.0 * (4 - rounds_done) / rounds_done if rounds_done else None,
        **values,
    }


def shown(jobs, *events, processes=1, **terminal):
    """Return what is printed as seconds go by, and runs go on or are over."""
    output, now = io.StringIO(), [0.0]
    console = Console(file=output, width=200, **terminal)
    with StudyDisplay(console, jobs, processes, lambda: now[0]) as display:
        for seconds, number, rounds_done in events:
            now[0] += seconds
            if rounds_done is None or isinstance(rounds_done, RoundError):
                display.over(jobs[number], rounds_done)
            else:
                display.show(jobs[number], progress(rounds_done))
    return output.getvalue()


TWO_LEFT = jobs_of((2, "fedavg", 2), (3, "fedweit", 2), of=3)
EVENTS = [(0, 0, 0), (60, 0, 2), (60, 0, 4), (0, 0, None), (0, 1, 0)]


def test_lines_name_the_run_among_all_and_say_what_is_left():
    text = shown(TWO_LEFT, *EVENTS, (120, 1, 4), (0, 1, None))
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "run 2 of 3: fedavg seed 2: task 0 of 0 to 1",
        "run 2 of 3: fedavg seed 2: task 0 of 0 to 1",
        "run 2 of 3: fedavg seed 2: task 0 of 0 to 1",
        # The first of three was finished by an earlier command.
        "2 of 3 runs done, about 2 min 00 s left",
        "run 3 of 3: fedweit seed 2: task 0 of 0 to 1",
        "run 3 of 3: fedweit seed 2: task 0 of 0 to 1",
        "3 of 3 runs done",
    ]
    assert "\x1b" not in text


@pytest.mark.parametrize("terminal", [{}, {"force_terminal": True}])
def test_a_run_that_fails_says_so_at_once_and_is_not_counted_as_done(terminal):
    broken = RoundError("no [bold]replies[/bold]")
    events = [(0, 0, 0), (60, 0, 2), (0, 0, broken), (0, 1, 0), (60, 1, 2)]
    text = shown(TWO_LEFT, *events, (60, 1, 4), (0, 1, None), **terminal)
    assert "run 2 of 3: fedavg seed 2 failed: no [bold]replies[/bold]" in text
    if not terminal:  # which is drawn now and then
        assert "1 of 3 runs done, 1 failed" in text
    assert "2 of 3 runs done, 1 failed" in text
    assert "3 of 3" not in text.replace("run 3 of 3", "")


def test_two_runs_at_a_time_have_their_own_lines():
    events = [(0, 0, 1), (0, 1, 1), (0, 0, 1), (0, 1, 1)]
    lines = shown(TWO_LEFT, *events, processes=2).splitlines()
    assert [line[:11] for line in lines] == ["run 2 of 3:", "run 3 of 3:"]


def test_a_terminal_has_a_bar_for_each_run_and_what_is_left_of_all():
    text = shown(TWO_LEFT, *EVENTS, force_terminal=True)
    assert "\x1b[" in text
    assert "━" in text
    last = text[text.rindex("run 3 of 3: fedweit") :]
    assert "2 of 3 runs done, about 2 min 00 s left" in last
    # A run that is over keeps a line, above the bars.
    assert "run 2 of 3: fedavg seed 2: task 0 of 0 to 1  round 4/4" in text


def test_the_bars_of_others_stay_as_they_are_when_a_run_is_over():
    output = io.StringIO()
    drawn_over = {"force_terminal": True, "force_interactive": True}
    console = Console(file=output, width=200, _environ={"TERM": "xterm"}, **drawn_over)
    with StudyDisplay(console, TWO_LEFT, 2) as display:
        for job in TWO_LEFT:
            display.show(job, progress(1))
        while "run 3 of 3" not in output.getvalue():
            time.sleep(0.05)
        display.over(TWO_LEFT[0])
    assert "bold]" not in output.getvalue()


def test_a_study_of_which_all_is_finished_shows_nothing():
    assert shown([]) == ""
