"""Runs with hostile clients: what they send, whom they harm, and who may have them."""

import numpy as np
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.federation import messages
from fcl_flower.results.result import Result
from fcl_flower.runtime.in_process import InProcessGrid, run_apps
from fcl_flower.runtime.submission import write_app
from fcl_flower.training.tensors import dense

CLIENTS = 4


def hostile(folder, attack, **settings):
    given = {"clients": CLIENTS, "attack": attack, "attackers": 1, "seed": 3}
    return tiny(folder, **{**given, **settings})


def sent(folder, attack, client=CLIENTS - 1, **settings):
    """Return what one client received and sent in each round of training."""
    found = []

    def note(who, message, reply):
        if who == client and message.metadata.message_type == "train":
            asked = messages.decode_request(message.content).stage
            update = messages.decode_update(reply.content, asked)
            found.append((messages.decode_payload(message.content), update))
        return reply

    config = hostile(folder, attack or "noise", **settings)
    if not attack:
        config = config.replace(attack="", attackers=0)
    run_in_process(config, tamper=note)
    return found


def values(arrays):
    return np.concatenate([dense(t).reshape(-1) for _, t in sorted(arrays.items())])


@pytest.mark.parametrize(
    ("attack", "factor", "examples"),
    [("sign-flip", -1, 2**31), ("scaling", -10, None), ("counts", 1, 2**31)],
)
def test_a_change_and_a_count_are_what_the_attack_makes_of_honest_ones(
    tmp_path, attack, factor, examples
):
    ((start, honest),) = sent(tmp_path / "a", "", strategy="fedavg", tasks=1)
    ((_, found),) = sent(tmp_path / "b", attack, strategy="fedavg", tasks=1)

    change = values(honest.payload["base"]) - values(start["base"])
    expected = values(start["base"]) + factor * change
    np.testing.assert_allclose(values(found.payload["base"]), expected, atol=1e-5)
    assert found.num_examples == (examples or honest.num_examples)


def test_noise_is_drawn_anew_in_each_round_and_the_same_in_each_run(tmp_path):
    runs = [
        sent(tmp_path / n, "noise", strategy="fedavg", tasks=1, rounds=2) for n in "ab"
    ]
    plain = sent(tmp_path / "c", "", strategy="fedavg", tasks=1, rounds=2)

    one, other = ([values(u.payload["base"]) for _, u in run] for run in runs)
    np.testing.assert_array_equal(one, other)
    noise = one[0] - values(plain[0][1].payload["base"])
    assert 0.9 < noise.std() < 1.1
    later = one[1] - values(runs[0][1][0]["base"])
    assert abs(np.corrcoef(noise, later)[0, 1]) < 0.1


def test_wrong_labels_are_learned_by_the_attackers_alone(tmp_path):
    honest = sent(tmp_path / "a", "", strategy="fedavg", tasks=1)
    last = sent(tmp_path / "b", "label-flip", strategy="fedavg", tasks=1)
    first = sent(tmp_path / "c", "label-flip", client=0, strategy="fedavg", tasks=1)
    alike = sent(tmp_path / "d", "", client=0, strategy="fedavg", tasks=1)

    def base(run):
        return values(run[0][1].payload["base"])

    assert np.abs(base(last) - base(honest)).max() > 1e-3
    np.testing.assert_array_equal(base(first), base(alike))


@pytest.mark.parametrize("attack", ["sign-flip", "noise", "adapters"])
def test_fedweits_base_and_its_adapters_are_attacked_apart(tmp_path, attack):
    (_, honest), (_, found) = (
        sent(tmp_path / name, kind, strategy="fedweit", tasks=1)[0]
        for name, kind in (("a", ""), ("b", attack))
    )

    changed = {
        group
        for group in ("base", "adapters")
        if any(
            not np.array_equal(dense(tensor), dense(found.payload[group][name]))
            for name, tensor in honest.payload[group].items()
        )
    }
    assert changed == {"adapters" if attack == "adapters" else "base"}


def test_what_fedweit_turns_round_is_the_change_from_what_it_received(tmp_path):
    start = sent(tmp_path / "a", "", strategy="fedweit", tasks=1)[0][0]["base"]
    (_, honest), (_, found) = (
        sent(tmp_path / name, kind, strategy="fedweit", tasks=1)[0]
        for name, kind in (("b", ""), ("c", "sign-flip"))
    )

    for name, tensor in honest.payload["base"].items():
        before = dense(start[name]).reshape(-1)[tensor.indices]
        expected = 2 * before - tensor.values
        np.testing.assert_allclose(
            found.payload["base"][name].values, expected, atol=1e-5
        )


def test_in_concept_matching_the_model_that_was_trained_is_the_start(tmp_path):
    settings = {"strategy": "concept-matching", "rounds": 2, "tasks": 2}
    settings["classes_per_task"] = 0
    _, (received, _) = sent(tmp_path / "a", "", **settings)
    # What was received depends on the round before.
    ((start, honest), _) = sent(tmp_path / "b", "", **settings)
    ((_, found), _) = sent(tmp_path / "c", "sign-flip", **settings)

    assert {"base/0", "base/1"} <= received.keys()
    nearest = min(
        (values(model) for model in start.values()),
        key=lambda model: np.linalg.norm(model - values(honest.payload["base"])),
    )
    np.testing.assert_allclose(
        values(found.payload["base"]),
        2 * nearest - values(honest.payload["base"]),
        atol=1e-5,
    )


@pytest.mark.parametrize("attack", ["sign-flip", "noise", "label-flip", "counts"])
def test_fedets_statistics_and_groups_can_be_used(tmp_path, attack):
    given = {"strategy": "fedet", "dataset": "digits", "model": "small"}
    given |= {"scenario": "class-incremental", "strategy.groups": 1}
    config = hostile(tmp_path, attack, **given)

    run_in_process(config)

    assert all(not line["reasons"] for line in rounds_of(tmp_path))


# ---- policies hold


@pytest.mark.parametrize(
    "policy",
    [
        {"aggregation": "median"},
        {"aggregation": "trimmed-mean"},
        {"aggregation": "geometric-median"},
        {"aggregation": "krum"},
        {"clip_to_median": 1.0, "examples_limit": 1.0},
    ],
    ids=lambda p: "-".join(map(str, p.values())),
)
@pytest.mark.parametrize("attack", ["sign-flip", "noise"])
def test_a_policy_holds_what_the_mean_loses(tmp_path, policy, attack):
    given = {"strategy": "fedavg", "tasks": 1, "rounds": 6, "clients": 5, "epochs": 3}
    folders = {}
    for name, more in (("mean", {}), ("policy", policy)):
        folders[name] = tmp_path / name
        run_in_process(hostile(folders[name], attack, **given, **more))

    honest = {n: summary_of(f)["honest_accuracy"] for n, f in folders.items()}
    assert honest["mean"] < 0.75
    assert honest["policy"] > 0.85


# ---- what is reported


def test_honest_clients_are_reported_apart(tmp_path):
    run_in_process(hostile(tmp_path, "noise", attackers=2))

    result = Result.load(tmp_path)
    expected = result.accuracy[:2, -1].mean()
    assert result.honest_accuracy == pytest.approx(expected)
    assert result.honest_accuracy != pytest.approx(result.average_accuracy, abs=1e-9)


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

    grid = InProcessGrid(range(100, 100 + CLIENTS), config.flat())
    grid._attack = ""  # nobody in between keeps it from the clients
    with pytest.raises(Exception, match="expected none, as only a simulation"):
        run_apps(grid, config)


def test_no_client_is_told_of_an_attack(tmp_path):
    grid = InProcessGrid(range(4), hostile(tmp_path, "noise").flat())

    for context in grid.contexts.values():
        section = RunConfig.of(context.run_config).federation
        assert (section.attack, section.attackers) == ("", 0)


def test_flowers_runtimes_refuse_an_attack(tmp_path):
    with pytest.raises(ConfigError) as problem:
        write_app(tmp_path / "app", hostile(tmp_path, "noise"))

    assert str(problem.value) == REFUSAL
    assert not (tmp_path / "app").exists()
