"""The lines of a server and of a client: their time, their colours, their file."""

import errno
import os
import re
from datetime import datetime

import pytest

from fcl_flower.core import processes
from fcl_flower.core.errors import ConfigError
from fcl_flower.deploy import logs
from fcl_flower.deploy.logs import Log, Tail


@pytest.fixture
def opened(tmp_path):
    """A log with a file, which is closed at the end."""
    log = Log(tmp_path / "fcl.log")
    yield log
    log._file.close()


COLOURED = "\x1b[92mINFO \x1b[0m: a line"


def test_each_line_has_its_time_and_no_colours_outside_of_a_terminal(
    opened, tmp_path, capsys
):
    log = opened
    before = datetime.now().astimezone().replace(microsecond=0)
    log.pass_on(COLOURED)
    log.say("a sentence")

    shown = capsys.readouterr().out
    assert (tmp_path / "fcl.log").read_text() == shown
    first, second = (line.partition(" ") for line in shown.splitlines())
    assert (first[2], second[2]) == ("INFO : a line", "fcl: a sentence")
    for time in (first[0], second[0]):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", time)
        assert before <= datetime.fromisoformat(time) <= datetime.now().astimezone()


def test_a_terminal_has_colours_and_its_file_has_none(
    opened, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logs.sys.stdout, "isatty", lambda: True)
    opened.pass_on(COLOURED)

    assert COLOURED in capsys.readouterr().out
    assert "\x1b" not in (tmp_path / "fcl.log").read_text()


def test_a_log_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    monkeypatch.setattr(logs, "FILES", 2)
    log = Log(tmp_path / "fcl.log")
    for number in range(200):
        log.say(f"line {number}")
    log._file.close()

    files = sorted(tmp_path.iterdir())
    names = ["fcl.log", "fcl.log.1", "fcl.log.2"]
    assert [path.name for path in files] == names
    assert all(path.stat().st_size <= 1000 for path in files)
    assert "line 199\n" in files[0].read_text()


def test_a_log_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"log-file: got .*, expected a file that can"
    ):
        Log(tmp_path / "missing" / "fcl.log")


def test_the_screen_has_all_lines_where_the_disk_is_full(opened, capsys, monkeypatch):
    def full(record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(opened._file, "shouldRollover", full)
    for number in range(3):
        opened.say(f"line {number}")

    shown = capsys.readouterr().out
    assert re.findall("line .", shown) == ["line 0", "line 1", "line 2"]
    assert shown.count("the log file cannot be written: [Errno 28]") == 1


def test_the_last_lines_of_a_program_are_joined():
    tail = Tail(2)
    assert str(tail) == "it has said nothing"
    for line in ("one", "\x1b[91mtwo\x1b[0m ", "", "three"):
        tail.add(line)
    assert str(tail) == "two | three"


def test_a_folder_on_a_full_disk_is_refused_in_one_sentence(tmp_path, monkeypatch):
    class Full:
        def __init__(self, **named):
            self.named = named

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def write(self, content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(processes.tempfile, "TemporaryFile", Full)
    expected = r"^state: got '.*', expected .* written \(No space left on device\)$"
    with pytest.raises(ConfigError, match=expected):
        processes.make_folder(tmp_path / "s", "state", private=True)
