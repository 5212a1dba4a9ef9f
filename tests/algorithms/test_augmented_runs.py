"""Augmentation in runs: who sees what of it, with each method."""

import numpy as np
import pytest
import torch
import watched
from every_method import archetypes_first
from fakes import rounds_of, run_in_process, summary_of, tiny
from resuming import check_resumed
from torch import nn

import fcl_flower as fcl
from clients.podnet import PodNet
from fcl_flower.algorithms.augmentation import training_inputs
from fcl_flower.algorithms.base import ClientContext
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.data.transforms import TRANSFORMS
from fcl_flower.models.heads import MultiHeadModel
from fcl_flower.rounds.client import forget_runs
from fcl_flower.training.loop import Training

pytestmark = pytest.mark.usefixtures("one_thread")
AS_THEY_ARE = {"analytic", "disco", "fedseit"}
FROZEN = {"lorm"}
"""Whose frozen part computes views batch by batch, and so may round otherwise."""
SMALL = {"clients": 2, "tasks": 2, "rounds": 2, "classes_per_task": 2}
IMAGES = {"dataset": "digits", "model": "small", "scenario": "class-incremental"}


class Watch:
    """A transform that changes nothing, and notes what it was shown."""

    def __init__(self):
        self.shown = []

    def __call__(self, x, generator):
        self.shown.append(x.clone())
        return x


@pytest.fixture
def watch():
    """Return a transform that has the name ``watch``."""
    transform = Watch()
    with TRANSFORMS.registered("watch", transform):
        yield transform
    forget_runs()


def run(folder, **settings):
    """Return the numbers of a run: its summary without settings, and its rounds."""
    run_in_process(tiny(folder, **{**SMALL, **settings}))
    summary = summary_of(folder)
    del summary["training"]
    return summary, rounds_of(folder)


# ---- each method


@pytest.mark.run
@pytest.mark.parametrize(
    "name", archetypes_first(sorted({*algorithms()} - AS_THEY_ARE))
)
def test_a_method_trains_on_views_and_those_that_change_nothing_change_nothing(
    name, tmp_path, watch
):
    settings = watched.settings_of(name, tmp_path / "parts")
    settings |= {"max_train_per_class": 12, "max_test_per_class": 8}
    plain = run(tmp_path / "plain", **settings)
    found = run(tmp_path / "seen", **settings, augment="watch")

    assert watch.shown
    if name not in FROZEN:
        assert found == plain
    else:
        losses = [[line["loss"] for line in lines] for _, lines in (found, plain)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
    if watch.shown[0].is_floating_point():
        assert all((x >= 0).all() and (x <= 1).all() for x in watch.shown)


def test_a_method_whose_clients_need_samples_as_they_are_refuses(watch):
    without = {n for n, one in algorithms().items() if not one.load_client().augments}
    assert without == AS_THEY_ARE
    with pytest.raises(fcl.ConfigError, match="'watch', expected none for analytic, w"):
        fcl.simulate("analytic", **SMALL, augment="watch", progress=False)


@pytest.mark.run
def test_a_view_has_an_effect_on_what_is_learned(tmp_path):
    plain = run(tmp_path / "plain", strategy="fedavg")
    found = run(tmp_path / "seen", strategy="fedavg", augment="flip,cutout")
    assert found[1][0]["loss"] != plain[1][0]["loss"]
    again = run(tmp_path / "again", strategy="fedavg", augment="flip,cutout")
    assert found == again


# ---- what is shown


@pytest.mark.run
def test_training_samples_alone_are_shown_once_in_each_epoch(watch):
    settings = {"epochs": 3, "tasks": 1, "clients": 1, "max_train_per_class": 20}
    result = fcl.simulate(
        *("fedavg",),
        **{**SMALL, **settings, "augment": "watch"},
        **{"keep_clients": True, "progress": False},
    )
    scenario = fcl.load(result.folder).run.scenario
    (plan,) = scenario.clients[0]
    known = scenario.sources["digits"].train.x[plan.train]
    shown = torch.cat(watch.shown)[:, 0].mul(255).round().numpy().astype(np.uint8)
    wanted = sorted(image.tobytes() for image in known)
    assert sorted(image.tobytes() for image in shown) == sorted(6 * wanted)


@pytest.mark.run
@pytest.mark.parametrize("name", ["der", "ss-il", "replay", "icarl"])
def test_what_is_kept_of_old_tasks_is_shown_as_well(name, tmp_path, watch):
    run(
        tmp_path,
        **{"strategy": name, "augment": "watch", "head": "single", "clients": 1},
        **{**IMAGES, "rounds": 1, "max_train_per_class": 20},
    )
    shown = [image.numpy().tobytes() for x in watch.shown for image in x]
    # One epoch a task: only what was stored is shown twice.
    assert len(shown) > len({*shown})


@pytest.mark.run
def test_the_old_model_of_podnet_sees_the_view_that_the_new_one_does(
    tmp_path, monkeypatch
):
    distances, distance = [], PodNet._distance

    def noted(self, batch, maps, old_body):
        value = distance(self, batch, maps, old_body)
        if self.context.augment is not None:
            distances.append(float(value))
        return value

    monkeypatch.setattr(PodNet, "_distance", noted)
    settings = {**IMAGES, "rounds": 1, "clients": 1}
    run(tmp_path, **settings, strategy="podnet", head="single", augment="flip,crop")
    # Before the first step both are the same network.
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert max(distances) > 1e-4


# ---- a body with a frozen part


class HalfFrozen(nn.Module):
    """Sums each image's columns by a frozen layer."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 3).requires_grad_(False)
        self.calls = 0

    def frozen_features(self, x):
        self.calls += 1
        return self.frozen(x.mean((1, 2)))

    def forward(self, x):
        return self.frozen_features(x) if x.ndim == 4 else x


def context(augment=None):
    training = Training(epochs=1, batch_size=9, learning_rate=0.1)
    return ClientContext(2, 7, training, augment=augment)


def half_frozen():
    torch.manual_seed(1)
    return MultiHeadModel(
        HalfFrozen(),
        features=3,
        input_shape=(1, 8, 8),
        tasks=1,
        classes=2,
        single_head=True,
    )


def test_a_frozen_part_computes_each_view_and_samples_as_they_are_once():
    model, x = half_frozen(), torch.rand(6, 1, 8, 8)
    rows = torch.tensor([4, 1, 4])

    inputs = training_inputs(model, x, context(), 3)
    calls = model.body.calls
    wanted = model.body.frozen(x.mean((1, 2)))[rows]
    assert torch.equal(inputs.see(inputs.x[rows]), wanted)
    assert model.body.calls == calls

    def moved(batch, generator):
        return batch + torch.rand(len(batch), 1, 1, 1, generator=generator)

    inputs = training_inputs(model, x, context(moved), 3)
    found = [inputs.see(inputs.x[rows]) for _ in range(2)]
    assert model.body.calls == calls + 2
    again = training_inputs(model, x, context(moved), 3)
    assert torch.equal(again.see(again.x[rows]), found[0])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[0][2])
    for where in ((4, "augment"), (3, "augment-stored")):
        other = training_inputs(model, x, context(moved), *where)
        assert not torch.equal(other.see(other.x[rows]), found[0])


# ---- with other settings


@pytest.mark.run
def test_a_run_that_was_ended_goes_on_with_the_views_that_it_would_have_had(tmp_path):
    def config(folder, **settings):
        given = {"strategy": "replay", "augment": "flip,crop,colour,cutout"}
        return tiny(folder, **SMALL, **IMAGES, **given, **settings)

    check_resumed(tmp_path, config, 3)


EXAMPLES = {"privacy.unit": "example", "noise_multiplier": 1.0, "strategy": "fedavg"}


@pytest.mark.run
def test_steps_that_hide_examples_see_views_of_those_that_they_draw(tmp_path):
    plain = run(tmp_path / "plain", **EXAMPLES)
    found = run(tmp_path / "seen", **EXAMPLES, augment="flip,cutout")
    assert found == run(tmp_path / "again", **EXAMPLES, augment="flip,cutout")
    accuracies = [summary["client_accuracy"] for summary, _ in (plain, found)]
    assert accuracies[0] != accuracies[1]


def test_where_examples_are_hidden_no_callable_may_mix_them(tmp_path, watch):
    with pytest.raises(fcl.ConfigError, match="'watch', expected some of flip, crop, "):
        run(tmp_path, **EXAMPLES, augment="watch")


@pytest.mark.parametrize("name", ["flip", "watch,flip"])
def test_what_is_for_images_is_refused_for_other_data(name, tmp_path, watch):
    table = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
    y = np.arange(40) % 4
    with pytest.raises(fcl.ConfigError, match="'flip', expected a callable of"):
        fcl.simulate(
            *("fedavg",),
            **{"data": [table, y, table, y], "augment": name, "progress": False},
        )


@pytest.mark.run
def test_other_data_are_shown_to_a_callable_as_they_are(watch):
    table = np.random.default_rng(1).normal(size=(80, 3)).astype(np.float32)
    y = np.arange(80) % 4
    fcl.simulate(
        *("fedavg",),
        **{"data": [table, y, table, y], "augment": watch, "progress": False},
        **{**SMALL, "rounds": 1},
    )
    known = {row.tobytes() for row in table}
    shown = [row.numpy().tobytes() for x in watch.shown for row in x]
    assert shown
    assert {*shown} <= known


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(fcl.ConfigError, match=r"augment: got 'flop'.*flip"):
        run(tmp_path, strategy="fedavg", augment="crop,flop")
