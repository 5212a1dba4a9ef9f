"""Whole runs with clients as the privacy unit: what travels, what is reported."""

import contextlib
from functools import partial

import numpy as np
import pytest
from fakes import failure, run_in_process, summary_of, tiny
from text_sets import write_topics

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, WireError
from fcl_flower.privacy.accounting import client_release, gaussian_epsilon
from fcl_flower.privacy.ledger import FILE
from fcl_flower.results.report.run_page import write_report
from fcl_flower.rounds import messages
from fcl_flower.rounds.server import Server
from fcl_flower.setup.build import validate
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation import in_process

Z, CLIP = 2.0, 0.1
PRIVATE = {"unit": "client", "noise_multiplier": Z, "clip": CLIP}
LAYER = "body.fc1.weight"


def private(folder, strategy="fedavg", **changes):
    small = {"max_train_per_class": 20, "max_test_per_class": 5}
    given = {**PRIVATE, **small, **changes}
    if given["unit"] == "none":
        given = {key: given[key] for key in given if key not in ("clip", "delta")}
    return tiny(folder, strategy=strategy, **given)


@pytest.fixture
def real(monkeypatch):
    """Take clients of this process for real ones; return how the server does."""
    monkeypatch.setattr(in_process, "simulated", contextlib.nullcontext)
    return {"delay": lambda client: 0}


def updates_of(config, **behaviour):
    """Return client, question and reply of each update of a run."""
    found = []

    def keep(client, request, reply):
        if request.kind == "train":
            found.append((client, request, reply))
        return reply

    run_in_process(config, tamper=keep, **behaviour)
    return found


def fails(client, request, reply):
    """Let client 2 answer no question about training."""
    if client == 2 and request.kind == "train":
        return failure(request, "out of memory")
    return reply


def epsilon(rounds, answered=1):
    return gaussian_epsilon(rounds * client_release(Z, answered), 1e-5)


# ---- what travels


@pytest.mark.run
@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "ewc", "fedweit"])
def test_an_update_is_what_was_received_and_noise_of_its_own(tmp_path, strategy):
    config = private(tmp_path, strategy, rounds=2, clip=1e-6, noise_multiplier=1e5)
    noises = []
    for _, asked, reply in updates_of(config):
        received = messages.decode_payload(asked.content)
        record = reply.content.scalars[messages.METRICS]
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
            if name == LAYER:
                assert noise.std() == pytest.approx(0.1, rel=0.1)
                noises.append(noise.flatten())
    alike = np.corrcoef(noises) - np.eye(len(noises))
    assert np.abs(alike).max() < 0.2  # of each client and round


@pytest.mark.run
def test_a_simulation_repeats_its_noise(tmp_path):
    first, again = (noisy(tmp_path / name) for name in "ab")

    np.testing.assert_array_equal(first, again)
    assert summary_of(tmp_path / "a")["privacy"]["simulated_noise"]


@pytest.mark.run
def test_a_federation_does_not_repeat_its_noise(tmp_path, real):
    first, again = (noisy(tmp_path / name, **real) for name in "ab")

    assert not np.array_equal(first, again)
    assert not summary_of(tmp_path / "a")["privacy"]["simulated_noise"]


def noisy(folder, **behaviour):
    """Return what the updates of a run are for a layer, noise and all."""
    replies = updates_of(private(folder, tasks=1), **behaviour)
    return [messages.decode_payload(r.content)["base"][LAYER] for *_, r in replies]


# ---- what is reported


@pytest.mark.run
def test_without_a_privacy_unit_nothing_is_written_of_it(tmp_path):
    run_in_process(private(tmp_path, unit="none", noise_multiplier=0.0))
    assert "privacy" not in summary_of(tmp_path)
    assert not (tmp_path / FILE).exists()


@pytest.mark.run
def test_summary_and_report_say_what_was_spent(tmp_path):
    run_in_process(private(tmp_path, clients=3, rounds=2, epsilon=1000.0))

    found = summary_of(tmp_path)["privacy"]

    assert found["epsilon_server"] == pytest.approx(epsilon(4))
    assert found["epsilon_clients"] == pytest.approx(epsilon(4, answered=2))
    assert found["epsilon"] == found["epsilon_server"]
    assert found["by_client"] == pytest.approx(dict.fromkeys("012", epsilon(4)))
    assert (found["delta"], found["budget"], found["unit"]) == (1e-5, 1000, "client")
    page = (tmp_path / "report.html").read_text()
    assert "no ε covers the exact scores" in page
    assert f"ε = {epsilon(4):.3g}" in page
    assert "at δ = 1e-05, of a budget of 1000; hides all data of a client" in page


@pytest.mark.run
def test_a_client_pays_for_the_rounds_that_it_is_asked_in(tmp_path):
    given = {"clients": 4, "rounds": 3, "client_fraction": 0.5, "seed": 2}
    asked = [str(client) for client, *_ in updates_of(private(tmp_path, **given))]
    found = summary_of(tmp_path)["privacy"]
    assert found["by_client"] == pytest.approx(
        {c: epsilon(asked.count(c)) for c in set(asked)}
    )
    most = max(found["by_client"].values())
    assert most > min(found["by_client"].values())
    assert found["epsilon_server"] == most
    assert found["epsilon_clients"] == most  # of two one knows its own


@pytest.mark.run
@pytest.mark.parametrize(("rule", "noises"), [("mean", 2), ("median", 1)])
def test_what_may_be_one_clients_update_has_no_other_noise(tmp_path, rule, noises):
    run_in_process(private(tmp_path, clients=3, aggregation=rule))
    found = summary_of(tmp_path)["privacy"]
    assert found["epsilon_clients"] == pytest.approx(epsilon(2, answered=noises))


@pytest.mark.run
def test_scores_are_not_asked_for_where_they_shall_not_be(tmp_path):
    transport = run_in_process(private(tmp_path, "fedweit", scores=False))
    found = summary_of(tmp_path)
    assert found["average_accuracy"] is None
    assert not found["privacy"]["scores"]
    for _, request in transport.asked:
        if request.kind == "train":
            assert not messages.decode_request(request.content).evaluate
        assert request.kind != "evaluate"
    write_report(tmp_path)


# ---- the budget


@pytest.mark.run
def test_a_run_stops_before_it_exceeds_its_budget(tmp_path):
    config = private(tmp_path, rounds=2, epsilon=epsilon(3) + 1e-6)
    stages = [
        messages.decode_request(asked.content).stage
        for _, asked, _ in updates_of(config)
    ]
    found = summary_of(tmp_path)
    assert {stage.round for stage in stages} == {1, 2, 3}
    assert found["privacy"]["epsilon"] == pytest.approx(epsilon(3))
    assert found["privacy"]["stopped"].startswith("stopped before round 4, after which")
    assert "stopped before round 4" in (tmp_path / "report.html").read_text()


@pytest.mark.run
def test_what_too_few_have_sent_is_not_aggregated(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(Server, "aggregate", lambda *given: made.append(given))
    limit = epsilon(1, answered=2) + 1e-6
    config = private(tmp_path, clients=3, epsilon=limit, observer="clients")
    run_in_process(config, tamper=fails)
    assert not made
    found = summary_of(tmp_path)["privacy"]
    assert (found["epsilon"], found["epsilon_clients"]) == (0, 0)
    assert found["by_client"] == {}
    assert found["stopped"].startswith("stopped before round 1")


# ---- resuming


class KilledError(BaseException):
    pass


def interrupted(config, after, **behaviour):
    """Run until some number of updates were made, then kill the server."""
    left = [after]

    def die(client, request, reply):
        if request.kind == "train":
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
        return reply

    with pytest.raises(KilledError):
        run_in_process(config, tamper=die, **behaviour)


@pytest.mark.run
def test_a_resumed_simulation_ends_with_the_same_numbers(tmp_path):
    whole = partial(private, strategy="fedweit", rounds=2)
    run_in_process(whole(tmp_path / "whole"))
    halves = partial(whole, tmp_path / "halves", client_state=str(tmp_path))
    interrupted(halves(), after=5)

    run_in_process(halves(resume=True))

    assert summary_of(tmp_path / "halves") == summary_of(tmp_path / "whole")
    assert summary_of(tmp_path / "whole")["privacy"]["epsilon"] > 0


@pytest.mark.run
def test_a_federation_pays_for_what_was_asked_before_it_was_killed(tmp_path, real):
    config = partial(private, tmp_path, rounds=2, client_state=str(tmp_path / "c"))
    # In round 3, both clients having been asked.
    interrupted(config(), after=5, **real)

    run_in_process(config(resume=True), **real)

    found = summary_of(tmp_path)["privacy"]
    assert found["epsilon_server"] == pytest.approx(epsilon(5))
    assert found["epsilon_clients"] == pytest.approx(epsilon(4))


@pytest.mark.run
def test_a_run_without_its_ledger_is_not_resumed(tmp_path):
    config = partial(private, tmp_path, rounds=2, client_state=str(tmp_path / "c"))
    interrupted(config(), after=5)
    (tmp_path / FILE).unlink()
    with pytest.raises(WireError, match=f"{FILE}: expected the costs of each"):
        run_in_process(config(resume=True))


# ---- what is refused


@pytest.mark.parametrize(
    "strategy",
    [
        "concept-matching",
        "dolfin",
        "analytic",
        "lorm",
        "coda-prompt",
        "fedet",
        "local",
        "stl",
        "apd",
    ],
)
def test_a_strategy_that_sends_more_than_differences_is_refused(strategy):
    given = {"scenario": "concepts"} if strategy == "concept-matching" else {}
    config = RunConfig.from_settings(strategy=strategy, **PRIVATE, **given)
    message = f"privacy.unit: got 'client', expected 'none' for {strategy}"
    with pytest.raises(ConfigError, match=message):
        validate(resolve(config))


def test_a_run_without_communication_is_refused_and_made_without_noise(tmp_path):
    with pytest.raises(ConfigError, match="whose clients send nothing that they learn"):
        validate(resolve(private(tmp_path, local_only=True)))


def test_questions_about_the_data_are_refused(tmp_path):
    given = write_topics(tmp_path) | {"model": "kim-cnn"}
    knowledge = {"name": "fedweit", "knowledge": "sit:2"}
    with pytest.raises(ConfigError, match="whose server asks clients about their data"):
        validate(resolve(private(tmp_path / "run", knowledge, **given)))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"unit": "client"}, "noise_multiplier: got 0.0, expected a number above 0"),
        ({"noise_multiplier": 1.0}, "noise_multiplier: got 1.0, expected 0, as"),
        ({**PRIVATE, "asynchronous": True}, "asynchronous.enabled: got true, expected"),
        ({"scores": False, "asynchronous": True}, "asynchronous.enabled: got true"),
    ],
)
def test_settings_that_promise_nothing_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig.from_settings(**given)
