"""What every client's data have cost so far, kept in a file, and the budget for it.

Two observers see different things. The server, and whoever reads its connections, sees
each update of a client, and one more each time that it asks for it. Other clients see
means of updates: the noise of all who answered is in them but that of the observer, who
knows its own. An update with a group that is no mean, such as an adapter that is handed
on, is seen alone by them too.

Nothing is gained by drawing clients for a round: the draw follows from the run's seed,
which all know. A client pays for the rounds that it is asked in, no others.
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
"""mu^2 by client and round; text, as JSON has keys."""

FILE: Final = "privacy.json"


class Ledger:
    """Adds up what releases of clients' updates cost; used by the server.

    The file is written before anything is asked for and before anything is given out,
    so that nothing is forgotten when the server is killed. In a simulation a round that
    is repeated brings the same noise again and costs nothing; elsewhere it costs anew.

    Attributes:
        stopped: why the run ends early; empty while it does not.
    """

    def __init__(
        self,
        section: PrivacySection,
        folder: Path,
        *,
        plain_mean: bool = True,
        simulated: bool = False,
    ) -> None:
        """Begin with nothing spent, in the folder of a run.

        Args:
            section: the settings of privacy.
            folder: of the run.
            plain_mean: updates are averaged. A median, or a choice among updates, may
                be one client's alone, so that its own noise is all there is.
            simulated: noise follows from the run's seed.
        """
        self._simulated = simulated
        self._plain_mean = plain_mean
        self.stopped = ""
        self._section = section
        self._path = folder / FILE
        self._spent: dict[Observer, Costs] = {observer: {} for observer in OBSERVERS}

    def restore(self) -> None:
        """Continue with the costs in the file."""
        try:
            found = json.loads(self._path.read_text())
            self._spent = {observer: _costs(found[observer]) for observer in OBSERVERS}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise WireError(
                f"{self._path}: expected what each client's data have cost, without "
                f"which no budget can be kept ({type(error).__name__}: {error})"
            ) from error

    def ask(self, server_round: int, clients: Iterable[int]) -> None:
        """Charge clients for the updates that they are about to be asked for.

        Raises:
            BudgetError: the round would exceed the budget, if all of them answer.
        """
        asked = list(clients)
        noise = self._section.noise_multiplier
        mean = client_release(noise, self._noises(len(asked)))
        self._check("clients", server_round, dict.fromkeys(asked, mean))
        self._add("server", server_round, dict.fromkeys(asked, client_release(noise)))

    def aggregate(self, server_round: int, updates: Mapping[int, Update]) -> None:
        """Charge clients for updates that are about to be aggregated and given out.

        Raises:
            BudgetError: it would exceed the budget, as too few answered.
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
        """Compute epsilon by client that has cost anything, ascending."""
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


def _costs(found: Mapping[str, Mapping[str, float]]) -> Costs:
    return {
        str(int(client)): {str(int(number)): float(mu) for number, mu in rounds.items()}
        for client, rounds in found.items()
    }
