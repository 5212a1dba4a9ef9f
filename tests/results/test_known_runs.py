"""How a server's runs stand, by what their processes left."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fcl_flower.results.known_runs import Standing, known_runs, noted


def standings(runs):
    return {run.name: run.standing for run in known_runs(runs)}


def test_a_run_goes_on_until_it_ends_and_then_how_is_known(tmp_path):
    start = time.time()
    with noted(tmp_path, "first", Path("a")):
        assert standings(tmp_path) == {"first": Standing.GOES_ON}
        assert standings(tmp_path) == {"first": Standing.GOES_ON}  # looking is harmless
    with pytest.raises(ValueError, match="mine"), noted(tmp_path, "second", Path("b")):
        raise ValueError("mine")
    with pytest.raises(KeyboardInterrupt), noted(tmp_path, "third", Path("c")):
        raise KeyboardInterrupt

    found = known_runs(tmp_path)
    assert [run.name for run in found] == ["first", "second", "third"]
    assert [run.folder for run in found] == [Path("a"), Path("b"), Path("c")]
    assert [run.standing for run in found] == ["finished", "failed", "stopped"]
    assert start <= found[0].began <= found[1].began <= found[2].began <= time.time()


def test_a_run_that_is_resumed_is_the_newest_and_still_one(tmp_path):
    with pytest.raises(ValueError, match="mine"), noted(tmp_path, "first", Path("a")):
        raise ValueError("mine")
    with noted(tmp_path, "second", Path("b")):
        pass
    with noted(tmp_path, "first", Path("a")):
        assert [run.name for run in known_runs(tmp_path)] == ["second", "first"]
    assert standings(tmp_path) == {"second": "finished", "first": "finished"}


def test_a_run_may_have_any_name(tmp_path):
    for name in ("a/b", "../c", "d.e", "f g", "%2F"):
        with noted(tmp_path / "runs", name, Path("a")):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    found = {run.name for run in known_runs(tmp_path / "runs")}
    assert found == {"a/b", "../c", "d.e", "f g", "%2F"}


@pytest.mark.process
def test_a_run_whose_process_was_killed_does_not_go_on(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\n"
        "from fcl_flower.results.known_runs import noted\n"
        f"with noted(Path({str(tmp_path)!r}), 'run', Path('a')):\n"
        "    print('on', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1) as process:
        assert process.stdout.readline() == b"on\n"
        assert standings(tmp_path) == {"run": "goes on"}
        process.kill()
    assert standings(tmp_path) == {"run": "stopped"}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"ended": 3, "folder": 1}'])
def test_a_file_that_is_no_run_counts_as_none(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert known_runs(tmp_path) == []
