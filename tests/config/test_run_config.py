import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcl_flower.config.parsing import inline, read_toml, settings, toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.models.registry import create_model
from fcl_flower.setup import factory
from fcl_flower.setup.resolve import resolve

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)


@given(SCALARS)
def test_a_scalar_comes_back_from_toml_as_it_was(value):
    found = tomllib.loads(f"x = {toml(value)}")["x"]
    assert found == value
    assert type(found) is type(value)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), SCALARS))
def test_settings_come_back_as_they_were(values):
    assert settings(inline(values)) == values


@given(
    label=TEXT,
    dataset=TEXT,
    rate=st.floats(1e-12, 1e12),
    seed=st.integers(0, 2**62),
    local_only=st.booleans(),
    head=st.sampled_from(["multi", "single"]),
)
def test_a_configuration_comes_back_from_its_file_as_it_was(
    label, dataset, rate, seed, local_only, head
):
    config = RunConfig.from_settings(
        title=label,
        dataset=dataset,
        learning_rate=rate,
        seed=seed,
        local_only=local_only,
        head=head,
        **{"strategy.params": 'knowledge = "sample:10"'},
    )
    assert RunConfig.of(tomllib.loads(config.to_toml())) == config


def test_keys_are_the_fields_with_hyphens():
    flat = RunConfig.from_settings(classes_per_task=3).flat()
    assert flat["classes-per-task"] == 3
    assert all("_" not in key for key in flat)
    assert all(type(value) in (bool, int, float, str) for value in flat.values())
    assert RunConfig.of(flat) == RunConfig.from_settings(classes_per_task=3)


def test_a_configuration_cannot_change():
    with pytest.raises(ValueError, match="frozen"):
        RunConfig().seed = 3
    assert RunConfig().replace(seed=3).seed == 3


def test_every_setting_is_explained():
    for name, field in RunConfig.model_fields.items():
        assert field.description, name


def test_a_whole_number_will_do_for_a_fraction():
    assert RunConfig.of({"learning_rate": 1}).learning_rate == 1.0


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("clients", -1, "greater than or equal to 0"),
        ("clients", "4", "a valid integer"),
        ("clients", True, "a valid integer"),
        ("clients", 2.5, "a valid integer"),
        ("tasks", 0, "greater than or equal to 1"),
        ("classes-per-task", -2, "greater than or equal to 0"),
        ("valid-fraction", 0, "greater than 0"),
        ("valid-fraction", 1, "less than 1"),
        ("rounds", -1, "greater than or equal to 0"),
        ("evaluate-every", -1, "greater than or equal to 0"),
        ("window", 1, "greater than or equal to 2"),
        ("stay", -1, "greater than or equal to 0"),
        ("epochs", 0, "greater than or equal to 1"),
        ("batch-size", -1, "greater than or equal to 0"),
        ("learning-rate", -0.1, "greater than or equal to 0"),
        ("learning-rate", float("inf"), "a finite number"),
        ("learning-rate", float("nan"), "a finite number"),
        ("patience", -1, "greater than or equal to 0"),
        ("fraction", 0, "greater than 0"),
        ("fraction", 1.5, "less than or equal to 1"),
        ("min-replies", 0, "greater than or equal to 1"),
        ("timeout", 0, "greater than 0"),
        ("seed", -1, "greater than or equal to 0"),
        ("threads", 0, "greater than or equal to 1"),
        ("head", "many", "'', 'multi' or 'single'"),
        ("precision", "float64", "'float32', 'float16' or 'bfloat16'"),
        ("local_only", 1, "a valid boolean"),
        ("strategy", 3, "a valid string"),
    ],
)
def test_a_value_that_is_refused_is_named_with_what_was_expected(key, value, expected):
    with pytest.raises(ConfigError) as problem:
        RunConfig.of({key: value})
    assert str(problem.value) == f"{key}: {value!r} is refused: expected {expected}"


def test_an_unknown_key_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="client: unknown key; expected one of at"):
        RunConfig.of({"client": 4})


@pytest.mark.parametrize(
    ("clients", "fraction", "most"), [(4, 1.0, 4), (4, 0.5, 2), (4, 0.1, 1), (0, 1, 99)]
)
def test_no_more_replies_can_be_needed_than_clients_are_asked(clients, fraction, most):
    given = {"clients": clients, "client_fraction": fraction}
    assert RunConfig.of({**given, "min_updates": most}).min_replies == most
    if clients:
        with pytest.raises(ConfigError, match=f"min-replies: {most + 1} is refused"):
            RunConfig.of({**given, "min_updates": most + 1})


def test_several_data_sets_are_separated_by_commas():
    assert RunConfig.from_settings(dataset=" a, b ,,hub:c/d ").datasets == (
        "a",
        "b",
        "hub:c/d",
    )


def test_a_run_is_called_by_its_label_or_its_strategy():
    assert RunConfig.from_settings(strategy="ewc").title == "ewc"
    assert RunConfig.from_settings(strategy="ewc", title="EWC 5").title == "EWC 5"
    assert (
        RunConfig.from_settings(strategy="ewc", local_only=True).title == "ewc isolated"
    )


def test_a_file_that_is_no_toml_is_named_with_the_key_it_was_given_for(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("a = 1\n")
    assert read_toml(path, "config") == {"a": 1}
    for content in (b"a = ", b"\xff\x00", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"^config: .*x\.toml' is refused"):
            read_toml(path, "config")
    with pytest.raises(ConfigError, match="config"):
        read_toml(tmp_path, "config")


@pytest.mark.parametrize("text", ["a", "a = ", "a = 1, a = 2", "a = 1\nb = 2", "}"])
def test_settings_that_are_no_table_are_refused(text):
    with pytest.raises(ConfigError, match=r"^set: .* is refused: expected 'key = v"):
        settings(text)


def test_data_follow_from_the_strategy_and_a_model_from_the_data(tmp_path):
    def completed(**values):
        found = resolve(RunConfig.from_settings(data_root=str(tmp_path), **values))
        return found.dataset, found.scenario, found.model

    images = np.zeros((4, 6, 6), np.uint8)
    arrays = {"x_train": images, "x_test": images}
    labels = np.array([0, 0, 1, 1])
    np.savez(tmp_path / "mine.npz", **arrays, y_train=labels, y_test=labels)
    assert completed() == ("digits", "overlapped", "small")
    assert completed(dataset="mine") == ("mine", "overlapped", "lenet")
    assert completed(model="resnet18") == ("digits", "overlapped", "resnet18")
    assert completed(scenario="classes") == ("digits", "classes", "small")
    text = ("stdlib-docs", "text", "kim-cnn")
    assert completed(strategy="fedseit") == text
    assert completed(strategy="fedavg", dataset="stdlib-docs") == text
    with pytest.raises(ConfigError, match="dataset: 'digits,stdlib-docs' is refused"):
        completed(dataset="digits,stdlib-docs")


def test_the_step_may_follow_from_the_model():
    config = resolve(RunConfig.from_settings(model="lenet"))
    assert (config.training.batch_size, config.training.learning_rate) == (50, 1e-3 / 3)
    given = RunConfig.from_settings(batch_size=7, learning_rate=0.5)
    assert resolve(given) == given.replace(
        dataset="digits",
        scenario="overlapped",
        model="small",
        head="multi",
        clients=4,
        rounds=5,
    )


def test_the_data_root_is_the_setting_or_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FCL_DATA", str(tmp_path / "environment"))
    assert resolve.data_root(RunConfig()) == tmp_path / "environment"
    given = RunConfig.from_settings(data_root=str(tmp_path / "given"))
    assert resolve.data_root(given) == tmp_path / "given"
    monkeypatch.delenv("FCL_DATA")
    monkeypatch.chdir(tmp_path)
    assert resolve.data_root(RunConfig()) == tmp_path / "data"


def test_a_device_that_is_not_there_is_refused():
    assert factory.find_device("cpu") == "cpu"
    assert factory.find_device("auto") in {"cpu", "cuda"}
    for name in ("gpu", "cuda:97", ""):
        with pytest.raises(ConfigError, match=f"device: {name!r} is refused"):
            factory.find_device(name)


def test_a_single_head_knows_all_labels(tmp_path):
    config = RunConfig.from_settings(
        clients=2, tasks=2, classes_per_task=2, head="single"
    )
    plan = factory.build_scenario(resolve(config))
    network = factory.build_model(resolve(config), plan)
    assert [head.out_features for head in network.heads] == [plan.num_labels]
    multi = factory.build_model(resolve(config.replace(head="multi")), plan)
    assert [head.out_features for head in multi.heads] == [2, 2]
    expected = create_model(
        "small", tasks=2, classes=2, single_head=False, seed=config.run.seed
    )
    assert multi.state_dict().keys() == expected.state_dict().keys()
