"""Mean and deviation of all clients' pixels, against NumPy over all pixels at once."""

import numpy as np
import pytest
import torch
from fakes import failure, rounds_of, run_in_process, summary_of, tiny
from PIL import Image
from resuming import check_resumed

import fcl_flower as fcl
from fcl_flower.core.errors import ConfigError, RoundError, WireError
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.pixel_sums import SUMS, pixel_sums, read_sums, statistics
from fcl_flower.rounds.transport import Reply
from fcl_flower.setup.build import built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation import in_process

SMALL = {"clients": 3, "tasks": 2, "rounds": 1, "max_train_per_class": 30}


def pixels(count, seed):
    drawn = torch.rand(count, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
    return drawn**2 * torch.tensor([1.0, 0.3, 0.0])[:, None, None]


def told(values):
    return MessageEncoder().payload({SUMS: {"sums": np.array(values, np.float64)}})


def numbers(text):
    return [[float(one) for one in part.split(",")] for part in text.split("/")]


def first_pixels(config):
    """Return the pixels of all clients' first training samples, between 0 and 1."""
    scenario = built(resolve(config)).scenario
    plans = [tasks[0] for tasks in scenario.clients]
    return [scenario.sources[p.dataset].train.x[p.train] / 255 for p in plans]


def test_sums_give_the_mean_and_deviation_of_all_pixels_by_channel():
    parts = [pixels(5, 1), pixels(11, 2)]
    sums = [read_sums(pixel_sums(part), 3) for part in parts]
    mean, deviation = numbers(statistics(sums))
    x = torch.cat(parts).double().numpy()
    np.testing.assert_allclose(mean, x.mean((0, 2, 3)), rtol=1e-5)
    # Of a channel in which all pixels are the same it is 1.
    wanted = [*x.std((0, 2, 3))[:2], 1.0]
    np.testing.assert_allclose(deviation, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [[1], [1]],
        [[10, 10], [5, 5], [4, 4]],
        [[10], [np.nan], [4]],
        [[10], [np.inf], [4]],
        [[-1], [0], [0]],
        [[10], [11], [10]],  # above 1
        [[10], [-1], [1]],
        [[10], [5], [6]],  # no square is above its root
        [[10], [5], [2]],  # a variance below 0
        [[0], [1], [1]],
        [[1e18], [1], [1]],
    ],
)
def test_sums_that_no_pixels_have_are_refused(values):
    with pytest.raises(WireError, match="pixels/sums: expected"):
        read_sums(told(values), 1)


@pytest.mark.run
def test_a_run_is_one_with_the_numbers_of_all_clients_first_samples(tmp_path):
    asked = tiny(tmp_path / "asked", **SMALL, normalise="data")
    run_in_process(asked)

    known = fcl.RunConfig.read(tmp_path / "asked" / "config.toml", "output")
    (mean,), (deviation,) = numbers(known.data.normalise)
    x = np.concatenate(first_pixels(asked))
    assert mean == pytest.approx(x.mean(), rel=1e-5)
    assert deviation == pytest.approx(x.std(), rel=1e-5)
    given = tiny(tmp_path / "given", **SMALL, normalise=known.data.normalise)
    run_in_process(given)
    assert rounds_of(tmp_path / "given") == rounds_of(tmp_path / "asked")
    fixed = tiny(tmp_path / "fixed", **SMALL)
    run_in_process(fixed)
    assert rounds_of(tmp_path / "fixed") != rounds_of(tmp_path / "asked")


@pytest.mark.run
def test_a_run_that_was_ended_asks_for_nothing_else(tmp_path):
    def config(folder, **settings):
        return tiny(folder, **SMALL, normalise="data", **settings)

    check_resumed(tmp_path, config, 2)


@pytest.mark.run
def test_a_comparison_keeps_a_run_whose_numbers_were_found(tmp_path, monkeypatch):
    settings = {**SMALL, "clients": 2, "progress": False, "output": tmp_path}
    settings["counterparts"] = False
    found = fcl.compare(["fedavg"], normalise="data", **settings)
    monkeypatch.setattr(in_process, "run_in_process", None)
    again = fcl.compare(["fedavg"], normalise="data", **settings)
    assert [one.summary for one in again.results] == [
        one.summary for one in found.results
    ]
    with pytest.raises(ConfigError, match="a run of other settings"):
        fcl.compare(["fedavg"], normalise="fixed", **settings)


@pytest.mark.parametrize("kind", ["fails", "lies"])
def test_without_the_sums_of_all_clients_no_round_begins(tmp_path, kind):
    def tamper(client, request, reply):
        if client != 1 or request.kind != f"query.{SUMS}":
            return reply
        if kind == "fails":
            return failure(request, "no")
        return Reply(request, told([[10], [20], [30]]))

    with pytest.raises(RoundError, match=r"sums of pixels from clients \[1\], exp"):
        run_in_process(tiny(tmp_path, **SMALL, normalise="data"), tamper=tamper)
    assert not (tmp_path / "rounds.jsonl").exists()


@pytest.mark.run
@pytest.mark.parametrize("sat_out", ["", "1:0"])
def test_clients_with_folders_agree_but_for_who_sits_out(tmp_path, sat_out):
    rng, drawn = np.random.default_rng(3), []
    for client, task in np.ndindex(2, 2):
        for split, label, number in np.ndindex(2, 2, 6):
            name = ("train", "test")[split]
            folder = tmp_path / f"client-{client}/task-0{task + 1}/{name}/{'ab'[label]}"
            folder.mkdir(parents=True, exist_ok=True)
            low = 100 * label + 20 * client
            image = rng.integers(low, low + 50, (8, 8), np.uint8)
            Image.fromarray(image).save(folder / f"{number}.png")
            if (task, split) == (0, 0) and not (client and sat_out):
                drawn.append(image)
    config = tiny(
        tmp_path / "run",
        **{"scenario": "local-data", "model": "small", "normalise": "data"},
        **{"valid_fraction": 0.0, "lr_patience": 0, "strategy": "fedavg"},
        sat_out=sat_out,
    )
    places = [{"data-path": str(tmp_path / f"client-{n}")} for n in range(2)]

    run_in_process(config, places=places)

    known = fcl.RunConfig.read(tmp_path / "run" / "config.toml", "output")
    (mean,), (deviation,) = numbers(known.data.normalise)
    x = np.array(drawn) / 255
    assert mean == pytest.approx(x.mean(), rel=1e-5)
    assert deviation == pytest.approx(x.std(), rel=1e-5)
    assert summary_of(tmp_path / "run")["average_accuracy"] is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"secure_aggregation": True},
        {"privacy.unit": "client", "noise_multiplier": 1.0},
        {"privacy.unit": "example", "noise_multiplier": 1.0},
    ],
)
def test_where_nobody_may_see_single_clients_it_is_refused(tmp_path, settings):
    config = tiny(tmp_path, **SMALL, normalise="data", strategy="fedavg", **settings)
    why = "'data', expected another with privacy.unit or federation.secure_aggregation"
    with pytest.raises(ConfigError, match=why):
        resolve(config)
