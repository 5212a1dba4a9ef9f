"""What every test needs: order and markers, no model hub."""

import os
import pathlib
import re
import signal
import sys
from collections import Counter

import hypothesis
import pytest

# Read once, when Hugging Face's library is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

# What is right does not depend on how busy the machine is.
hypothesis.settings.register_profile("untimed", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("untimed")


# ---- markers

LONG = ("deploy", "ray", "browser", "process")
"""What starts programs, the longest first."""
PROGRAMS = re.compile(
    r"python|flwr|flower|/fcl\b|raylet|gcs_server|chrom", re.IGNORECASE
)
_running: list[pytest.Item] = []


def mark_of(item):
    """Return the first marker of a test that starts programs, or none."""
    return next((name for name in LONG if item.get_closest_marker(name)), None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Begin with tests that start programs: they take longest, and mostly wait."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(mark_of(item), len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _running[:] = [item]


@sys.addaudithook
def unmarked_programs_are_refused(event, arguments):
    """Let no test start a program unless its marker says so."""
    if event == "subprocess.Popen" and _running and not mark_of(_running[0]):
        command = " ".join(map(str, [arguments[0], *arguments[1]]))
        if PROGRAMS.search(command):
            raise RuntimeError(
                f"{_running[0].nodeid} needs the marker process: {command}"
            )


@pytest.fixture(scope="session", autouse=True)
def unmarked_runs_are_refused():
    """Let no test run a federation unless its marker says so."""
    from fcl_flower.rounds.loop import Loop

    run = Loop.run

    def marked(loop):
        item = _running[0]
        if not any(map(item.get_closest_marker, ("run", *LONG))):
            raise RuntimeError(f"{item.nodeid} needs the marker run")
        return run(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "run", marked)
        yield


# ---- durations


def pytest_addoption(parser):
    """Know one more option."""
    parser.addoption(
        "--durations-file", help="write what each test took, longest first"
    )


def pytest_terminal_summary(terminalreporter, config):
    """Write seconds and name of each test that took a tenth of a second."""
    if path := config.getoption("--durations-file"):
        took = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                took[getattr(report, "nodeid", "")] += getattr(report, "duration", 0)
        lines = [f"{s:7.1f} {name}\n" for name, s in took.most_common() if s >= 0.1]
        pathlib.Path(path).write_text("".join(lines))


# ---- fixtures


@pytest.fixture(scope="session", autouse=True)
def interrupts():
    """Let interrupts interrupt: shells make background commands deaf to them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def one_thread():
    """Small batches on many threads spend their time waiting for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def backbone(tmp_path_factory):
    """Return the folder of a tiny encoder by kind, written when first asked for."""
    known = {}

    def of(kind):
        import encoders

        if kind not in known:
            known[kind] = encoders.saved(tmp_path_factory.mktemp(kind), kind)
        return known[kind]

    return of
