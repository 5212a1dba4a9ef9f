"""The journal of a run: what damage it notices."""

import json
import os
from pathlib import Path

import pytest

from fcl_flower.core.errors import WireError
from fcl_flower.results.event_log import EVALUATION, ROUND, EventLog

EVENTS = [
    (EVALUATION, 1, {"task": 0, "scores": {"0": {"accuracy": [0.25]}}}),
    (ROUND, 1, {"replies": {"1": {"loss": 0.5}}, "seconds": 1.5}),
    (ROUND, 2, {"replies": {}, "timing": {"clock": 4.0}}),
]


@pytest.fixture
def path(tmp_path):
    log = EventLog(tmp_path / "journal.jsonl")
    log.clear()
    for event in EVENTS:
        log.add(*event)
    return tmp_path / "journal.jsonl"


def test_events_come_back_with_clients_as_numbers(path):
    found = EventLog(path).until(2)
    assert [(event.name, event.round) for event in found] == [e[:2] for e in EVENTS]
    assert found[0].content["scores"] == {0: {"accuracy": [0.25]}}
    assert found[1].content["replies"] == {1: {"loss": 0.5}}


def test_each_line_is_json_for_whoever_wants_to_look(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["told"] for line in lines] == [told for _, _, told in EVENTS]


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
    EventLog(path).until(2)
    assert path.read_bytes() == good
    assert forced


def test_every_single_bit_that_flips_is_noticed(path):
    good = path.read_bytes()
    for place in range(len(good) * 8):
        bad = bytearray(good)
        bad[place // 8] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(WireError, match=r"journal\.jsonl"):
            EventLog(path).until(2)
        assert path.read_bytes() == bad, "nothing is mended in silence"


def test_a_line_that_a_process_did_not_finish_is_dropped(path):
    good = path.read_bytes()
    EventLog(path).add(ROUND, 3, {"replies": {}})
    longer = path.read_bytes()
    for cut in range(len(good) + 1, len(longer) - 1):
        path.write_bytes(longer[:cut])
        assert len(EventLog(path).until(2)) == 3
        assert path.read_bytes() == good


def test_what_comes_after_the_checkpoint_is_removed(path):
    EventLog(path).add(EVALUATION, 3, {"scores": {}})
    assert len(EventLog(path).until(2)) == 3
    assert len(path.read_text().splitlines()) == 3


def test_a_journal_of_an_earlier_version_gets_checksums(path):
    good = path.read_bytes()
    plain = (
        json.dumps({"what": w, "round": r, "told": t}) + "\n" for w, r, t in EVENTS
    )
    path.write_text("".join(plain))
    assert len(EventLog(path).until(2)) == 3
    assert path.read_bytes() == good
    path.write_bytes(good[: len(good) // 3])
    with pytest.raises(WireError, match=r"expected 2"):
        EventLog(path).until(2)
