"""The journal of a run: what damage it notices, and who can read it meanwhile."""

import json
import os
from pathlib import Path

import pytest
from records import begun, evaluated, trained

from fcl_flower.core.errors import WireError
from fcl_flower.results.journal import Journal, replay

BEGUN = begun()
EVENTS = [
    evaluated(1, 0, {0: [0.25]}),
    trained(1, replies={1: {"loss": 0.5}}),
    trained(2, timing={"clock": 4.0}, late={0: 7.0}),
]


@pytest.fixture
def path(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.begin(BEGUN)
    for event in EVENTS:
        journal.add(event)
    return tmp_path / "journal.jsonl"


def test_events_come_back_as_they_were(path):
    assert Journal(path).resume(2) == [BEGUN, *EVENTS]
    assert [*replay(path)] == [BEGUN, *EVENTS]
    assert path.stat().st_mode & 0o077 == 0, "others can read it"


def test_each_line_is_json_for_whoever_wants_to_look(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ["begun", "evaluated", "trained", "trained"]
    assert [line["what"] for line in lines] == names
    assert [line["round"] for line in lines] == [0, 1, 1, 2]
    assert lines[1]["told"]["scores"]["0"]["accuracy"] == [0.25]


def test_what_replaces_the_journal_is_on_the_disk_before_it_has_its_name(
    path, monkeypatch
):
    good, forced, replace, fsync = path.read_bytes(), [], Path.replace, os.fsync

    def noted_fsync(handle):
        fsync(handle)
        forced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).read_bytes())

    def noted_replace(self, target):
        assert forced == [good]
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    Journal(path).resume(2)
    assert path.read_bytes() == good
    assert forced


def test_every_single_bit_that_flips_is_noticed(path):
    good = path.read_bytes()
    first = good.index(b"\n") + 1
    for place in range(first * 8, len(good) * 8):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(WireError, match=r"journal\.jsonl"):
            Journal(path).resume(2)
        assert path.read_bytes() == bad, "nothing is mended in silence"


def test_a_line_that_a_process_did_not_finish_is_dropped(path):
    good = path.read_bytes()
    Journal(path).add(trained(3))
    longer = path.read_bytes()
    for cut in range(len(good) + 1, len(longer) - 1):
        path.write_bytes(longer[:cut])
        assert len([*replay(path)]) == 4
        assert len(Journal(path).resume(2)) == 4
        assert path.read_bytes() == good


def test_what_comes_after_the_checkpoint_is_removed(path):
    Journal(path).add(evaluated(3, 0, {}))
    assert len(Journal(path).resume(2)) == 4
    assert len(path.read_text().splitlines()) == 4
    with pytest.raises(WireError, match=r"got 2 rounds, expected 3"):
        Journal(path).resume(3)
