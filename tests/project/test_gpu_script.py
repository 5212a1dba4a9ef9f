"""The script for a card runs to its end without one; its table leaves nothing out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "gpu" / "run.sh"


def run(*arguments):
    env = {**os.environ, "PYTHON": sys.executable}
    command = ["sh", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.process
@pytest.mark.ray
@pytest.mark.skipif("FCL_BENCHMARKS" not in os.environ, reason="set FCL_BENCHMARKS=1")
def test_the_script_runs_on_the_processor(tmp_path):
    data = ["--data-root", os.environ["FCL_DATA"]] * ("FCL_DATA" in os.environ)

    done = run(tmp_path, "--device", "cpu", "--quick", *data)

    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "measurements.jsonl").read_text().splitlines()
    rows = {row["part"]: row for row in map(json.loads, lines)}
    assert len(rows) == 7
    assert all(r["value"] > 0 for r in rows.values() if not r["failed"])
    left_out = {name for name, row in rows.items() if row["failed"]}
    assert left_out <= {"FedWeIT on Overlapped-CIFAR-100"}, "which wants CIFAR-100"
    assert " passed" in (tmp_path / "tests.txt").read_text()
    assert "not run |" not in (tmp_path / "results.md").read_text()


@pytest.mark.process
@pytest.mark.parametrize("wrong", [(), ("out", "--device"), ("out", "--slow")])
def test_what_the_script_does_not_know_it_refuses(wrong, tmp_path):
    done = run(*(str(tmp_path / one) if one == "out" else one for one in wrong))

    assert done.returncode == 2
    assert "run.sh OUTPUT [--device cuda]" in done.stderr
