"""What is shown of one run, of several, and how long these take, by our own clock."""

import io
from pathlib import Path

import pytest
from fakes import tiny
from rich.console import Console
from rich.text import Text

from fcl_flower.core.errors import RoundError
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.local_runs import Job
from fcl_flower.simulation.progress import Display, Estimate, describe, time_done


def progress(**values):
    return {
        **{"state": "training", "round": 3, "rounds": 10, "task": 0, "tasks": 2},
        **{"clients_done": 4, "clients": 4, "working": []},
        **{"accuracy": None, "bytes_up": 1_234_567, "bytes_down": 999},
        **{"seconds": 60.0, "left": 240.0, **values},
    }


def jobs_of(*runs, of=1):
    return [
        Job(resolve(tiny("", strategy=name, seed=seed)), Path(f"{number}"), number, of)
        for number, name, seed in runs
    ]


ALONE = jobs_of((1, "fedavg", 0))
TWO_LEFT = jobs_of((2, "fedavg", 2), (3, "fedweit", 2), of=3)


@pytest.mark.parametrize(
    ("values", "since", "end"),
    [
        ({"accuracy": 0.8125}, 0, "accuracy so far 0.812  up 1.23 MB  down 999 B  4 m"),
        ({}, 0, "  4 min 00 s left"),
        ({}, 30, "  3 min 30 s left"),
        ({}, 300, "  0.0 s left"),
        ({"left": None}, 0, "accuracy so far -  up 1.23 MB  down 999 B"),
        ({"round": 0}, 0, "starting"),
        (
            {"state": "finished", "round": 10, "seconds": 125},
            0,
            "down 999 B  finished in 2 min 05 s",
        ),
    ],
)
def test_a_line_says_where_a_run_stands(values, since, end):
    said = describe(progress(**values), since)

    assert said.endswith(end) or end in said
    if values.get("round") != 0:
        assert said.startswith("task 0 of 0 to 1  round ")
    assert ("clients 4/4" in said) == ("starting" not in said and "state" not in values)


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


class Watched:
    """A display, and what it has printed, as a clock of ours goes on."""

    def __init__(self, jobs, processes=1, **terminal):
        self.now, self.jobs, self.printed = 500.0, jobs, io.StringIO()
        self.console = Console(file=self.printed, width=200, **terminal)
        self.display = Display(self.console, jobs, processes, lambda: self.now)

    def show(self, number=0, after=0.0, **values):
        self.now += after
        self.display.show(self.jobs[number], progress(**values))

    def over(self, number=0, error=None):
        self.display.over(self.jobs[number], error)

    def lines(self):
        return self.printed.getvalue().splitlines()

    def picture(self, seconds=0.0):
        """Return what a terminal shows now."""
        self.now += seconds
        with self.console.capture() as text:
            self.console.print(self.display._screen.get_renderable())
        plain = Text.from_ansi(text.get()).plain
        return [line.rstrip() for line in plain.splitlines() if line.strip()]


def terminal(jobs, processes=1):
    return Watched(jobs, processes, force_terminal=True)


# ---- one run


def test_elsewhere_than_in_a_terminal_there_is_one_line_a_complete_round():
    watched = Watched(ALONE)
    with watched.display:
        watched.show(round=0, clients_done=0, clients=0, state="starting")
        for number, done in [(1, 1), (1, 4), (1, 4), (2, 3), (2, 4)]:
            watched.show(round=number, clients_done=done)
        watched.show(round=2, clients_done=0, clients=0, state="finished")
        watched.over()

    lines = watched.lines()
    assert [line.split("  ")[:2] for line in lines] == [
        ["fedavg seed 0: starting"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 1/10"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 2/10"],
        ["fedavg seed 0: task 0 of 0 to 1", "round 2/10"],
    ]
    assert lines[-1].endswith("finished in 1 min 00 s")
    assert "\x1b" not in watched.printed.getvalue()


def test_a_terminal_has_a_bar_and_a_line_for_each_client_that_works():
    watched = terminal(ALONE)
    assert watched.picture()[0].split()[-1] == "starting"
    watched.show(round=7, working=[3, 5])
    watched.show(after=1.0, round=7, working=[2, 5])
    watched.show(after=2.0, round=7, task=1, clients_done=1, working=[3, 5])

    head, *working = watched.picture(2.0)

    assert head.startswith("fedavg seed 0 ━━━━━━━━━━━━━")
    assert "task 1 of 0 to 1  round 7/10  clients 1/4  accuracy so far -" in head
    assert head.endswith("3 min 58 s left")
    assert working == [
        "  client 3  at work for 2.0 s",
        "  client 5  at work for 5.0 s",
    ]
    (bar,) = watched.display._screen.tasks
    assert (bar.completed, bar.total) == (6, 10)


def test_of_many_that_work_some_have_a_line():
    watched = terminal(ALONE)
    watched.show(working=[*range(100)])
    lines = watched.picture()
    assert sum("  client " in line for line in lines) == 8
    assert lines[-1] == "  and 92 more at work"
    watched.show(working=[*range(8)])
    assert "more" not in watched.picture()[-1]


@pytest.mark.parametrize("where", [{}, {"force_terminal": True}])
def test_the_bar_of_a_run_stays_and_its_name_is_shown_as_it_is(where):
    run = resolve(tiny("", strategy="fedavg").replace(**{"run.title": "ours [red]"}))
    watched = Watched([Job(run, Path("x"))], **where)
    with watched.display:
        watched.show(round=10, state="finished")
        watched.over()
    text = watched.printed.getvalue()
    assert "ours [red]" in Text.from_ansi(text).plain
    assert "finished in 1 min 00 s" in text


# ---- several runs


def of_four(rounds_done, **values):
    """What a run of four rounds says, each of which takes ten seconds."""
    finished = rounds_done == 4
    left = 10.0 * (4 - rounds_done) / rounds_done if rounds_done else None
    return {
        **{"state": "finished" if finished else "training", "rounds": 4},
        **{"round": rounds_done + (not finished), "seconds": 10.0, "left": left},
        **values,
    }


def half_of_two(watched):
    """Finish the first run of two in two minutes, and begin the second."""
    watched.show(0, **of_four(0))
    watched.show(0, 60, **of_four(2))
    watched.show(0, 60, **of_four(4))
    watched.over(0)
    watched.show(1, **of_four(0))


def test_lines_name_the_run_among_all_and_say_what_is_left():
    watched = Watched(TWO_LEFT)
    with watched.display:
        half_of_two(watched)
        watched.show(1, 120, **of_four(4))
        watched.over(1)
    assert [line.split("  ")[0] for line in watched.lines()] == [
        *["run 2 of 3: fedavg seed 2: task 0 of 0 to 1"] * 3,
        # The first of three was finished by an earlier command.
        "2 of 3 runs done, about 2 min 00 s left",
        *["run 3 of 3: fedweit seed 2: task 0 of 0 to 1"] * 2,
        "3 of 3 runs done",
    ]


@pytest.mark.parametrize("where", [{}, {"force_terminal": True}])
def test_a_run_that_fails_says_so_at_once_and_is_not_counted_as_done(where):
    watched = Watched(TWO_LEFT, **where)
    with watched.display:
        watched.show(0, **of_four(0))
        watched.over(0, RoundError("no [bold]replies[/bold]"))
        assert watched.display.below() == "1 of 3 runs done, 1 failed"
        watched.show(1, 60, **of_four(4))
        watched.over(1)
    text = watched.printed.getvalue()
    assert "run 2 of 3: fedavg seed 2 failed: no [bold]replies[/bold]" in text
    assert "2 of 3 runs done, 1 failed" in text


def test_a_terminal_has_a_bar_for_each_run_under_way_and_what_is_left_of_all():
    watched = terminal(TWO_LEFT)
    half_of_two(watched)
    bar, rest = watched.picture()
    assert bar.startswith("run 3 of 3: fedweit seed 2 ━")
    assert rest == "2 of 3 runs done, about 2 min 00 s left"
    # A run that is over keeps a line, above the bars.
    said = "run 2 of 3: fedavg seed 2: task 0 of 0 to 1  round 4/4"
    assert said in watched.printed.getvalue()


def test_a_study_of_which_all_is_finished_shows_nothing():
    watched = Watched([])
    with watched.display:
        pass
    assert watched.printed.getvalue() == ""


# ---- how long several runs take


def begun(run, share, seconds):
    """A run whose share of the rounds is done after some seconds."""
    return [(0, run, 0.0), (seconds, run, share)]


def finished(run, seconds):
    return [*begun(run, 1.0, seconds), (0, run, None)]


@pytest.mark.parametrize(
    ("variants", "processes", "events", "wait", "left"),
    [
        ("aa", 1, [], 0, None),
        ("aa", 1, [(0, 0, 0.0)], 7, None),
        # 40 s a run, of which 10 are over, and then 16.
        ("aaa", 1, begun(0, 0.25, 10), 0, 30 + 40 + 40),
        ("aaa", 1, begun(0, 0.25, 10), 6, 24 + 40 + 40),
        # A finished run of the variant counts before this one's pace.
        ("aba", 1, finished(0, 100) + begun(2, 0.5, 10), 0, 90 + 100),
        ("abaac", 1, finished(0, 100) + finished(2, 200), 0, 150 + 150 + 150),
        (
            "abaac",
            1,
            finished(0, 100) + finished(2, 200) + finished(1, 60),
            *(0, 150 + 120),
        ),
        ("aaaaa", 2, finished(0, 100), 0, 400 / 2),
        # The last one cannot be shared.
        ("aaa", 2, finished(0, 100) + finished(1, 100), 0, 100),
        # Resumed: a tenth takes 10 s, 40 s for this one, 100 s for a whole one.
        ("aa", 1, [(0, 0, 0.5), (10, 0, 0.6)], 0, 40 + 100),
        ("aa", 1, [(0, 0, 0.5), (50, 0, 1.0), (0, 0, None)], 0, 100),
        # Longer than expected.
        ("aa", 1, [*finished(0, 10), (0, 1, 0.0)], 15, 0),
        # A failed run says nothing of the others.
        ("aaa", 1, [(0, 0, 0.0), (0, 0, None)], 0, None),
        ("aaa", 1, [(0, 0, 0.0), (0, 0, None), *finished(1, 10)], 0, 10),
    ],
)
def test_what_is_left_of_several_runs_is_estimated(
    variants, processes, events, wait, left
):
    now = 1000.0
    estimate = Estimate(variants, processes, lambda: now)
    for seconds, run, share in events:
        now += seconds
        if share is None:
            estimate.over(run)
        else:
            estimate.progress(run, share)
    now += wait

    assert estimate.left() == (left if left is None else pytest.approx(left))
