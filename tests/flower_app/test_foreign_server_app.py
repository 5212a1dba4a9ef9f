"""A ServerApp that is not ours starts one of our strategies, with all that it says."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import rounds_of, run_in_process, summary_of, tiny
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Strategy
from grids import Grid

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.flower_app.records import content_of
from fcl_flower.flower_app.strategy import flower_strategy
from fcl_flower.rounds import messages
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot

ROOT = Path(__file__).parents[2]


def small(folder, **values):
    return tiny(folder, **{"strategy": "fedavg", "rounds": 0, **values})


def started(config, nodes=(7, 9), tamper=None, initial_arrays=None, **arguments):
    """Start our strategy in a ServerApp made here; return its result and the grid."""
    found = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        config = RunConfig.of(context.run_config)
        strategy = flower_strategy(config.strategy.name, config)
        assert isinstance(strategy, Strategy)
        found.append(strategy.start(grid, initial_arrays, **arguments))

    grid = Grid(nodes, config.flat(), tamper)
    app(grid, Context(1, 0, {}, RecordDict(), config.flat()))
    return found[0], grid


def shared_tensors(config, folder):
    run = resolve(config)
    model = Built(run).model()
    return snapshot(model, model.shared_names())


def record_of(tensors):
    return ArrayRecord({name: Array(tensor) for name, tensor in tensors.items()})


def is_kind(message, kind):
    return message.metadata.message_type == kind


def base_of(message):
    return messages.decode_payload(content_of(message.content))["base"]


def first_base(grid):
    """Return what the first client is sent to train in round 1."""
    return base_of(next(m for _, m in grid.asked if is_kind(m, "train")))


@pytest.mark.run
@pytest.mark.parametrize(
    ("strategy", "asynchronous"), [("fedavg", False), ("fedweit", True)]
)
def test_a_foreign_server_app_gets_the_numbers_of_ours(
    tmp_path, strategy, asynchronous
):
    more = {"strategy": strategy, "asynchronous.enabled": asynchronous}
    if asynchronous:
        more["simulated_durations"] = "1,3"
    run_in_process(tiny(tmp_path / "ours", rounds=2, **more), nodes=[7, 9])
    result, _ = started(small(tmp_path / "theirs", **more), num_rounds=4)

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert summary_of(theirs) == summary_of(ours)
    assert rounds_of(theirs) == rounds_of(ours)
    rows = rounds_of(theirs)
    losses = {row["round"]: row["loss"] for row in rows}
    found = {r: m["loss"] for r, m in result.train_metrics_clientapp.items()}
    assert found == pytest.approx(losses)
    assert (theirs / "report.html").exists()


@pytest.mark.run
def test_the_result_holds_the_accuracies_and_the_final_model(tmp_path):
    result, grid = started(small(tmp_path), num_rounds=4)

    accuracy = np.array(summary_of(tmp_path)["client_accuracy"], dtype=float)
    found = result.evaluate_metrics_clientapp
    assert list(found) == [2, 4]
    assert found[2]["task-0"] == pytest.approx(accuracy[:, 0, 0].mean())
    assert found[2].keys() == {"accuracy", "task-0"}
    for task in (0, 1):
        assert found[4][f"task-{task}"] == pytest.approx(accuracy[:, 1, task].mean())
    assert found[4]["accuracy"] == pytest.approx(accuracy[:, 1].mean())
    sent = base_of([m for _, m in grid.asked if is_kind(m, "evaluate")][-1])
    assert result.arrays.keys() == sent.keys()
    for name, tensor in sent.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), tensor)


@pytest.mark.run
def test_a_strategy_without_a_global_model_returns_no_arrays(tmp_path):
    result, _ = started(small(tmp_path, strategy="fedweit"), num_rounds=2)
    assert not result.arrays
    assert list(result.evaluate_metrics_clientapp) == [1, 2]


@pytest.mark.run
def test_a_run_begins_with_the_initial_arrays(tmp_path):
    config = small(tmp_path)
    tensors = {n: t + 1 for n, t in shared_tensors(config, tmp_path).items()}
    # In another order: names decide.
    given = record_of(dict(reversed(tensors.items())))
    _, grid = started(config, initial_arrays=given, num_rounds=2)
    sent = first_base(grid)
    assert list(sent) == list(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(sent[name], tensor)


@pytest.mark.run
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_global_model_is_evaluated_before_the_first_round_and_after_each(
    tmp_path, asynchronous
):
    seen = {}

    def evaluate(server_round, arrays):
        seen[server_round] = {name: a.numpy() for name, a in arrays.items()}
        return None if server_round == 1 else MetricRecord({"round": server_round})

    config = small(tmp_path, **{"asynchronous.enabled": asynchronous})
    result, _ = started(config, num_rounds=2, evaluate_fn=evaluate)

    last = 4 if asynchronous else 2  # an update counts as a round
    assert list(seen) == list(range(last + 1))
    expected = {r: {"round": r} for r in seen if r != 1}
    found = result.evaluate_metrics_serverapp
    assert {r: dict(metrics) for r, metrics in found.items()} == expected
    initial = shared_tensors(config, tmp_path)
    assert all(np.array_equal(seen[0][name], initial[name]) for name in initial)
    assert any(not np.array_equal(seen[0][name], seen[1][name]) for name in initial)
    for name, array in result.arrays.items():
        np.testing.assert_array_equal(array.numpy(), seen[last][name])


@pytest.mark.soak
@pytest.mark.run
def test_the_timeout_is_waited_for(tmp_path):
    def silent(who, message, reply):
        return None if who == 1 and is_kind(message, "train") else reply

    config = small(tmp_path, tasks=1)
    started(config, tamper=silent, num_rounds=1, timeout=5.0)
    (row,) = rounds_of(tmp_path)
    assert row["reasons"] == {"1": "no reply in time"}


def without_a_name(tensors):
    return dict(list(tensors.items())[1:])


def changed(change):
    """Change the first tensor."""

    def apply(tensors):
        name = next(iter(tensors))
        return {**tensors, name: change(tensors[name])}

    return apply


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without_a_name, r"initial_arrays: got \["),
        (lambda t: {**t, "more": np.zeros(1)}, r"initial_arrays: got \[.*'more'"),
        (changed(lambda a: a[:-1]), "initial_arrays .*: got 'float32"),
        (changed(np.float64), "initial_arrays .*: got 'float64"),
        (changed(lambda a: a * np.nan), "initial_arrays .*: got 'NaN"),
    ],
)
def test_initial_arrays_that_do_not_fit_are_refused(tmp_path, change, why):
    config = small(tmp_path)
    given = record_of(change(shared_tensors(config, tmp_path)))
    with pytest.raises(ConfigError, match=why):
        started(config, initial_arrays=given, num_rounds=2)


def test_initial_arrays_are_refused_where_no_model_is_shared(tmp_path):
    config = small(tmp_path, local_only=True)
    given = record_of(shared_tensors(config, tmp_path))
    with pytest.raises(ConfigError, match=r"initial_arrays: .*shares no model"):
        started(config, initial_arrays=given, num_rounds=2)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"num_rounds": 3}, "num_rounds: got 3, expected a multiple of the 2 tasks"),
        ({"num_rounds": 0}, "num_rounds: got 0, expected at least 1"),
        ({"timeout": 0}, "timeout: got 0, expected a number of seconds above 0"),
        ({"train_config": ConfigRecord({"lr": 0.1})}, "train_config: got {'lr': 0.1}"),
        ({"evaluate_config": ConfigRecord({"x": 1})}, "evaluate_config: got {'x': 1}"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(tmp_path, arguments, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        started(small(tmp_path), **{"num_rounds": 2, **arguments})


def test_other_rounds_than_those_configured_are_refused(tmp_path):
    why = "num_rounds: got 4, expected 6, as federation.rounds_per_task is 3"
    with pytest.raises(ConfigError, match=why):
        started(small(tmp_path, rounds=3), num_rounds=4)


@pytest.mark.run
def test_evaluate_fn_is_refused_without_a_global_model(tmp_path):
    with pytest.raises(ConfigError, match=r"evaluate_fn: .* fedweit has no global"):
        started(
            small(tmp_path, strategy="fedweit"),
            num_rounds=2,
            evaluate_fn=lambda server_round, arrays: None,
        )


@pytest.mark.soak
@pytest.mark.ray
def test_the_example_prints_the_accuracies():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "foreign_server_app.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    lines = done.stdout.splitlines()
    found = dict(re.findall(r"round (\d+): test accuracy (\S+)", done.stdout))
    assert list(found) == ["3", "6"]
    assert all(float(accuracy) > 0.5 for accuracy in found.values())
    assert sum("norm of the weights" in line for line in lines) == 7
