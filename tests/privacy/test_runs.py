"""Whole runs with clients as the privacy unit: what travels, what is reported."""

import contextlib
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from fakes import failure, run_in_process, summary_of, tiny

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.federation import messages
from fcl_flower.federation.server import Server
from fcl_flower.privacy.accounting import client_release, gaussian_epsilon
from fcl_flower.privacy.ledger import FILE
from fcl_flower.results.report.run_page import write_report
from fcl_flower.runtime import in_process
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve

Z, CLIP = 2.0, 0.1
PRIVATE = {"unit": "client", "noise_multiplier": Z, "clip": CLIP}


def private(folder, strategy="fedavg", **changes):
    return tiny(folder, strategy=strategy, **{**PRIVATE, **changes})


def updates_of(grid_run):
    """Return client and decoded content of each update of a run."""
    found = []

    def keep(client, message, reply):
        if message.metadata.message_type == "train":
            found.append((client, message, reply))
        return reply

    grid_run(tamper=keep)
    return found


def epsilon(rounds, answered=1):
    return gaussian_epsilon(rounds * client_release(Z, answered), 1e-5)


# ---- what travels


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "ewc", "fedweit"])
def test_an_update_is_what_was_received_and_noise(tmp_path, strategy):
    config = private(tmp_path, strategy, rounds=2, clip=1e-6, noise_multiplier=1e5)
    for _, asked, reply in updates_of(partial(run_in_process, config)):
        received = messages.decode_payload(asked.content)
        record = reply.content.metric_records[messages.METRICS]
        assert dict(record) == {messages.NUM_EXAMPLES: 1}
        sent = messages.decode_payload(reply.content)
        assert sent["base"].keys() == received["base"].keys()
        for name, tensor in sent["base"].items():
            start, end = (
                t.to_dense() if hasattr(t, "to_dense") else t
                for t in (received["base"][name], tensor)
            )
            # The clip leaves nothing of what was learned; 0.1 is the noise's deviation.
            noise = np.float64(end) - start
            assert np.count_nonzero(noise) > 0.99 * noise.size
            assert np.abs(noise).max() < 0.7
            if noise.size > 1000:
                assert noise.std() == pytest.approx(0.1, rel=0.1)


def test_the_servers_model_is_the_plain_mean_of_what_came(tmp_path):
    sent, received = {}, []

    def keep(client, message, reply):
        if message.metadata.message_type == "train":
            stage = messages.decode_request(message.content).stage
            if stage.round == 1:
                sent[client] = messages.decode_payload(reply.content)["base"]
            else:
                received.append(messages.decode_payload(message.content)["base"])
        return reply

    run_in_process(private(tmp_path, clients=3, rounds=2, tasks=1), tamper=keep)

    for name, tensor in received[0].items():
        mean = np.mean([np.float64(sent[client][name]) for client in range(3)], 0)
        np.testing.assert_allclose(tensor, mean, rtol=1e-5, atol=1e-6)


def test_a_simulation_repeats_its_noise_and_a_federation_does_not(
    tmp_path, monkeypatch
):
    def sent(name):
        run = partial(run_in_process, private(tmp_path / name, tasks=1))
        return [
            messages.decode_payload(reply.content)["base"]["body.fc1.weight"]
            for _, _, reply in updates_of(run)
        ]

    first, second = sent("a"), sent("b")
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])
    assert (
        "from the run's seed" in summary_of(tmp_path / "a")["remarks"]["privacy noise"]
    )

    monkeypatch.setattr(in_process, "simulated", contextlib.nullcontext)
    real, again = sent("c"), sent("d")
    assert not np.array_equal(real, again)
    assert "privacy noise" not in summary_of(tmp_path / "c")["remarks"]
    assert not summary_of(tmp_path / "c")["privacy"]["simulated_noise"]


def test_each_round_and_client_of_a_simulation_has_noise_of_its_own(tmp_path):
    noises = []
    config = private(tmp_path, clip=1e-6, noise_multiplier=1e5, rounds=2, tasks=1)
    for _, asked, reply in updates_of(partial(run_in_process, config)):
        pair = (messages.decode_payload(m.content)["base"] for m in (asked, reply))
        start, end = pair
        noises.append(end["body.fc1.weight"] - start["body.fc1.weight"])
    for one, other in combinations(noises, 2):
        assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.2


def test_without_a_privacy_unit_nothing_is_written_of_it(tmp_path):
    run_in_process(tiny(tmp_path, strategy="fedavg"))
    assert "privacy" not in summary_of(tmp_path)
    assert not (tmp_path / FILE).exists()


# ---- what is reported


def test_summary_and_report_say_what_was_spent(tmp_path):
    config = private(tmp_path, clients=3, rounds=2, epsilon=1000.0)
    run_in_process(config)

    found = summary_of(tmp_path)["privacy"]

    assert found["epsilon_server"] == pytest.approx(epsilon(4))
    assert found["epsilon_clients"] == pytest.approx(epsilon(4, answered=2))
    assert found["epsilon"] == found["epsilon_server"]
    assert found["by_client"] == pytest.approx(dict.fromkeys("012", epsilon(4)))
    assert (found["delta"], found["budget"], found["unit"]) == (1e-5, 1000, "client")
    assert "are exact" in summary_of(tmp_path)["remarks"]["privacy of scores"]
    page = (tmp_path / "report.html").read_text()
    assert f"ε = {epsilon(4):.3g}" in page
    assert "at δ = 1e-05, of a budget of 1000; hides all data of a client" in page
    assert "privacy.noise_multiplier" in page


def test_fedweits_adapters_are_seen_alone(tmp_path):
    run_in_process(
        private(tmp_path, "fedweit", clients=3, rounds=2, observer="clients")
    )
    found = summary_of(tmp_path)["privacy"]
    parts = 2 * client_release(Z, 2) + 2 * client_release(Z)
    assert found["epsilon"] == pytest.approx(gaussian_epsilon(parts, 1e-5))
    assert found["epsilon_clients"] == found["epsilon"] < found["epsilon_server"]


def test_a_client_pays_for_the_rounds_that_it_is_asked_in(tmp_path):
    run = partial(
        run_in_process,
        private(tmp_path, clients=4, rounds=3, client_fraction=0.5, seed=2),
    )
    asked = [str(client) for client, _, _ in updates_of(run)]
    found = summary_of(tmp_path)["privacy"]["by_client"]
    assert found == pytest.approx({c: epsilon(asked.count(c)) for c in set(asked)})
    assert len({*found.values()}) > 1
    most = summary_of(tmp_path)["privacy"]
    assert most["epsilon_server"] == max(found.values())
    assert most["epsilon_clients"] == max(found.values())  # of two one knows its own


def test_the_noise_of_a_client_that_fails_is_not_counted_on(tmp_path):
    def fail(client, message, reply):
        if client == 2 and message.metadata.message_type == "train":
            return failure(message, "out of memory")
        return reply

    run_in_process(private(tmp_path, clients=3), tamper=fail)

    found = summary_of(tmp_path)["privacy"]
    assert found["epsilon_clients"] == pytest.approx(epsilon(2, answered=1))
    assert found["by_client"]["2"] == pytest.approx(epsilon(2))  # it may have sent it


@pytest.mark.parametrize(("rule", "noises"), [("mean", 2), ("median", 1)])
def test_what_may_be_one_clients_update_has_no_other_noise(tmp_path, rule, noises):
    run_in_process(private(tmp_path, clients=3, aggregation=rule))
    found = summary_of(tmp_path)["privacy"]
    assert found["epsilon_clients"] == pytest.approx(epsilon(2, answered=noises))


def test_scores_are_not_asked_for_where_they_shall_not_be(tmp_path):
    grid = run_in_process(private(tmp_path, "fedweit", scores=False))
    found = summary_of(tmp_path)
    assert found["average_accuracy"] is None
    assert "privacy of scores" not in found["remarks"]
    for _, message in grid.asked:
        if message.metadata.message_type == "train":
            assert not messages.decode_request(message.content).evaluate
        assert message.metadata.message_type != "evaluate"
    write_report(tmp_path)


# ---- the budget


def test_a_run_stops_before_it_exceeds_its_budget(tmp_path):
    limit = epsilon(3) + 1e-6
    grid = run_in_process(private(tmp_path, rounds=2, epsilon=limit))

    rounds = [
        messages.decode_request(message.content).stage.round
        for _, message in grid.asked
        if message.metadata.message_type == "train"
    ]
    found = summary_of(tmp_path)
    assert sorted({*rounds}) == [1, 2, 3]
    assert found["privacy"]["epsilon"] == pytest.approx(epsilon(3))
    assert found["privacy"]["stopped"].startswith("stopped before round 4, after which")
    assert found["remarks"]["privacy budget"] == found["privacy"]["stopped"]
    assert "stopped before round 4" in (tmp_path / "report.html").read_text()


def test_what_too_few_have_sent_is_not_aggregated(tmp_path, monkeypatch):
    def fail(client, message, reply):
        if client == 2 and message.metadata.message_type == "train":
            return failure(message, "out of memory")
        return reply

    made = []
    monkeypatch.setattr(Server, "aggregate", lambda *given: made.append(given))
    limit = epsilon(1, answered=2) + 1e-6
    config = private(tmp_path, clients=3, epsilon=limit, observer="clients")
    run_in_process(config, tamper=fail)
    assert not made
    found = summary_of(tmp_path)["privacy"]
    assert (found["epsilon"], found["epsilon_clients"]) == (0, 0)
    assert found["stopped"].startswith("stopped before round 1")


def test_a_budget_without_a_round_ends_with_a_report(tmp_path):
    run_in_process(private(tmp_path, epsilon=0.01))
    found = summary_of(tmp_path)
    assert found["privacy"]["epsilon"] == 0
    assert found["privacy"]["stopped"].startswith("stopped before round 1")
    assert (tmp_path / "report.html").exists()


# ---- resuming


class KilledError(BaseException):
    pass


def interrupted(config, after):
    """Run until some number of updates were made, then kill the server."""
    left = [after]

    def die(client, message, reply):
        if message.metadata.message_type == "train":
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
        return reply

    with pytest.raises(KilledError):
        run_in_process(config, tamper=die)


@pytest.mark.parametrize("strategy", ["fedavg", "fedweit"])
def test_a_resumed_simulation_ends_with_the_same_numbers(tmp_path, strategy):
    run_in_process(private(tmp_path / "whole", strategy, rounds=2))
    halves = partial(
        private, tmp_path / "halves", strategy, rounds=2, client_state=str(tmp_path)
    )
    interrupted(halves(), after=5)

    run_in_process(halves(resume=True))

    assert summary_of(tmp_path / "halves") == summary_of(tmp_path / "whole")
    assert summary_of(tmp_path / "whole")["privacy"]["epsilon"] > 0


def test_a_federation_pays_for_what_was_asked_before_it_was_killed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(in_process, "simulated", contextlib.nullcontext)
    config = partial(private, tmp_path, rounds=2, client_state=str(tmp_path / "c"))
    interrupted(config(), after=5)  # in round 3, both clients having been asked

    run_in_process(config(resume=True))

    found = summary_of(tmp_path)["privacy"]
    assert found["epsilon_server"] == pytest.approx(epsilon(5))
    assert found["epsilon_clients"] == pytest.approx(epsilon(4))


def test_a_run_without_its_ledger_is_not_resumed(tmp_path):
    config = partial(private, tmp_path, rounds=2, client_state=str(tmp_path / "c"))
    interrupted(config(), after=5)
    (tmp_path / FILE).unlink()
    with pytest.raises(WireError, match=f"{FILE}: expected what each client's data"):
        run_in_process(config(resume=True))


# ---- what is refused


@pytest.mark.parametrize(
    "strategy",
    ["concept-matching", "analytic", "lorm", "fedet", "local", "stl", "apd"],
)
def test_a_strategy_that_sends_more_than_differences_is_refused(strategy):
    given = {"scenario": "concepts"} if strategy == "concept-matching" else {}
    with pytest.raises(
        ConfigError, match=f"privacy.unit: got 'client', expected 'none' for {strategy}"
    ):
        validate(
            resolve(RunConfig.from_settings(strategy=strategy, **PRIVATE, **given))
        )


def test_a_run_without_communication_is_refused_and_made_without_noise(tmp_path):
    with pytest.raises(ConfigError, match="whose clients send nothing that they learn"):
        validate(resolve(private(tmp_path, local_only=True)))


def test_questions_about_the_data_are_refused():
    config = RunConfig.from_settings(
        strategy={"name": "fedweit", "knowledge": "sit:2"},
        dataset="stdlib-docs",
        **PRIVATE,
    )
    with pytest.raises(ConfigError, match="whose server asks clients about their data"):
        validate(resolve(config))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"unit": "client"}, "noise_multiplier: got 0.0, expected a number above 0"),
        ({"noise_multiplier": 1.0}, "noise_multiplier: got 1.0, expected 0, as"),
        ({**PRIVATE, "asynchronous": True}, "asynchronous.enabled: got True, expected"),
        ({"scores": False, "asynchronous": True}, "asynchronous.enabled: got True"),
        ({**PRIVATE, "delta": 0.0}, "privacy.delta: got 0.0"),
        ({**PRIVATE, "clip": 0.0}, "privacy.clip: got 0.0"),
        ({**PRIVATE, "epsilon": -1.0}, "privacy.epsilon: got -1.0"),
        ({"unit": "person"}, "privacy.unit: got 'person'"),
    ],
)
def test_settings_that_promise_nothing_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.from_settings(**given)
