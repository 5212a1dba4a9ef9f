"""docs/explain/security.md says what the code does, and names tests that there are."""

import importlib.util
import re
from pathlib import Path

from fcl_flower.deploy.http import Bounds
from fcl_flower.deploy.speedups import streaming

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain/security.md").read_text()
ATTACKS = ROOT / "experiments" / "attacks"


def test_the_bounds_are_those_of_the_reverse_proxy():
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.M))
    quarter = Bounds.guests // Bounds.guests_of_address
    assert quarter == 4
    assert rows["guests, who have not shown a key"].startswith(f"{Bounds.guests}, a q")
    members = f"{Bounds.members}, of one key {Bounds.members_of_key}"
    assert rows["members, who have"] == members
    head = f"{Bounds.head_seconds:.0f} seconds, {Bounds.head_bytes // 2**10} KiB"
    assert rows["without TLS handshake and first header"] == head
    assert rows["idle, or within a body"] == f"{Bounds.idle_seconds:.0f} seconds"
    assert rows["body of a call"] == f"{Bounds.body_bytes // 2**20} MiB"
    most = f"more than {streaming.MOST_TIMES} times what was sent, or than "
    assert f"{most}{streaming.MOST_BYTES // 2**30} GiB, is refused" in " ".join(
        PAGE.split()
    )


def test_each_finding_is_held_by_tests_that_there_are():
    defined = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    section = PAGE.partition("## What was found, and what holds it now")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.M)[2:]
    named = re.findall(r"`(test_\w+)`", section)

    assert len(rows) > 8
    assert all("`" in held for _, held in rows)
    assert set(named) <= defined, sorted(set(named) - defined)


def test_the_table_of_attacks_is_that_of_the_runs_that_were_kept():
    spec = importlib.util.spec_from_file_location("attacks", ATTACKS / "study.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    pages = {
        name: (ATTACKS / f"{name}.md").read_text() for name in ("README", "HISTORY")
    }

    runs = study.read(ATTACKS / "results.jsonl")

    assert set(runs) == set(study.cells())
    table = study.table(ATTACKS / "results.jsonl")
    assert f"<!-- table -->\n{table}\n<!-- /table -->" in pages["HISTORY"]
    percent = re.sub(r"\d\.\d{3}", lambda x: f"{100 * float(x[0]):.1f}", table)
    digest = pages["README"].partition("<!-- digest -->\n")[2].partition("\n<!--")[0]
    assert len(digest.splitlines()) > 15
    assert set(digest.splitlines()) <= set(percent.splitlines())
