"""Situations that need a test bed of their own: a client that joins, a slow link."""

import subprocess
from functools import partial

import local_runs
import pytest
import situations
from namespaces import Testbed

from fcl_flower.service.changes import extend

LOCAL = (
    *("--scenario", "local-data", "--strategy", "fedweit", "--rounds", 2),
    *("--model", "mlp", "--set", "model.num_features=3", "--classes-per-task", 2),
)
pytestmark = [pytest.mark.deploy, pytest.mark.soak]


def test_a_client_joins_with_a_third_task_that_comes_late(tmp_path):
    bed_folder = tmp_path / "bed"
    data = [bed_folder / f"data-{client}" for client in range(3)]
    add = partial(local_runs.add_task, classes=("c0", "c1"))

    folder, places = tmp_path / "run", [{"data-path": str(one)} for one in data]

    with Testbed(bed_folder, 3, relayed=False) as bed:
        for client, task in [(0, 1), (0, 2), (1, 1), (1, 2)]:
            add(data[client], task, seed=10 * client + task)
        local_runs.run(local_runs.config(folder, strategy="fedweit"), places)
        bed.certificates(3)
        bed.server()
        for client in (0, 1):
            bed.client(client, "--data", f"data-{client}")
        bed.run(*LOCAL, "--clients", 2, "--tasks", 2, "--output", "run")
        bed.finish("run")
        for client, task in [(0, 3), (1, 3), (2, 1)]:
            add(data[client], task, seed=10 * client + task)
        bed.client(2, "--data", "data-2")
        bed.run("--resume", "run", "--tasks", 3, "--clients", 3)
        bed.finish("run")

        found = situations.accuracies(bed_folder / "run")
    local_runs.run(extend(folder, tasks=3, clients=3), places)
    assert found == situations.accuracies(folder)
    assert [one[2][2] is None for one in found] == [False] * 3
    assert found[2][1] == [None] * 3


def test_a_slow_link_that_loses_changes_no_number(tmp_path):
    with situations.healthy(tmp_path) as bed:
        found = situations.disturbed(bed, "slow", situations.slow)

    assert found.happened == []
    assert found.same


def test_the_same_by_netem_where_the_kernel_has_it(tmp_path):
    with situations.healthy(tmp_path, relayed=False) as bed:
        where = bed.namespace("client-0")
        rule = "dev eth0 root netem delay 100ms loss 2% rate 2mbit"
        command = ["ip", "netns", "exec", where, "tc", "qdisc", "add", *rule.split()]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("this kernel has no netem")
        found = situations.disturbed(bed, "netem", lambda bed: "")

    assert found.same
