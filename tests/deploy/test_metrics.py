"""What a scrape of a server finds, before, during and after its runs."""

import json
import math
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fakes import run_in_process, tiny
from prometheus_client import CollectorRegistry

from fcl_flower.deploy.certificates import Certificates, make_certificates
from fcl_flower.deploy.metrics import CONNECTED_SECONDS, ServerMetrics
from fcl_flower.results.known_runs import noted

NOW = 1_800_000_000.0


def server(state, certificates=None, seen=None, healthy=lambda: True):
    registry = CollectorRegistry()
    metrics = ServerMetrics(state, certificates, seen, healthy, clock=lambda: NOW)
    registry.register(metrics)
    return registry


def samples(registry):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run_in_process(tiny(folder, strategy="fedavg", rounds=2))
    return folder


@pytest.mark.run
def test_a_server_without_a_run_has_all_metrics_of_one_that_had_one(tmp_path, finished):
    with noted(tmp_path / "runs", "run", finished):
        pass
    with_run, without = samples(server(tmp_path)), samples(server(finished))

    assert with_run.keys() == without.keys()
    assert without["fcl_up",] == 1
    assert without["fcl_runs", "finished"] == without["fcl_rounds_total",] == 0
    for name in ("accuracy", "loss", "certificate_days", "clients_connected"):
        assert math.isnan(without[f"fcl_{name}",])


@pytest.mark.run
def test_the_newest_run_is_told_by_its_own_files(tmp_path, finished):
    with noted(tmp_path / "runs", "run", finished):
        assert samples(server(tmp_path))["fcl_runs_going_on",] == 1
    os.utime(finished / "rounds.jsonl", (1_700_000_000,) * 2)
    found = samples(server(tmp_path))
    rows = [
        json.loads(line)
        for line in (finished / "rounds.jsonl").read_text().splitlines()
    ]
    summary = json.loads((finished / "summary.json").read_text())

    assert found["fcl_runs_going_on",] == found["fcl_run_failed",] == 0
    assert found["fcl_runs", "finished"] == 1
    assert found["fcl_rounds_total",] == len(rows) == found["fcl_rounds_planned",]
    assert found["fcl_loss",] == pytest.approx(rows[-1]["loss"])
    assert found["fcl_accuracy",] == pytest.approx(summary["average_accuracy"])
    assert found["fcl_bytes_total", "up"] == summary["bytes_up"]
    assert found["fcl_bytes_total", "down"] == summary["bytes_down"]
    assert found["fcl_last_round_timestamp_seconds",] == 1_700_000_000


@pytest.mark.run
def test_a_run_is_followed_while_it_goes_on(tmp_path):
    folder, counts = tmp_path / "run", []
    registry = server(tmp_path)

    def look(client, message, reply):
        counts.append(samples(registry)["fcl_rounds_total",])
        return reply

    with noted(tmp_path / "runs", "run", folder):
        run_in_process(tiny(folder, strategy="fedavg", rounds=2), tamper=look)
    assert sorted(set(counts)) == [0, 1, 2, 3]
    assert samples(registry)["fcl_rounds_total",] == 4


@pytest.mark.run
def test_a_new_run_takes_the_place_of_the_one_before(tmp_path, finished):
    with noted(tmp_path / "runs", "run", finished):
        pass
    registry = server(tmp_path)
    assert samples(registry)["fcl_rounds_total",] == 4
    error = pytest.raises(ValueError, match="mine")
    with error, noted(tmp_path / "runs", "next", tmp_path / "nothing"):
        assert samples(registry)["fcl_rounds_total",] == 0
        raise ValueError("mine")
    found = samples(registry)
    assert found["fcl_run_failed",] == found["fcl_runs", "failed"] == 1
    assert found["fcl_run_began_timestamp_seconds",] == pytest.approx(
        time.time(), abs=60
    )


def test_a_damaged_journal_leaves_the_server_its_metrics(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for text in (b"not a line\n", b"\xff\x00\n", b"{}\n[]\n"):
        (folder / "journal.jsonl").write_bytes(text)
        (folder / "rounds.jsonl").touch()
        with noted(tmp_path / "runs", "run", folder):
            found = samples(server(tmp_path))
        assert found["fcl_rounds_total",] == 0
        assert found["fcl_runs_going_on",] == 1


@pytest.mark.parametrize("state", ["waiting", "training", "failed"])
def test_a_service_is_told_by_its_status(tmp_path, state):
    folder = tmp_path / "run"
    folder.mkdir()
    status = {"state": state, "since": NOW - 50, "learned": 3, "sentence": "waits"}
    with noted(tmp_path / "runs", "run", folder):
        before = samples(server(tmp_path))
        (folder / "service.json").write_text(json.dumps(status))
        found = samples(server(tmp_path))
        (folder / "service.json").write_text(json.dumps({**status, "due": NOW + 9}))
        due = samples(server(tmp_path))["fcl_service_due_timestamp_seconds",]

    assert before.keys() == found.keys()
    assert math.isnan(before["fcl_service", state])
    ended = samples(server(tmp_path))["fcl_service", state]
    assert ended == (state == "failed")  # the others were never over, but cut off
    states = {
        n: v for (what, *n), v in found.items() if what == "fcl_service" for n in n
    }
    assert states.pop(state) == 1
    assert [*states.values()] == [0, 0]
    assert found["fcl_service_since_timestamp_seconds",] == NOW - 50
    assert found["fcl_service_tasks",] == 3
    assert math.isnan(found["fcl_service_due_timestamp_seconds",])
    assert due == NOW + 9


def test_clients_are_told_by_number(tmp_path):
    calls = {
        "client-0": NOW - 1,
        "client-1": NOW - CONNECTED_SECONDS,
        "client-10": math.nan,
    }
    found = samples(server(tmp_path, seen=lambda: calls))

    name = "fcl_client_connected"
    connected = {n: v for (what, *n), v in found.items() if what == name for n in n}
    assert connected == {"0": 1, "1": 0, "10": 0}
    assert found["fcl_clients_connected",] == 1
    name = "fcl_client_last_seen_timestamp_seconds"
    assert found[name, "1"] == NOW - CONNECTED_SECONDS
    assert math.isnan(found[name, "10"])


def test_the_machine_is_told(tmp_path):
    make_certificates(tmp_path / "certs", ["localhost"], 0, 12, overwrite=False)
    (tmp_path / "superlink.db").write_bytes(b"0" * 1000)
    (tmp_path / "superlink.db-wal").write_bytes(b"0" * 500)
    files = Certificates(tmp_path / "certs")
    found = samples(server(tmp_path, files, healthy=lambda: False))

    assert found["fcl_up",] == 0
    assert found["fcl_database_bytes",] == 1500
    assert found["fcl_disk_free_bytes",] > 0
    left = (files.ends() - datetime.now(UTC)) / timedelta(days=1)
    assert found["fcl_certificate_days",] == pytest.approx(left, abs=1e-3)
    assert 11.9 < left < 12.1
    Path(files.server).unlink()
    assert math.isnan(samples(server(tmp_path, files))["fcl_certificate_days",])
