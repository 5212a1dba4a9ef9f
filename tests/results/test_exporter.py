"""What a scrape of a running run finds: the numbers of its record, and no others."""

import csv
import json
import math
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
from fakes import run_in_process, tiny
from prometheus_client.parser import text_string_to_metric_families
from records import begun, trained

from fcl_flower.core.errors import ConfigError
from fcl_flower.core.processes import free_port
from fcl_flower.results.events import Traffic
from fcl_flower.results.prometheus import Exporter

CAUSES = {"failed", "refused", "late", "state-lost", "unreachable"}
FORGED = 'no"} 1\nfcl_rounds_total 99\nfcl_left_out_total{cause="mine'


def scrape(port):
    """Read the value of each sample by name and label value."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def expected(folder):
    """Work out what a scrape has to find, by the lines of rounds.jsonl so far."""
    text = (folder / "rounds.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    with (folder / "accuracy.csv").open() as file:
        tests = list(csv.DictReader(file))
    last = [t for t in tests if t["round"] == tests[-1]["round"]]
    means = [
        mean([float(t["accuracy"]) for t in last if t["client"] == client])
        for client in ("0", "1")
    ]
    return {
        ("fcl_accuracy",): mean(means),
        ("fcl_loss",): rows[-1]["loss"] if rows else math.nan,
        ("fcl_rounds_planned",): 4,
        ("fcl_rounds_total",): len(rows),
        ("fcl_round_seconds_count",): len(rows),
        ("fcl_round_seconds_sum",): sum(row["seconds"] for row in rows),
        ("fcl_clients_connected",): 2,
        **{
            ("fcl_bytes_total", way): sum(sum(r[f"bytes_{way}"].values()) for r in rows)
            for way in ("up", "down")
        },
        **{("fcl_left_out_total", cause): 0 for cause in CAUSES},
    }


def mean(values):
    return sum(values) / len(values) if values else math.nan


def refused_port(port):
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        scrape(port)
    return True


@pytest.mark.run
def test_each_scrape_of_a_run_has_the_numbers_of_its_record(tmp_path):
    """Also those of before a resumption; and nobody on another machine has them."""
    port, seen, listening, ended = free_port(), [], [], []
    start = time.time()
    threads = threading.active_count()

    def look(client, request, reply):
        if client == 0 and request.kind == "train":
            found = scrape(port)
            ended.append(found.pop(("fcl_last_round_timestamp_seconds",)))
            seen.append((found, expected(tmp_path)))
            with socket.socket() as other:  # Linux: 127.0.0.0/8 is this machine
                listening.append(other.connect_ex(("127.0.0.2", port)) == 0)
            if len(seen) == 3:
                raise KeyboardInterrupt
        return reply

    config = tiny(tmp_path, strategy="fedavg", rounds=2, metrics_port=port)
    with pytest.raises(KeyboardInterrupt):
        run_in_process(config, tamper=look)
    assert refused_port(port)
    run_in_process(config.replace(resume=True), tamper=look)

    counted = [now["fcl_rounds_total",] for _, now in seen]
    assert counted[:4] == [0, 1, 2, 2]
    assert counted[-1] == 3
    for found, now in seen:
        assert found == pytest.approx(now, nan_ok=True)
    assert math.isnan(ended[0])
    times = ended[1:3]
    assert start < times[0] < times[1] < time.time()
    assert not any(listening)
    assert refused_port(port)
    assert threading.active_count() == threads


def test_reasons_are_counted_by_class_and_a_client_names_none():
    exporter = Exporter(lambda: 3)
    value = exporter.registry.get_sample_value

    def counted():
        return {c: value("fcl_left_out_total", {"cause": c}) for c in CAUSES}

    def samples():
        return {
            (sample.name, *sample.labels.values())
            for family in exporter.registry.collect()
            for sample in family.samples
        }

    before = samples()
    exporter.add(begun({"total_rounds": 12}))
    reasons = [f"the client failed: {FORGED}", "base: unknown", "no reply in time"]
    reasons += ["has lost its state and starts anew when asked next"]
    reasons += ["could not be reached"]
    traffic = Traffic(Counter(a=3, b=4), Counter(a=5))
    for number in (1, 2):
        failed = dict(enumerate(reasons))
        exporter.add(trained(number, failed=failed, traffic=traffic, seconds=2.0))
        assert counted() == dict.fromkeys(CAUSES, number)
    assert samples() == before
    assert value("fcl_rounds_planned") == 12
    assert value("fcl_round_seconds_sum") == 4
    assert value("fcl_bytes_total", {"direction": "up"}) == 14
    assert value("fcl_bytes_total", {"direction": "down"}) == 10
    assert value("fcl_clients_connected") == 3


def test_a_port_that_is_taken_is_refused_before_anything_is_written(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = tiny(tmp_path / "run", strategy="fedavg", metrics_port=port)
        with pytest.raises(ConfigError) as refused:
            run_in_process(config)
    assert str(refused.value) == (
        f"run.metrics_port: got {port}, expected a free port of 127.0.0.1 "
        "(Address already in use)"
    )
    assert not (tmp_path / "run").exists()


def test_without_its_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    message = r"^run.metrics_port: got no package prometheus_client.*\[deploy\]'$"
    with pytest.raises(ConfigError, match=message):
        Exporter(lambda: 0)
