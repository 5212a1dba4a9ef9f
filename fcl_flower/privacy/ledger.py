"""The ledger of the privacy spent on each client's data, kept in a file, with a budget.

Two observers see different releases. The server, and anybody who reads its connections,
sees each update of a client, and another one each time that it asks again. Other
clients see means of updates. These contain the noise of all clients that answered,
except for the observer, who knows its own noise. If an update has a group that is not
averaged, such as an adapter for other clients, they see this update by itself, too.

Drawing clients for a round does not amplify privacy, since the draw follows from the
run's seed, which all know. A client pays only for the rounds in which it is asked.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from fcl_flower.config.run_config import PrivacySection
from fcl_flower.core.errors import BudgetError, WireError
from fcl_flower.core.files import replace_file
from fcl_flower.core.types import Update, group_kind
from fcl_flower.privacy.accounting import client_release, gaussian_epsilon

Observer: TypeAlias = Literal["server", "clients"]
OBSERVERS: Final[tuple[Observer, ...]] = ("server", "clients")
Costs: TypeAlias = dict[str, dict[str, float]]
"""The costs mu^2 by client and round, which are texts, as keys of JSON."""

FILE: Final = "privacy.json"


class Ledger:
    """The server's ledger, which adds up the costs of releases of clients' updates.

    The file is written before updates are asked for, and before they are given out. So
    no cost is lost when the server is killed. In a simulation a repeated round has the
    same noise and costs nothing; elsewhere it costs again.

    Attributes:
        stopped: reason why the run ends early; empty if it does not.
    """

    def __init__(
        self,
        section: PrivacySection,
        folder: Path,
        *,
        plain_mean: bool = True,
        simulated: bool = False,
    ) -> None:
        """Begin without costs.

        Args:
            section: settings of privacy.
            folder: folder of the run.
            plain_mean: whether updates are averaged. A median, or a choice among
                updates, may be a single client's and contain only its noise.
            simulated: whether noise follows from the run's seed.
        """
        self._simulated = simulated
        self._plain_mean = plain_mean
        self.stopped = ""
        self._section = section
        self._path = folder / FILE
        self._spent: dict[Observer, Costs] = {observer: {} for observer in OBSERVERS}

    def restore(self) -> None:
        """Continue with the costs in the file.

        Raises:
            WireError: the file is missing or damaged.
        """
        try:
            stored = json.loads(self._path.read_text())
            self._spent = {observer: _costs(stored[observer]) for observer in OBSERVERS}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: expected the costs of each client's data, without "
                f"which no budget can be kept ({type(error).__name__}: {error})"
            ) from error

    def ask(self, server_round: int, clients: Iterable[int]) -> None:
        """Charge clients for the updates for which the server is about to ask.

        Raises:
            BudgetError: the round would exceed the budget, even if all clients answer.
        """
        numbers = list(clients)
        noise = self._section.noise_multiplier
        mean = client_release(noise, self._noises(len(numbers)))
        self._check("clients", server_round, dict.fromkeys(numbers, mean))
        self._add("server", server_round, dict.fromkeys(numbers, client_release(noise)))

    def aggregate(self, server_round: int, updates: Mapping[int, Update]) -> None:
        """Charge clients for updates that are about to be aggregated and given out.

        Raises:
            BudgetError: the round would exceed the budget, since too few answered.
        """
        noise = self._section.noise_multiplier
        mean = client_release(noise, self._noises(len(updates)))
        alone = client_release(noise)
        costs = {
            client: mean
            if all(group_kind(group) == "base" for group in update.payload)
            else alone
            for client, update in updates.items()
        }
        self._add("clients", server_round, costs)

    def epsilons(self, observer: Observer) -> dict[int, float]:
        """Compute the epsilon of each client with costs, in the order of clients."""
        return {
            int(client): gaussian_epsilon(sum(rounds.values()), self._section.delta)
            for client, rounds in sorted(
                self._spent[observer].items(), key=lambda item: int(item[0])
            )
        }

    def _add(
        self, observer: Observer, server_round: int, costs: Mapping[int, float]
    ) -> None:
        self._check(observer, server_round, costs)
        spent = self._spent[observer]
        for client, cost in costs.items():
            rounds = spent.setdefault(str(client), {})
            rounds[str(server_round)] = self._before(rounds, server_round) + cost
        text = json.dumps(self._spent, indent=1) + "\n"
        replace_file(self._path, text, durable=True)

    def _check(
        self, observer: Observer, server_round: int, costs: Mapping[int, float]
    ) -> None:
        budget, delta = self._section.epsilon, self._section.delta
        if not budget or observer != self._section.observer:
            return
        for client, cost in costs.items():
            rounds = self._spent[observer].get(str(client), {})
            others = {k: mu for k, mu in rounds.items() if k != str(server_round)}
            total = sum(others.values()) + self._before(rounds, server_round) + cost
            epsilon = gaussian_epsilon(total, delta)
            if epsilon > budget:
                self.stopped = (
                    f"stopped before round {server_round}, after which client {client} "
                    f"would have an epsilon of {epsilon:.3g}, above privacy.epsilon "
                    f"{budget:g}"
                )
                raise BudgetError(self.stopped)

    def _before(self, rounds: Mapping[str, float], server_round: int) -> float:
        # In a simulation a repeated round brings the same noise.
        return 0.0 if self._simulated else rounds.get(str(server_round), 0.0)

    def _noises(self, clients: int) -> int:
        """Count the clients whose noise an observer among them does not know."""
        return max(1, clients - 1) if self._plain_mean else 1


def _costs(stored: Mapping[str, Mapping[str, float]]) -> Costs:
    return {
        str(int(client)): {str(int(number)): float(mu) for number, mu in rounds.items()}
        for client, rounds in stored.items()
    }
