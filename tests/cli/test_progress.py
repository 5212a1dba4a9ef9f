import io

from rich.console import Console

from fcl_flower.cli.progress import Display, describe


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
        **values,
    }


def test_a_line_says_where_a_run_stands():
    assert describe(progress(accuracy=0.8125)) == (
        # Two rounds took a minute: 30 s each, and eight are left.
        "task 1/2  round 3/10  clients 4/4  accuracy so far 0.812  "
        "up 1.23 MB  down 999 B  4 min 00 s left"
    )


def test_the_first_round_promises_nothing():
    text = describe(progress(round=1))
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
        ["fedavg seed 0: task 1/2", "round 1/10"],
        ["fedavg seed 0: task 1/2", "round 2/10"],
        ["fedavg seed 0: task 1/2", "round 2/10"],
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


def test_a_name_with_brackets_is_shown_as_it_is():
    for terminal in (True, False):
        text = lines_of(progress(), label="ours [red] [/x]", force_terminal=terminal)
        assert "ours [red] [/x]" in text
