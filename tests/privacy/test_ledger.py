"""What is written down for each client, who sees what, and when a run has to stop."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.errors import BudgetError, WireError
from fcl_flower.core.types import Update
from fcl_flower.privacy.accounting import gaussian_epsilon
from fcl_flower.privacy.ledger import FILE, Ledger
from fcl_flower.privacy.mechanism import privatize

DELTA = 1e-5


def ledger(folder, plain_mean=True, simulated=False, **changes):
    given = {"unit": "client", "noise_multiplier": 2.0, "delta": DELTA, **changes}
    section = PrivacySection(**given)
    return Ledger(section, folder, plain_mean=plain_mean, simulated=simulated)


def updates(*clients, groups=("base",)):
    payload = {group: {"w": np.zeros(1, np.float32)} for group in groups}
    return {client: Update(payload, 1) for client in clients}


def epsilon(*releases):
    """Return epsilon of releases, each the noise multiplier of unit sensitivity.

    The sensitivity is 2 C, so that the noise of one client, 2 C, is once that.
    """
    return gaussian_epsilon(sum(1 / z**2 for z in releases), DELTA)


# ---- who sees what


def test_the_server_sees_an_update_alone_each_time_that_it_asks(tmp_path):
    book = ledger(tmp_path)
    book.ask(1, [0, 1, 2])
    book.ask(2, [2])
    once = epsilon(1)
    assert book.epsilons("server") == pytest.approx(
        {0: once, 1: once, 2: epsilon(1, 1)}
    )
    assert book.epsilons("clients") == {}


def test_other_clients_see_a_mean_with_the_noise_of_all_but_themselves(tmp_path):
    book = ledger(tmp_path)
    book.aggregate(1, updates(0, 1, 2, 3, 4))
    book.aggregate(2, updates(0, 1))  # whoever answered, not whoever was asked

    found = book.epsilons("clients")

    assert found[3] == pytest.approx(epsilon(2.0))  # sqrt(4) * 1
    assert found[0] == pytest.approx(epsilon(2.0, 1.0))
    book.aggregate(3, updates(0))
    assert book.epsilons("clients")[0] == pytest.approx(epsilon(2.0, 1.0, 1.0))


def test_the_noise_in_a_mean_is_what_the_ledger_says(tmp_path):
    clients, clip, z, size = 5, 0.5, 2.0, 20_000
    received = {"base": {"w": np.zeros(size, np.float32)}}
    sent = [
        privatize(
            Update(received, 9), received, clip, z, np.random.default_rng(client)
        ).payload["base"]["w"]
        for client in range(clients)
    ]
    # An observer among them knows its own noise.
    unknown = (np.sum(sent, 0) - sent[0]) / clients
    largest_change = 2 * clip / clients

    book = ledger(tmp_path)
    book.aggregate(1, updates(*range(clients)))

    multiplier = float(unknown.std()) / largest_change
    assert book.epsilons("clients")[1] == pytest.approx(epsilon(multiplier), rel=0.02)


@pytest.mark.parametrize("group", ["adapters", "dense/2"])
def test_what_is_handed_on_by_itself_has_its_own_noise_alone(tmp_path, group):
    book = ledger(tmp_path)
    alone = updates(1, groups=("base", group))
    book.aggregate(1, {**updates(0, 2, 3, 4), **alone})
    assert book.epsilons("clients")[1] == pytest.approx(epsilon(1.0))
    assert book.epsilons("clients")[2] == pytest.approx(epsilon(2.0))


def test_what_may_be_one_clients_alone_has_its_noise_alone(tmp_path):
    book = ledger(tmp_path, plain_mean=False)
    book.aggregate(1, updates(0, 1, 2, 3, 4))
    assert book.epsilons("clients")[1] == pytest.approx(epsilon(1.0))


# ---- the budget


def test_the_budget_stops_a_round_before_anything_is_asked_for(tmp_path):
    limit = epsilon(1, 1) + 1e-6
    book = ledger(tmp_path, epsilon=limit)
    book.ask(1, [0, 1])
    book.ask(2, [0])
    book.ask(2, [1])
    before = (tmp_path / FILE).read_text()

    with pytest.raises(BudgetError, match="before round 3, after which client 1 would"):
        book.ask(3, [2, 1])

    assert (tmp_path / FILE).read_text() == before
    assert max(book.epsilons("server").values()) <= limit
    assert f"above privacy.epsilon {limit:g}" in book.stopped


def test_a_budget_against_clients_counts_on_all_who_are_asked(tmp_path):
    limit = epsilon(2.0) + 1e-6
    book = ledger(tmp_path, epsilon=limit, observer="clients")
    with pytest.raises(BudgetError, match="stopped before round 1"):
        book.ask(1, [0, 1, 2, 3])
    book = ledger(tmp_path, epsilon=limit, observer="clients")
    book.ask(1, [0, 1, 2, 3, 4])
    with pytest.raises(BudgetError):  # too few answered
        book.aggregate(1, updates(0, 1, 2, 3))
    assert book.epsilons("clients") == {}
    book.aggregate(1, updates(0, 1, 2, 3, 4))
    with pytest.raises(BudgetError, match="round 2"):
        book.ask(2, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_epsilon_and_budget_are_at_the_delta_of_the_run(tmp_path, delta):
    once, twice = (gaussian_epsilon(mu_squared, delta) for mu_squared in (1.0, 2.0))
    book = ledger(tmp_path, delta=delta, epsilon=once)
    book.ask(1, [0])  # to the last
    assert book.epsilons("server") == {0: once}
    with pytest.raises(BudgetError, match=f"an epsilon of {twice:.3g}, above"):
        book.ask(2, [0])


def test_a_round_that_is_asked_again_costs_again_but_in_a_simulation(tmp_path):
    book = ledger(tmp_path, epsilon=epsilon(1, 1) + 1e-6)
    for _ in range(2):
        book.ask(1, [0])
        book.aggregate(1, updates(0))
    for observer in ("server", "clients"):
        assert book.epsilons(observer)[0] == pytest.approx(epsilon(1, 1))
    with pytest.raises(BudgetError):
        book.ask(1, [0])
    book = ledger(tmp_path, simulated=True, epsilon=epsilon(1) + 1e-6)
    for _ in range(3):
        book.ask(1, [0])
    assert book.epsilons("server")[0] == pytest.approx(epsilon(1))


# ---- the file


def test_what_is_spent_is_on_the_disk_before_anybody_is_asked(tmp_path, monkeypatch):
    forced, fsync = [], os.fsync

    def noted(handle):
        fsync(handle)
        text = Path(os.readlink(f"/proc/self/fd/{handle}")).read_text()
        forced.append(json.loads(text))

    monkeypatch.setattr(os, "fsync", noted)
    ledger(tmp_path).ask(2, [3])
    assert forced == [{"server": {"3": {"2": 1.0}}, "clients": {}}]


def test_a_restored_ledger_goes_on_from_there(tmp_path):
    book = ledger(tmp_path)
    book.ask(1, [11, 0])
    book.aggregate(1, updates(0, 11))
    found = ledger(tmp_path)
    found.restore()
    for observer in ("server", "clients"):
        assert found.epsilons(observer) == book.epsilons(observer)
    assert list(found.epsilons("server")) == [0, 11]
    assert not list(tmp_path.glob("*.new"))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "{}",
        '{"server": {"0": 3}}',
        '{"server": {"x": {}}, "clients": {}}',
        '{"server": {"0": {"1": "y"}}, "clients": {}}',
    ],
)
def test_without_it_no_run_goes_on(tmp_path, content):
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(WireError, match=f"{FILE}: expected the costs of each"):
        ledger(tmp_path).restore()
