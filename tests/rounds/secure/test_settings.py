"""Who secure aggregation suits, and how many of a round's clients it needs."""

import pytest

from fcl_flower.algorithms.base import ServerContext, ServerQueries, SumsUpdates
from fcl_flower.algorithms.registry import algorithms
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError, ContractError
from fcl_flower.rounds.secure.server import SecureAggregationStrategy
from fcl_flower.setup.resolve import resolve
from strategies.fedavg import FedAvg, Params

FEDAVG = "strategies.fedavg:FedAvg"
SUMMED = {"analytic", "bic", "fed-lora", "fedprox-apd", "target", "lander"}
SUMMED |= {name for name, one in algorithms().items() if one.server == FEDAVG}


def test_strategies_say_of_themselves_that_sums_are_all_they_need():
    found = {
        name
        for name, one in algorithms().items()
        if issubclass(one.load_server(), SumsUpdates)
    }

    assert found == SUMMED


@pytest.mark.parametrize(
    ("share", "clients", "needed"),
    [(0.67, 3, 3), (0.51, 4, 3), (0.67, 5, 4), (0.7, 10, 7), (1, 9, 9)],
)
def test_the_threshold_is_a_share_of_the_clients_and_three_at_least(
    share, clients, needed
):
    config = RunConfig.from_settings(secure_aggregation=True, secure_threshold=share)

    assert config.federation.sum_threshold(clients) == needed
    assert 2 * needed > clients  # no two halves can unmask one client


@pytest.mark.parametrize(
    ("collusion", "threshold", "most"), [(0.58, 0.67, 0.57), (0.9, 0.99, 0.89)]
)
def test_more_who_collude_than_a_sum_can_hold_are_refused(collusion, threshold, most):
    settings = {"strategy": "fedavg", "clients": 5, "secure_aggregation": True}
    share = {"secure_threshold": threshold}
    message = (
        f"^federation.secure_collusion: got {collusion}, expected at most {most} with "
        f"federation.secure_threshold {threshold}, as at most 0.9 of the clients may "
        "collude or drop out$"
    )
    with pytest.raises(ConfigError, match=message):
        resolve(
            RunConfig.from_settings(**settings, **share, secure_collusion=collusion)
        )

    resolve(RunConfig.from_settings(**settings, **share, secure_collusion=most))


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
