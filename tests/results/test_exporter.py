"""What a scrape of a running run finds: the numbers of its record, and no others."""

import json
import socket
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from fakes import failure, rounds_of, run_in_process, tiny
from flwr.app import Message
from prometheus_client.parser import text_string_to_metric_families

from fcl_flower.core.errors import ConfigError
from fcl_flower.federation import messages
from fcl_flower.runtime.processes import free_port

CAUSES = {"failed", "refused", "late", "state-lost", "unreachable"}
FORGED = 'no"} 1\nfcl_rounds_total 99\nfcl_left_out_total{cause="mine'


def scrape(port):
    """Return the value of each sample by name and label value."""
    address = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(address, timeout=10) as reply:
        text = reply.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def expected(folder, causes, *, rounds, clients):
    """Return what a scrape has to find, by the lines of rounds.jsonl so far."""
    text = (folder / "rounds.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    found = {
        ("fcl_rounds_planned",): rounds,
        ("fcl_rounds_total",): len(rows),
        ("fcl_round_seconds_count",): len(rows),
        ("fcl_round_seconds_sum",): sum(row["seconds"] for row in rows),
        ("fcl_clients_connected",): clients,
        ("fcl_bytes_total", "up"): sum(sum(row["bytes_up"].values()) for row in rows),
        ("fcl_bytes_total", "down"): sum(
            sum(row["bytes_down"].values()) for row in rows
        ),
    }
    return found | {
        ("fcl_left_out_total", cause): causes.get(cause, 0) for cause in CAUSES
    }


def is_training(message):
    return message.metadata.message_type == "train"


def useless(message):
    base = {"base": {"not ours": np.zeros(3, np.float32)}}
    return Message(messages.MessageEncoder().payload(base), reply_to=message)


def refused_port(port):
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        scrape(port)
    return True


def test_each_scrape_of_a_run_has_the_numbers_of_its_record(tmp_path):
    port, seen = free_port(), []

    def tamper(client, message, reply):
        if client == 0 and is_training(message):
            now = expected(tmp_path, {}, rounds=4, clients=2)
            seen.append((scrape(port), now))
        return reply

    threads = threading.active_count()
    config = tiny(tmp_path, strategy="fedavg", rounds=2, metrics_port=port)
    run_in_process(config, tamper=tamper)

    assert [now["fcl_rounds_total",] for _, now in seen] == [0, 1, 2, 3]
    for found, now in seen:
        assert found == pytest.approx(now)
    assert refused_port(port)
    assert threading.active_count() == threads


def test_reasons_are_counted_by_class_and_a_client_names_none(tmp_path):
    port, seen = free_port(), []
    replies = {
        1: lambda message: failure(message, FORGED),
        2: useless,
        3: lambda message: None,
        4: lambda message: Message(messages.state_lost(1), reply_to=message),
    }

    def tamper(client, message, reply):
        if client == 0 and is_training(message):
            seen.append(scrape(port))
        if client in replies and is_training(message):
            return replies[client](message)
        return reply

    config = tiny(
        tmp_path,
        **{"strategy": "fedavg", "clients": 6, "tasks": 1, "rounds": 3},
        **{"timeout": 0.5, "evaluate_every": 3, "metrics_port": port},
    )
    run_in_process(
        config,
        tamper=tamper,
        deaf=lambda client, message: client == 5 and is_training(message),
    )

    assert [row["failed"] for row in rounds_of(tmp_path)] == [[1, 2, 3, 4, 5]] * 3
    for rounds, found in enumerate(seen):
        counted = {
            key[1]: value for key, value in found.items() if "left_out" in key[0]
        }
        assert counted == dict.fromkeys(CAUSES, rounds)
        assert found.keys() == seen[0].keys()


def test_an_asynchronous_run_is_counted_in_updates(tmp_path):
    port, seen = free_port(), []

    def tamper(client, message, reply):
        if is_training(message):
            seen.append(scrape(port))
        return reply

    config = tiny(tmp_path, strategy="fedavg", asynchronous=True, metrics_port=port)
    run_in_process(config, tamper=tamper)

    assert {found["fcl_rounds_planned",] for found in seen} == {4}
    assert max(found["fcl_rounds_total",] for found in seen) >= 2


def test_a_resumed_run_counts_the_rounds_before_it(tmp_path):
    port, seen = free_port(), []

    def end(client, message, reply):
        if messages.decode_request(message.content).stage.round == 2:
            raise KeyboardInterrupt
        return reply

    def look(client, message, reply):
        seen.append(scrape(port)["fcl_rounds_total",])
        return reply

    config = tiny(tmp_path, strategy="fedavg", metrics_port=port)
    with pytest.raises(KeyboardInterrupt):
        run_in_process(
            config, tamper=lambda c, m, r: end(c, m, r) if is_training(m) else r
        )
    assert refused_port(port)
    run_in_process(
        config.replace(resume=True),
        tamper=lambda c, m, r: look(c, m, r) if is_training(m) else r,
    )

    assert set(seen) == {1}


def test_a_port_that_is_taken_is_refused_before_anything_is_written(tmp_path):
    run_in_process(tiny(tmp_path, strategy="fedavg"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = tiny(tmp_path, strategy="fedavg", metrics_port=port)
        with pytest.raises(ConfigError) as refused:
            run_in_process(config)

    assert str(refused.value) == (
        f"run.metrics_port: got {port}, expected a free port of 127.0.0.1 "
        "(Address already in use)"
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_nobody_else_reaches_it(tmp_path):
    port, listening = free_port(), []

    def tamper(client, message, reply):
        with socket.socket() as other:  # Linux: all of 127.0.0.0/8 is this machine
            listening.append(other.connect_ex(("127.0.0.2", port)) == 0)
        return reply

    run_in_process(tiny(tmp_path, strategy="fedavg", metrics_port=port), tamper=tamper)

    assert listening
    assert not any(listening)


def test_without_its_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    message = r"^run.metrics_port: got no package prometheus_client.*\[deploy\]'$"
    with pytest.raises(ConfigError, match=message):
        run_in_process(tiny(tmp_path, strategy="fedavg", metrics_port=1))
