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


def test_data_of_two_modalities_are_refused(resolved):
    with pytest.raises(ConfigError) as problem:
        resolved(dataset="digits,stdlib-docs")
    assert str(problem.value) == (
        "data.datasets: got 'digits,stdlib-docs', expected data sets of one modality, "
        "not images and text"
    )


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
        rounds=5,
    )
    training = resolved(model="lenet").config.training
    assert (training.batch_size, training.learning_rate) == (50, 1e-3 / 3)


def test_the_rates_that_suit_models_are_adams(resolved):
    with pytest.raises(ConfigError) as problem:
        resolved(optimizer="sgd")
    assert str(problem.value) == (
        "training.learning_rate: got 0.0, expected a rate above 0 with "
        "training.optimizer 'sgd', as those that suit the models are Adam's"
    )
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


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        ({"strategy": "fedsgd"}, "strategy: got 'fedsgd', expected one of "),
        ({"scenario": "easy"}, "scenario: got 'easy', expected one of "),
        ({"model": "vgg"}, "model: got 'vgg', expected one of "),
        (
            {"strategy": {"lambda9": 1}},
            "strategy.lambda9: got 'lambda9', expected one of lambda1, ",
        ),
        (
            {"strategy": {"name": "fedavg", "lambda1": 0.1}},
            "strategy.lambda1: got 'lambda1', expected one of name, local_only; "
            "lambda1 is of apd, fedprox-apd, fedseit, fedweit",
        ),
        (
            {"strategy": {"lambda1": -1.0}},
            "strategy.lambda1: got -1.0, expected greater than or equal to 0",
        ),
        (
            {"strategy": {"lambda1": "much"}},
            "strategy.lambda1: got 'much', expected a valid number",
        ),
        (
            {"strategy": {"gate": "tanh"}},
            "strategy.gate: got 'tanh', expected 'sigmoid'",
        ),
        (
            {"scenario": {"name": "concepts", "window": 1}},
            "scenario.window: got 1, expected greater than or equal to 2",
        ),
        (
            {"scenario": {"name": "concepts", "windo": 1}},
            "scenario.windo: got 'windo', expected one of window, joint, ",
        ),
        (
            {"scenario": {"window": 64}},
            "scenario.window: got 'window', expected one of ",
        ),
        (
            {"model": {"name": "lenet", "width": 0.0}},
            "model.width: got 0.0, expected greater than ",
        ),
        (
            {"model": {"name": "resnet18", "encoder": "minilm"}},
            "model.encoder: got 'encoder', expected one of ",
        ),
        (
            {"dataset": "rows", "num_features": 5},
            "model.num_features: got 5, expected 3, as the samples of 'rows' are "
            "tabular",
        ),
        (
            {"num_features": 5},
            "model.num_features: got 5, expected none, as the samples of 'digits' are "
            "images",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_resolved_is_refused_in_one_sentence(resolved, settings, start):
    with pytest.raises(ConfigError) as problem:
        resolved(**settings)
    assert str(problem.value).startswith(start)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"strategy": "fedwiet"}, "fedweit"),
        ({"scenario": "overlaped"}, "overlapped"),
        ({"model": "lenet5"}, "lenet"),
        ({"strategy": {"lamda1": 1.0}}, "lambda1"),
        ({"strategy": {"local-only": True}}, "local_only"),
        ({"scenario": {"client": 4}}, "clients"),
        ({"model": {"heads": "single"}}, "head"),
    ],
    ids=str,
)
def test_the_nearest_name_is_proposed(resolved, settings, nearest):
    with pytest.raises(ConfigError, match=f"; did you mean '{nearest}'\\?$"):
        resolved(**settings)


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
