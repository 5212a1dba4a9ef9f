import numpy as np
import pytest
from pydantic import ValidationError

from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.errors import ConfigError
from fcl_flower.data.scenarios.concepts import ConceptsParams
from fcl_flower.models.convolutional import LeNetParams
from fcl_flower.models.pretrained import MINILM, EncoderParams
from fcl_flower.setup.entries import Entries, data_root
from fcl_flower.setup.resolve import resolve


@pytest.fixture
def resolved(tmp_path):
    """Resolve settings where the only file of data is a data set of images."""
    images = np.zeros((4, 6, 6), np.uint8)
    labels = np.array([0, 0, 1, 1])
    arrays = {"x_train": images, "x_test": images}
    np.savez(tmp_path / "mine.npz", **arrays, y_train=labels, y_test=labels)
    rows = np.linspace(0, 9, 12).reshape(4, 3)
    tabular = {"x_train": rows, "x_test": rows}
    np.savez(tmp_path / "rows.npz", **tabular, y_train=labels, y_test=labels)

    def resolve_in_folder(**values):
        return resolve(RunConfig.from_settings(data_root=str(tmp_path), **values))

    return resolve_in_folder


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ("digits", "overlapped", "small")),
        ({"dataset": "mine"}, ("mine", "overlapped", "lenet")),
        ({"dataset": "rows"}, ("rows", "overlapped", "mlp")),
        ({"model": "resnet18"}, ("digits", "overlapped", "resnet18")),
        ({"scenario": "classes"}, ("digits", "classes", "small")),
        ({"strategy": "fedseit"}, ("stdlib-docs", "text", "kim-cnn")),
        ({"dataset": "stdlib-docs"}, ("stdlib-docs", "text", "kim-cnn")),
        ({"strategy": "concept-matching"}, ("digits", "concepts", "small")),
        (
            {"strategy": "replay"},
            ("stdlib-docs", "class-incremental", "transformer"),
        ),
        (
            {"strategy": "fedet"},
            ("stdlib-docs", "class-incremental", "enhanced-transformer"),
        ),
        (
            {"strategy": "lorm"},
            ("stdlib-docs", "class-incremental", "lora-transformer"),
        ),
        (
            {"strategy": "replay", "dataset": "mine", "model": "lenet"},
            ("mine", "class-incremental", "lenet"),
        ),
    ],
    ids=str,
)
def test_names_that_are_left_open_suit_each_other(resolved, settings, names):
    config = resolved(**settings).config
    found = (config.data.datasets, config.scenario.name, config.model.name)
    assert found == names


def test_sizes_that_are_left_open_are_decided(resolved):
    given = RunConfig.from_settings(
        batch_size=7, learning_rate=0.5, data_root=resolved().config.data.root
    )
    assert resolve(given).config == given.replace(
        dataset="digits",
        scenario="overlapped",
        model="small",
        head="multi",
        clients=4,
        tasks=4,
        rounds=5,
    )
    training = resolved(model="lenet").config.training
    assert (training.batch_size, training.learning_rate) == (50, 1e-3 / 3)


def test_each_domain_is_a_task_unless_the_user_says_otherwise(resolved):
    domains = {"scenario": "domains", "dataset": "digits,rotated-90:digits"}
    assert resolved(**domains).config.scenario.tasks == 2
    assert resolved(**domains, tasks=1).config.scenario.tasks == 1


def test_another_optimizer_takes_the_rate_of_its_user(resolved):
    given = resolved(optimizer="sgd", learning_rate=0.05).config.training
    assert given.learning_rate == 0.05


@pytest.mark.parametrize(
    ("rounds", "every"), [(0, 2), (40, 2), (60, 3), (19, 1), (1, 1)]
)
def test_hidden_concepts_are_evaluated_some_twenty_times(resolved, rounds, every):
    config = resolved(scenario="concepts", rounds=rounds).config
    assert config.federation.rounds_per_task == (rounds or 40)
    assert config.federation.evaluate_every == every
    assert (config.model.head, config.scenario.clients) == ("single", 12)
    given = resolved(scenario="concepts", evaluate_every=7).config
    assert given.federation.evaluate_every == 7


def test_tasks_are_evaluated_at_their_end(resolved):
    assert resolved(rounds=60).config.federation.evaluate_every == 0


@pytest.mark.parametrize("name", algorithms())
def test_what_is_resolved_stays_as_it_is(resolved, name):
    once = resolved(strategy=name, seed=3)
    assert resolve(once.config) == once
    # As Flower passes it on.
    assert resolve(RunConfig.of(once.config.flat())) == once
    assert RunSpec.from_json(once.to_json()) == once


def test_a_specification_cannot_change(resolved):
    with pytest.raises(ValidationError):
        resolved().modality = "text"


def test_a_specification_of_another_version_is_refused(resolved):
    text = resolved().to_json().replace('"seed":', '"sead":')
    with pytest.raises(ConfigError, match=r"config\.run\.sead"):
        RunSpec.from_json(text)


def test_the_clients_that_are_connected_count(resolved):
    assert resolve(RunConfig(), clients=7).config.scenario.clients == 7


# ---- parameters


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalise": "usual"}, "got 'usual', expected model, fixed, data, or mean"),
        ({"normalise": "0.5/0"}, "got '0.5/0', expected model, .* deviations above 0"),
        ({"normalise": "0,1/2"}, "got '0,1/2', expected .* one for each of 1 channels"),
        ({"normalise": "0.5/1", "dataset": "rows"}, "'model' for tabular data, which"),
        ({"normalise": "data", "dataset": "rows"}, "'model' for tabular data, which"),
    ],
)
def test_pixels_that_no_image_has_are_refused(resolved, settings, message):
    with pytest.raises(ConfigError, match=f"^data.normalise: .*{message}"):
        resolved(**{"strategy": "fedavg", "dataset": "digits", **settings})


def test_mean_and_deviation_are_one_number_or_one_for_each_channel(resolved):
    for text in ("0.5/0.25", "0.1,0.2,0.3/0.25", "0.5/0.1,0.2,0.3", "0,0,0/1,1,1"):
        resolved(strategy="fedavg", dataset="mine", model="lenet", normalise=text)


def test_parameters_are_those_of_what_is_named(resolved):
    run = Entries(
        resolved(
            strategy={"name": "fedweit", "lambda1": 0.5},
            scenario={"name": "concepts", "window": 64, "mean_duration": 8},
            model={"name": "lenet", "width": 0.5},
            classes_per_task=0,
        )
    )
    assert run.params.lambda1 == 0.5
    assert run.scenario_params == ConceptsParams(window=64, mean_duration=8)
    assert run.model_params == LeNetParams(width=0.5)


def test_a_preset_has_parameters_of_its_own(resolved):
    def strength(**strategy):
        return Entries(resolved(strategy=strategy)).params.strength

    assert strength(name="replay") == 0
    assert strength(name="replay-reg") == 1
    assert strength(name="replay-reg", strength=3.0) == 3


def test_a_text_encoder_is_minilm_where_none_is_named(resolved):
    def params(**model):
        named = {"name": "transformer", **model}
        return Entries(resolved(dataset="stdlib-docs", model=named)).model_params

    assert params() == EncoderParams(encoder=MINILM)
    given = {"encoder": "x", "max_tokens": 5}
    assert params(**given) == EncoderParams(**given)


# ---- data


def test_the_data_root_is_the_setting_or_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FCL_DATA", str(tmp_path / "environment"))
    assert data_root(RunConfig()) == tmp_path / "environment"
    given = RunConfig.from_settings(data_root=str(tmp_path / "given"))
    assert data_root(given) == tmp_path / "given"
    monkeypatch.delenv("FCL_DATA")
    monkeypatch.chdir(tmp_path)
    assert data_root(RunConfig()) == tmp_path / "data"


def test_local_data_have_no_data_set_however_the_strategy_is_used_to(resolved):
    run = resolved(
        strategy="fedavg",
        scenario="local-data",
        model="mlp",
        num_features=3,
        classes_per_task=2,
    )
    assert run.config.data.datasets == ""
    assert run.local_data
    assert (run.modality, run.input_shape) == ("tabular", (3,))
