"""What differential privacy has cost: epsilon by client, for summary and report."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from fcl_flower.config.sections import PrivacySection
from fcl_flower.privacy.ledger import Ledger
from fcl_flower.privacy.mechanism import is_simulated
from fcl_flower.results.diagnostics.told_epsilon import ToldEpsilon

EPSILON = "epsilon"


class PrivacyDiagnostics(ToldEpsilon):
    """Reads the server's ledger, or what clients say of their own examples."""

    def __init__(self, section: PrivacySection, ledger: Ledger | None) -> None:
        """Collect for one run.

        Args:
            section: with a privacy unit.
            ledger: of the server; None where clients account for themselves.
        """
        super().__init__(EPSILON)
        self._section = section
        self._ledger = ledger

    @override
    def summary(self) -> Mapping[str, Any]:
        section, ledger = self._section, self._ledger
        if ledger is None:
            by_observer = {"server": self.told, "clients": self.told}
        else:
            by_observer = {
                "server": ledger.epsilons("server"),
                "clients": ledger.epsilons("clients"),
            }
        by_client = by_observer[section.observer]
        return {
            "privacy": {
                **section.model_dump(exclude={"epsilon"}),
                "budget": section.epsilon,
                "epsilon": max(by_client.values(), default=0.0),
                "epsilon_server": max(by_observer["server"].values(), default=0.0),
                "epsilon_clients": max(by_observer["clients"].values(), default=0.0),
                "by_client": dict(sorted(by_client.items())),
                "simulated_noise": is_simulated(),
                "stopped": "" if ledger is None else ledger.stopped,
            }
        }

    @override
    def remarks(self) -> Mapping[str, str]:
        found = {}
        if is_simulated():
            found["privacy noise"] = "from the run's seed, as in every simulation"
        if self._section.scores:
            found["privacy of scores"] = (
                "none: accuracies on clients' test data are exact, and no epsilon "
                "covers them (privacy.scores)"
            )
        if self._ledger is not None and self._ledger.stopped:
            found["privacy budget"] = self._ledger.stopped
        return found
