"""Who may work on a folder, as other processes come, go and are killed."""

import subprocess
import sys

import pytest

from fcl_flower.core import files
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.files import COMMAND_LOCK, lock_folder

HOLDER = """
import sys
from pathlib import Path
from fcl_flower.core.files import lock_folder
with lock_folder(Path(sys.argv[1]), "output"):
    print("mine", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "mine\n"
        refused = r"^run.output: got '.*', expected a folder"
        with (
            pytest.raises(ConfigError, match=refused),
            lock_folder(tmp_path, "run.output"),
        ):
            pytest.fail("two processes in one folder")
        holder.kill()
        holder.wait()
    assert list(tmp_path.iterdir()), "what it was killed over"
    with lock_folder(tmp_path, "output"):
        pass
    assert not list(tmp_path.iterdir())


def test_the_lock_is_given_back_at_the_end_and_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock_folder(tmp_path, "output"):
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def _write_after(folder, happens):
    with lock_folder(folder, "run.output"):
        happens()
        (folder / "summary.json").write_text("")


def test_a_folder_that_was_renamed_meanwhile_is_named(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    sentence = r"^run\.output: got '.*/run', expected a folder that keeps its name"
    with pytest.raises(ConfigError, match=sentence):
        _write_after(folder, lambda: folder.rename(tmp_path / "other"))
    folder.mkdir()
    with pytest.raises(FileNotFoundError), lock_folder(folder, "run.output"):
        (folder / "none" / "summary.json").write_text("")


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path):
    path = tmp_path / "report.html"
    files.replace_file(path, "whole")
    with pytest.raises(TypeError):
        files.replace_file(path, "half", 5)
    assert [place.name for place in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "whole"


def test_a_command_and_its_server_have_a_lock_each(tmp_path):
    with lock_folder(tmp_path, "output", COMMAND_LOCK), lock_folder(tmp_path, "output"):
        for name in (COMMAND_LOCK, ".lock"):
            with pytest.raises(ConfigError), lock_folder(tmp_path, "output", name):
                pytest.fail("two in one folder")


def test_who_is_patient_waits_until_the_lock_is_given_back(tmp_path, monkeypatch):
    first, slept = lock_folder(tmp_path, "output"), []
    first.__enter__()

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            first.__exit__(None, None, None)

    monkeypatch.setattr(files.time, "sleep", sleep)
    with lock_folder(tmp_path, "output", patience=60.0):
        assert len(slept) == 3
        with pytest.raises(ConfigError), lock_folder(tmp_path, "output"):
            pytest.fail("two in one folder")


def test_a_lock_that_was_removed_meanwhile_is_not_taken_for_one(tmp_path, monkeypatch):
    """Whoever had it removes the file after we have opened it, before we lock it."""
    import fcntl

    inner, flock, opened = [], fcntl.flock, []

    def late(file, how):
        opened.append(file)
        if len(opened) == 1:
            (tmp_path / ".lock").unlink()  # the other one has finished
            inner.append(lock_folder(tmp_path, "output"))
            inner[0].__enter__()  # and a third comes
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ConfigError), lock_folder(tmp_path, "output"):
        pytest.fail("two in one folder")
    inner[0].__exit__(None, None, None)
