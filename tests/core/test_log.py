"""Where the log of the package goes, and that it is put back."""

import logging

import pytest

from fcl_flower.core.log import LOGGER, log, log_to


@pytest.fixture(autouse=True)
def before():
    """Return how the logger was; see that it is so again."""
    found = list(LOGGER.handlers), LOGGER.level, LOGGER.propagate
    yield found
    assert (list(LOGGER.handlers), LOGGER.level, LOGGER.propagate) == found


def speak():
    log(logging.DEBUG, "not told")
    log(logging.INFO, "round %d of %d", 1, 2)
    log(logging.ERROR, "it broke")


LINES = ["INFO round 1 of 2", "ERROR it broke"]


def test_it_goes_to_a_file_and_nowhere_else(tmp_path, capsys, caplog):
    path = tmp_path / "flower.log"
    with log_to(path):
        speak()
    assert path.read_text().splitlines() == LINES
    assert capsys.readouterr() == ("", "")
    assert caplog.messages == []

    log(logging.ERROR, "after")
    assert path.read_text().splitlines() == LINES
    assert caplog.messages == ["after"]


def test_a_file_is_written_on_or_anew(tmp_path):
    path = tmp_path / "flower.log"
    path.write_text("before\n")
    with log_to(path):
        speak()
    assert path.read_text().splitlines() == ["before", *LINES]
    with log_to(path, mode="w"):
        speak()
    assert path.read_text().splitlines() == LINES


def test_it_goes_to_the_console(capsys):
    with log_to(None):
        speak()
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("", LINES)


def test_one_inside_another_is_for_its_time_alone(tmp_path):
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with log_to(outer):
        log(logging.INFO, "first")
        with log_to(inner):
            log(logging.INFO, "second")
        log(logging.INFO, "third")
    assert outer.read_text().splitlines() == ["INFO first", "INFO third"]
    assert inner.read_text().splitlines() == ["INFO second"]


def test_an_error_gives_the_log_back(tmp_path, before):
    with pytest.raises(KeyError), log_to(tmp_path / "flower.log"):
        raise KeyError
    assert LOGGER.handlers == before[0]


def test_a_traceback_is_told(tmp_path):
    path = tmp_path / "flower.log"
    with log_to(path):
        log(logging.ERROR, "unforeseen", exc_info=ValueError("no gradient"))
    first, *_, last = path.read_text().splitlines()
    assert (first, last) == ("ERROR unforeseen", "ValueError: no gradient")


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path, before):
    with pytest.raises(FileNotFoundError), log_to(tmp_path / "none" / "flower.log"):
        pass
    assert LOGGER.handlers == before[0]
