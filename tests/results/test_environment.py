"""What a run's numbers hang on must be recorded as it is."""

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version

import pytest

from fcl_flower.results import environment as recorded
from fcl_flower.results.environment import environment


def git(folder, *arguments):
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "tag", "v1")
    return tmp_path


def test_versions_and_the_time_are_those_of_now():
    found = environment()
    assert found["versions"]["torch"] == version("torch")
    assert found["versions"]["flwr"] == version("flwr")
    age = datetime.now(UTC) - datetime.fromisoformat(found["date"])
    assert 0 <= age.total_seconds() < 60
    assert found["machine"].endswith(" cores")


def test_the_commit_is_that_of_the_clone_and_says_what_differs(clone):
    head = git(clone, "rev-parse", "HEAD").strip()
    assert recorded.commit_of(clone) == head[:12]
    (clone / "file").write_text("b")
    recorded.commit_of.cache_clear()
    assert recorded.commit_of(clone) == f"{head[:12]}-dirty"


def test_a_folder_below_another_repository_has_no_commit(clone):
    (clone / "site-packages").mkdir()
    assert recorded.commit_of(clone / "site-packages") is None


def test_what_is_no_repository_to_git_has_no_commit(tmp_path):
    (tmp_path / ".git").write_text("nonsense")
    assert recorded.commit_of(tmp_path) is None


def test_without_git_there_is_no_commit(clone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert recorded.commit_of(clone) is None


def test_all_that_is_known_is_told_in_one_line():
    line = recorded.told(
        {
            "date": "2026-01-02",
            "versions": {"torch": "2.6", "flwr": None},
            "commit": None,
            "machine": "Linux x86_64,\n2 cores",
        }
    )
    assert line == "2026-01-02, torch 2.6, Linux x86_64, 2 cores"
