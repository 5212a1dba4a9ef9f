import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcl_flower.cli.options import parse_pair
from fcl_flower.config.parsing import flatten, parse_inline, read_toml, toml
from fcl_flower.config.run_config import SHORT, RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.core.formats import FormatError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXT,
)
PARAMS = st.dictionaries(
    st.from_regex(r"p_[a-z0-9_]{1,8}", fullmatch=True), SCALARS, max_size=4
)


def sentence(act, *given, **named):
    """Return the one sentence with which something is refused."""
    with pytest.raises(ConfigError) as problem:
        act(*given, **named)
    (line,) = str(problem.value).splitlines()
    return line


# ---- values as text


@given(SCALARS)
def test_a_scalar_comes_back_from_toml_as_it_was(value):
    found = tomllib.loads(f"x = {toml(value)}")["x"]
    assert found == value
    assert type(found) is type(value)


@given(PARAMS)
def test_parameters_come_back_from_an_inline_table_as_they_were(values):
    text = ", ".join(f"{key} = {toml(value)}" for key, value in values.items())
    assert parse_inline(text) == values


@pytest.mark.parametrize(
    "text", ["a", "a = ", "a = 1, a = 2", "a = 1\nb = 2", "}", "a = 1}\nb = {c = 2"]
)
def test_parameters_that_are_no_inline_table_are_refused(text):
    found = sentence(parse_inline, text, "strategy.params")
    expected = f"strategy.params: got {text!r}, expected 'key = value, ...' in TOML"
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("lambda1=0.5", ("lambda1", 0.5)),
        (" mu = 1 ", ("mu", 1)),
        ("scenario.mean-duration=8", ("scenario.mean_duration", 8)),
        ("dls=true", ("dls", True)),
        ('gate="identity"', ("gate", "identity")),
        ("knowledge=sample:3", ("knowledge", "sample:3")),
        ("run.title=a = b", ("run.title", "a = b")),
        ("lambda1=[1]", ("lambda1", "[1]")),
    ],
)
def test_a_pair_is_a_key_and_a_toml_value_or_a_word(pair, expected):
    key, value = parse_pair(pair)
    assert (key, value) == expected
    assert type(value) is type(expected[1])


@pytest.mark.parametrize(
    "pair", ["a", "=1", "a=", "a b=1", "λ=1", ".a=1", "a.=1", "a..b=1", "1=1", ""]
)
def test_a_pair_without_a_key_or_a_value_is_refused(pair):
    expected = f"set: got {pair!r}, expected KEY=VALUE or SECTION.KEY=VALUE"
    assert sentence(parse_pair, pair) == expected


def test_nested_mappings_are_joined_by_dots():
    assert flatten({"a": {"b": {"c": 1}, "d": 2}, "e.f": 3}) == {
        "a.b.c": 1,
        "a.d": 2,
        "e.f": 3,
    }


def test_a_file_that_is_no_toml_is_named_with_the_key_it_was_given_for(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text("a = 1\n")
    assert read_toml(path, "config") == {"a": 1}
    for content in (b"a = ", b"\xff\x00", None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        found = sentence(read_toml, path, "config")
        assert found.startswith(f"config: got {str(path)!r}, expected a TOML file (")
    assert sentence(read_toml, tmp_path, "config").endswith("(it is a folder)")
    path.write_text("a = 1\n", encoding="utf-16")
    found = sentence(read_toml, path, "config")
    assert found.endswith("(it is UTF-16, convert it: iconv -f UTF-16 -t UTF-8)")


def test_a_file_of_a_spreadsheet_begins_with_a_mark(tmp_path):
    (tmp_path / "x.toml").write_text("a = 1\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "x.toml", "config") == {"a": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [([9, 0, 8], "9,0,8"), (("a", "b"), "a,b"), (np.arange(3), "0,1,2")],
    ids=str,
)
def test_a_list_from_python_is_the_text_of_it(value, text):
    config = RunConfig.from_settings(
        datasets=value, scenario={"name": "class-incremental", "class_order": value}
    )
    assert config.data.datasets == config.scenario.params["class_order"] == text


# ---- there and back


@given(
    title=TEXT,
    dataset=TEXT,
    rate=st.floats(1e-12, 1e12),
    seed=st.integers(0, 2**62),
    local_only=st.booleans(),
    head=st.sampled_from(["multi", "single"]),
    params=PARAMS,
    of_scenario=PARAMS,
    of_model=PARAMS,
)
def test_a_configuration_comes_back_from_its_file_and_from_its_flat_form(
    title, dataset, rate, seed, local_only, head, params, of_scenario, of_model
):
    config = RunConfig.from_settings(
        title=title,
        dataset=dataset,
        learning_rate=rate,
        seed=seed,
        local_only=local_only,
        head=head,
        strategy=params,
        scenario=of_scenario,
        model=of_model,
    )
    assert dict(config.strategy.params) == params
    assert RunConfig.of(tomllib.loads(config.to_toml())) == config
    assert RunConfig.of(config.flat()) == config
    below = tomllib.loads(config.to_toml("tool.app."))["tool"]["app"]
    assert RunConfig.of(below) == config
    types = {key: type(value) for key, value in config.flat().items()}
    again = RunConfig.of(tomllib.loads(config.to_toml())).flat()
    assert {key: type(value) for key, value in again.items()} == types


def test_only_the_file_of_a_run_needs_the_number_of_its_format(tmp_path):
    written, path = RunConfig().to_file(), tmp_path / "config.toml"
    path.write_text(written)
    assert RunConfig.read(path, "folder") == RunConfig()
    path.write_text(written.partition("\n")[2])
    assert RunConfig.read(path, "config") == RunConfig()
    with pytest.raises(FormatError, match=r"config\.toml: got no format"):
        RunConfig.read(path, "folder")


def test_the_flat_form_has_a_section_before_each_key_and_no_hyphen():
    flat = RunConfig.of({"scenario.classes_per_task": 3, "strategy.mu": 0.5}).flat()
    assert flat["scenario.classes_per_task"] == 3
    assert flat["strategy.mu"] == 0.5
    assert not any(key.endswith(".params") or "-" in key for key in flat)
    assert {key.partition(".")[0] for key in flat} == {*RunConfig.model_fields}
    assert all(type(value) in (bool, int, float, str) for value in flat.values())


def test_sections_may_be_nested_or_dotted_or_both():
    nested = {"scenario": {"clients": 3, "window": 64}, "run": {"seed": 1}}
    dotted = {"scenario.clients": 3, "scenario.window": 64, "run.seed": 1}
    both = {"scenario": {"clients": 3}, "scenario.window": 64, "run.seed": 1}
    assert RunConfig.of(nested) == RunConfig.of(dotted) == RunConfig.of(both)


@pytest.mark.parametrize("section", ["strategy", "scenario", "model"])
@pytest.mark.parametrize(
    "given",
    [
        {"{}.a": 1, "{}.b": "x"},
        {"{}": {"a": 1, "b": "x"}},
        {"{}.params": 'a = 1, b = "x"'},
        {"{}.params.a": 1, "{}.params.b": "x"},
        {"{}": {"params": {"a": 1, "b": "x"}}},
        {"{}.params": 'a = 2, b = "x"', "{}.a": 1},
    ],
)
def test_what_is_no_key_of_a_named_section_is_a_parameter(section, given):
    config = RunConfig.of({key.format(section): v for key, v in given.items()})
    assert getattr(config, section).params == {"a": 1, "b": "x"}
    flat = config.flat()
    assert (flat[f"{section}.a"], flat[f"{section}.b"]) == (1, "x")


def test_a_configuration_cannot_change():
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.run = config.run
    with pytest.raises(ValueError, match="frozen"):
        config.run.seed = 3
    assert config.replace(seed=3).run.seed == 3
    assert config.run.seed == 0


def test_a_whole_number_will_do_for_a_fraction():
    found = RunConfig.of({"training.learning_rate": 1}).training.learning_rate
    assert (found, type(found)) == (1.0, float)


# ---- short names


def test_short_names_are_the_keys_without_their_section():
    config = RunConfig.from_settings(
        strategy="ewc",
        scenario="concepts",
        model="lenet",
        dataset="mnist",
        data_root="there",
        rounds=7,
        clients=3,
        epochs=2,
        asynchronous=True,
        title="mine",
    )
    assert (config.strategy.name, config.scenario.name) == ("ewc", "concepts")
    assert (config.model.name, config.data.datasets) == ("lenet", "mnist")
    assert (config.data.root, config.federation.rounds_per_task) == ("there", 7)
    assert (config.scenario.clients, config.training.epochs) == (3, 2)
    assert (config.asynchronous.enabled, config.run.title) == (True, "mine")


def test_every_key_has_a_short_name_of_its_own():
    keys = {*RunConfig().flat()} - {f"{s}.name" for s in ("strategy", "scenario")}
    assert {*SHORT.values()} == keys - {"model.name"}
    assert not {*SHORT} & ({*RunConfig.model_fields} - {"asynchronous"})


def test_a_section_may_be_given_whole():
    given = {"name": "concepts", "clients": 3, "window": 64}
    config = RunConfig.from_settings(scenario=given, **{"run.seed": 4})
    assert (config.scenario.name, config.scenario.clients) == ("concepts", 3)
    assert config.scenario.params == {"window": 64}
    assert config.run.seed == 4


def test_a_replaced_configuration_keeps_the_rest():
    config = RunConfig.from_settings(
        strategy={"name": "fedweit", "lambda1": 0.5}, clients=3
    )
    found = config.replace(clients=4, **{"strategy.kappa": 1.0})
    assert found.scenario.clients == 4
    assert found.strategy.params == {"lambda1": 0.5, "kappa": 1.0}
    assert config.strategy.params == {"lambda1": 0.5}
    assert found.replace(clients=3, strategy={"kappa": 0.2}).strategy.params == {
        "lambda1": 0.5,
        "kappa": 0.2,
    }


def test_simulated_durations_are_a_number_for_each_client():
    config = RunConfig.from_settings(clients=3, simulated_durations="1, 2.5,4")
    assert config.asynchronous.durations == (1.0, 2.5, 4.0)
    assert RunConfig().asynchronous.durations == ()


# ---- what is derived


def test_several_data_sets_are_separated_by_commas():
    data = RunConfig.from_settings(dataset=" a, b ,,hub:c/d ").data
    assert data.names == data.all_names == ("a", "b", "hub:c/d")
    data = RunConfig.from_settings(dataset="a", public_dataset="p").data
    assert (data.names, data.all_names) == (("a",), ("a", "p"))
    assert RunConfig.from_settings(class_names="x, y").data.classes == ("x", "y")


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ({"strategy": "ewc"}, "ewc"),
        ({"strategy": "ewc", "title": "EWC 5"}, "EWC 5"),
        ({"strategy": "ewc", "local_only": True}, "ewc local-only"),
        ({"title": "EWC 5", "local_only": True}, "EWC 5 local-only"),
    ],
)
def test_a_run_is_called_by_its_title_or_its_strategy(settings, title):
    assert RunConfig.from_settings(**settings).title == title


def test_numbers_of_numpy_are_numbers():
    config = RunConfig.from_settings(seed=np.int64(3), learning_rate=np.float32(0.5))
    assert config.run.seed == 3
    assert type(config.run.seed) is int
    assert config.training.learning_rate == 0.5


# ---- what Flower is told of a node


def test_a_node_of_nvflare_has_a_name_beside_its_number():
    told = {"client-name": "site-2", "partition-id": 1, "num-partitions": 2}

    node = NodeConfig.of(told)

    assert (node.partition_id, node.num_partitions) == (1, 2)
    assert node.client_name == "site-2"


def test_another_key_is_refused():
    with pytest.raises(ConfigError, match=r"^node-config name: got 'name', expected "):
        NodeConfig.of({"partition-id": 1, "name": "site-2"})
