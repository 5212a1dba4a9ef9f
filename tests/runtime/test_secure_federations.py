"""Secure aggregation in Flower's simulation, and between processes of this machine."""

import contextlib
import io

import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from local_federation import LocalFederation

from fcl_flower.api import simulate

SETTINGS = {
    **{"strategy": "fedavg", "clients": 3, "tasks": 1, "seed": 7},
    "secure_aggregation": True,
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Return the folder of the same run in one process."""
    folder = tmp_path_factory.mktemp("usual")
    run_in_process(tiny(folder, **SETTINGS))
    return folder


@pytest.mark.ray
def test_flowers_simulation_gives_the_numbers_of_one_process(usual, tmp_path):
    with contextlib.redirect_stdout(io.StringIO()):
        simulate(tiny("", **SETTINGS), backend="flower", output=tmp_path / "run")

    assert summary_of(tmp_path / "run") == summary_of(usual)
    assert rounds_of(tmp_path / "run") == rounds_of(usual)


@pytest.mark.deploy
def test_a_real_federation_gives_the_numbers_of_one_process(usual, tmp_path):
    federation = LocalFederation(tmp_path)
    try:
        federation.server(certs="")
        for client in range(3):
            federation.client(client, certs="")
        for client in range(3):
            federation.until(f"client-{client}", "SuperNode ID")
        federation.run(
            *("--strategy", "fedavg", "--clients", 3, "--tasks", 1, "--rounds", 1),
            *("--classes-per-task", 2, "--seed", 7, "--output", "results"),
            *("--set", "federation.secure_aggregation=true"),
            certs="",
        )
        federation.finish("run")
    finally:
        federation.end()

    found, expected = summary_of(tmp_path / "results"), summary_of(usual)
    for name in ("client_accuracy", "average_accuracy", "bytes_up", "bytes_by_kind"):
        assert found[name] == expected[name]
    # No key of the masks was ever written down.
    for client in range(3):
        for file in (tmp_path / f"state-{client}").rglob("*"):
            assert not file.is_file() or b"PRIVATE KEY" not in file.read_bytes()
