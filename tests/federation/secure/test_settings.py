"""What does not go with secure aggregation is refused before anything is run."""

import pytest

from fcl_flower.algorithms.base import ServerContext, ServerQueries, SumsUpdates
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.federation.secure.server import SecureAggregationStrategy
from fcl_flower.setup import build
from fcl_flower.setup.resolve import resolve
from strategies.fedavg import FedAvg, Params

DIGITS = {"dataset": "digits", "model": "small", "clients": 4, "tasks": 2}
INCREMENTAL = {**DIGITS, "scenario": "class-incremental"}
ANALYTIC = {"name": "analytic", "form": "gram"}
FEDAVG = "strategies.fedavg:FedAvg"
SUMMED = {"analytic", "bic", "fedprox-apd", "target", "lander"}
SUMMED |= {name for name, one in algorithms().items() if one.server == FEDAVG}


def configured(**settings):
    given = {**DIGITS, "classes_per_task": 2, "secure_aggregation": True, **settings}
    build.validate(resolve(RunConfig.from_settings(**given)))


def refusal(**settings):
    with pytest.raises(ConfigError) as problem:
        configured(**settings)
    (line,) = str(problem.value).splitlines()
    return line


def test_strategies_say_of_themselves_that_sums_are_all_they_need():
    found = {
        name
        for name, one in algorithms().items()
        if issubclass(one.load_server(), SumsUpdates)
    }

    assert found == SUMMED


KEY = "federation.secure_aggregation: got True, expected false"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"asynchronous": True},
            f"{KEY} in an asynchronous run, which takes up each update by itself",
        ),
        (
            {"local_only": True},
            f"{KEY} with strategy.local_only, by which nothing is sent",
        ),
        (
            {"clients": 2},
            f"{KEY} with 2 clients in a round, as in a sum of fewer than 3 each knows "
            "what the other has added",
        ),
        (
            {"client_fraction": 0.25},
            f"{KEY} with 1 clients in a round, as in a sum of fewer than 3 each knows "
            "what the other has added",
        ),
        (
            {**INCREMENTAL, "strategy": {**ANALYTIC, "form": "exact"}},
            "strategy.form: got 'exact', expected 'gram' with secure aggregation, for "
            "sums of one size",
        ),
        (
            {"strategy": ANALYTIC, "scenario": "overlapped", "head": "multi"},
            "model.head: got 'multi', expected 'single' with secure aggregation, as "
            "each task's head needs its own sums",
        ),
    ],
    ids=["asynchronous", "local-only", "two", "a fraction", "form", "heads"],
)
def test_so_is_what_does_not_go_with_it(settings, expected):
    assert refusal(**{"strategy": "fedavg", **settings}) == expected


@pytest.mark.parametrize(
    ("key", "value", "usual"),
    [
        ("aggregation", "median", "'mean'"),
        ("clip_to_median", 2.0, "0.0"),
        ("weighting", "uniform", "'examples'"),
        ("examples_limit", 3.0, "0.0"),
    ],
)
def test_what_looks_at_single_updates_is_refused(key, value, usual):
    assert refusal(strategy="fedavg", **{key: value}) == (
        f"federation.{key}: got {value!r}, expected {usual} with secure aggregation, "
        "as nobody sees single updates"
    )


@pytest.mark.parametrize(
    ("share", "clients", "needed"),
    [(0.67, 3, 3), (0.51, 4, 3), (0.67, 5, 4), (0.7, 10, 7), (1, 9, 9)],
)
def test_the_threshold_is_a_share_of_the_clients_and_three_at_least(
    share, clients, needed
):
    config = RunConfig.from_settings(secure_threshold=share)

    assert config.federation.sum_threshold(clients) == needed
    assert 2 * needed > clients  # no two halves can unmask one client


@pytest.mark.parametrize("more", [ServerQueries, None])
def test_a_strategy_that_does_more_with_clients_is_its_authors_mistake(more):
    class Asking(FedAvg, *filter(None, [more])):
        predicts_locally = more is None

        def configure_query(self, state, stage, client): ...

        def check_query_reply(self, state, answer): ...

        def aggregate_query(self, state, stage, answers): ...

    section = RunConfig.from_settings(secure_aggregation=True).federation

    with pytest.raises(ContractError, match="Asking: got secure aggregation, expected"):
        SecureAggregationStrategy(Asking(Params(), ServerContext(0)), section)
