"""Runs with hostile clients: whom they harm, and who may have them."""

import numpy as np
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny

from fcl_flower.core.errors import ConfigError
from fcl_flower.deploy.submission import write_app
from fcl_flower.results.result import Result
from fcl_flower.rounds import messages
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated

CLIENTS = 4


def hostile(folder, attack, **settings):
    given = {"clients": CLIENTS, "attack": attack, "attackers": 1, "seed": 3}
    given |= {"max_train_per_class": 40, "max_test_per_class": 20}
    return tiny(folder, **{**given, **settings})


@pytest.mark.run
def test_attackers_alone_learn_wrong_labels(tmp_path):
    updates = {}

    def note(who, request, reply):
        if request.kind == "train":
            stage = messages.decode_request(request.content).stage
            update = messages.decode_update(reply.content, stage)
            updates[attack, who] = update.payload["base"]["body.fc1.weight"]
        return reply

    for attack in ("", "label-flip"):
        given = {"attackers": int(attack != ""), "strategy": "fedavg", "tasks": 1}
        run_in_process(hostile(tmp_path / f"a{attack}", attack, **given), tamper=note)

    same = [
        np.array_equal(updates["", client], updates["label-flip", client])
        for client in range(CLIENTS)
    ]
    assert same == [True, True, True, False]


@pytest.mark.run
@pytest.mark.parametrize("attack", ["sign-flip", "noise", "adapters"])
def test_fedweit_goes_on_with_what_attackers_send(tmp_path, attack):
    run_in_process(hostile(tmp_path, attack, strategy="fedweit", tasks=1))
    assert all(not line["reasons"] for line in rounds_of(tmp_path))


@pytest.mark.run
@pytest.mark.parametrize("attack", ["noise", "counts"])
def test_fedets_statistics_and_groups_can_be_used(tmp_path, attack):
    given = {"strategy": "fedet", "dataset": "digits", "model": "small"}
    given |= {"scenario": "class-incremental", "strategy.groups": 1}
    config = hostile(tmp_path, attack, **given)

    run_in_process(config)

    assert all(not line["reasons"] for line in rounds_of(tmp_path))


@pytest.mark.soak
@pytest.mark.run
@pytest.mark.parametrize("attack", ["sign-flip", "noise"])
def test_every_policy_holds_what_the_mean_loses(tmp_path, attack):
    policies = {
        "mean": {},
        "median": {"aggregation": "median"},
        "trimmed": {"aggregation": "trimmed-mean"},
        "geometric": {"aggregation": "geometric-median"},
        "krum": {"aggregation": "krum"},
        "clipped": {"clip_to_median": 1.0, "examples_limit": 1.0},
    }
    given = {"strategy": "fedavg", "tasks": 1, "rounds": 3, "clients": 5, "epochs": 2}
    given |= {"learning_rate": 0.005, "batch_size": 10}
    honest = {}
    for name, policy in policies.items():
        run_in_process(hostile(tmp_path / name, attack, **given, **policy))
        honest[name] = summary_of(tmp_path / name)["honest_accuracy"]

    assert honest.pop("mean") < 0.75
    assert min(honest.values()) > 0.85


# ---- what is reported


@pytest.mark.run
def test_honest_clients_are_reported_apart(tmp_path):
    run_in_process(hostile(tmp_path, "noise", attackers=2))

    result = Result.load(tmp_path)
    expected = result.accuracy[:2, -1].mean()
    assert result.honest_accuracy == pytest.approx(expected)
    assert result.honest_accuracy != pytest.approx(result.average_accuracy, abs=1e-9)


@pytest.mark.run
def test_without_attackers_nothing_is_said_of_honest_clients(tmp_path):
    run_in_process(tiny(tmp_path))

    assert summary_of(tmp_path)["honest_accuracy"] is None
    assert np.isnan(Result.load(tmp_path).honest_accuracy)


# ---- only in a simulation in this process

REFUSAL = (
    "federation.attack: got 'noise', expected none, as only a simulation in one "
    "process has hostile clients"
)


def test_a_client_refuses_a_server_that_asks_for_an_attack(tmp_path):
    config = hostile(tmp_path, "noise", strategy="fedavg", timeout=0.2)

    transport = InProcessTransport(range(100, 100 + CLIENTS), config)
    transport._attack = ""  # nobody in between keeps it from the clients
    with pytest.raises(Exception, match="expected none, as only a simulation"):
        run_simulated(transport, config)


@pytest.mark.run
def test_no_client_is_told_of_an_attack(tmp_path):
    config = hostile(tmp_path, "noise", strategy="fedavg", tasks=1)
    transport = run_in_process(config)

    for place in transport.places.values():
        section = place.spec().config.federation
        assert (section.attack, section.attackers) == ("", 0)


def test_flowers_runtimes_refuse_an_attack(tmp_path):
    with pytest.raises(ConfigError) as problem:
        write_app(tmp_path / "app", hostile(tmp_path, "noise"))

    assert str(problem.value) == REFUSAL
    assert not (tmp_path / "app").exists()
