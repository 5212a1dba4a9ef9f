"""Who may read what a run keeps."""

import os

import pytest
from fakes import run_in_process, tiny

from fcl_flower.core.files import make_private_folder
from fcl_flower.core.processes import make_folder

PRIVATE = ("checkpoint", "journal.jsonl", "states")


@pytest.fixture
def generous():
    """A user whose files others may read, and write in his group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.run
def test_state_is_its_owners_alone_and_results_are_for_all(tmp_path, generous):
    states = str(tmp_path / "states")
    run_in_process(tiny(tmp_path, strategy="fedavg", tasks=1, client_state=states))
    private = {
        path
        for name in PRIVATE
        for path in [tmp_path / name, *(tmp_path / name).rglob("*")]
    }
    assert len(private) > 7
    for path in sorted(tmp_path.rglob("*")):
        if path == tmp_path / "states" / "client-0":
            assert path.is_dir()
        others = path.stat().st_mode & 0o077
        if path in private and path != tmp_path / "states":
            assert not others, path
        elif path not in private:
            assert others & 0o044 == 0o044, path


def test_a_folder_becomes_private_and_is_made_so(tmp_path, generous):
    old = tmp_path / "old"
    old.mkdir()
    make_private_folder(old)
    make_folder(tmp_path / "above" / "new", "state", private=True)
    make_folder(tmp_path / "open", "output")
    modes = {
        name: (tmp_path / name).stat().st_mode & 0o777
        for name in ("old", "above", "above/new", "open")
    }
    assert modes == {"old": 0o700, "above": 0o775, "above/new": 0o700, "open": 0o775}
