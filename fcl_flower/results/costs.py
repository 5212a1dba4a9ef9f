"""What a run has cost its clients, by metrics of their updates: privacy, operations."""

from collections.abc import Mapping

from fcl_flower.config.run_config import PrivacySection
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.results.events import Privacy

EPSILON = "epsilon"
"""What the client's examples have cost so far, where they are the privacy unit."""
LABEL_EPSILON = "label_epsilon"
"""What statistics of the client's labels that it noised have cost so far."""
MULTIPLY_ADDS = "multiply_adds"
"""What the client has computed in the round's training, where the run counts it."""


def privacy_costs(
    section: PrivacySection,
    ledger: Ledger | None,
    reported: Mapping[int, float],
    *,
    simulated: bool,
) -> Privacy:
    """Sum up what differential privacy has cost each client, in epsilon.

    Without a ledger of the server clients account for themselves: what they
    ``reported``. In a simulation noise follows from the run's seed.
    """
    by_observer = {
        "server": reported if ledger is None else ledger.epsilons("server"),
        "clients": reported if ledger is None else ledger.epsilons("clients"),
    }
    by_client = by_observer[section.observer]
    return Privacy(
        **section.model_dump(exclude={"epsilon"}),
        budget=section.epsilon,
        epsilon=max(by_client.values(), default=0.0),
        epsilon_server=max(by_observer["server"].values(), default=0.0),
        epsilon_clients=max(by_observer["clients"].values(), default=0.0),
        by_client=dict(sorted(by_client.items())),
        simulated_noise=simulated,
        stopped="" if ledger is None else ledger.stopped,
    )


def privacy_remarks(
    section: PrivacySection,
    ledger: Ledger | None,
    of_labels: Mapping[int, float],
    *,
    simulated: bool,
) -> dict[str, str]:
    """Say what a reader must know of the privacy of a run, by topic."""
    found = {}
    if of_labels:
        most = f"epsilon {max(of_labels.values()):.3g} at delta {section.delta:g}"
        said = f"noised statistics, at most {most} for a client"
        found["privacy of labels"] = said
    if section.unit == "none":
        return found
    if simulated:
        found["privacy noise"] = "from the run's seed, as in every simulation"
    if section.scores:
        found["privacy of scores"] = (
            "none: accuracies on clients' test data are exact, and no epsilon "
            "covers them (privacy.scores)"
        )
    if ledger is not None and ledger.stopped:
        found["privacy budget"] = ledger.stopped
    return found
