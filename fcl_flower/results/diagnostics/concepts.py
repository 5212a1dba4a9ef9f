"""Hidden concepts: a server's clusters of client models against the truth.

Reads ``cluster/C``, ``origin/C``, ``reached/C`` and ``map/C/x|y`` (see the package).
Only the record knows the concepts of the clients' data: neither side of an algorithm
does. The measures are those of Concept Matching (Jiang et al., 2025, tables II and
III).
"""

import re
from collections.abc import Mapping
from typing import Any

from fcl_flower.core.errors import ContractError
from fcl_flower.data.scenarios.plan import ConceptStream
from fcl_flower.results.diagnostics.base import Scalars, TaskId

CLUSTER = re.compile(r"cluster/([0-9]+)")
ASPECTS = ("cluster", "origin", "reached")
COORDINATES = ("map/{}/x", "map/{}/y")


class ConceptDiagnostics:
    """Writes ``concepts.json``, one entry a round; nothing without clusters."""

    def __init__(self, stream: ConceptStream | None) -> None:
        """Begin with nothing; ``stream``: the clients' concepts, if they are hidden."""
        self._stream = stream
        self._rounds: list[dict[str, Any]] = []

    def check(self, client_metrics: Scalars) -> None:
        """Accept every metric of a client: clusters are the server's."""

    def add_round(
        self,
        server_round: int,
        client_metrics: Mapping[TaskId, Scalars],
        server_metrics: Scalars,
    ) -> None:
        """Keep what a round says of every client whose model has a cluster.

        Raises:
            ContractError: a client has a cluster, but not all that goes with it.
        """
        matches = map(CLUSTER.fullmatch, server_metrics)
        clients = sorted(int(match[1]) for match in matches if match)
        if self._stream is None or not clients:
            return
        # Imported here since it takes a second, and most runs have no clusters.
        from sklearn.metrics import adjusted_rand_score

        concepts = [
            self._stream.concepts_at(client, server_round) for client in clients
        ]
        if any(len(at_once) > 1 for at_once in concepts):
            return  # all concepts at once: nothing to separate
        names = [*(f"{aspect}/{{}}" for aspect in ASPECTS), *COORDINATES]
        for client in clients:
            for name in (name.format(client) for name in names):
                if name not in server_metrics:
                    raise ContractError(
                        f"{name}: got none, expected one beside cluster/{client}"
                    )
        models = {
            aspect: [int(server_metrics[f"{aspect}/{client}"]) for client in clients]
            for aspect in ASPECTS
        }
        truth = [concept for (concept,) in concepts]
        returned = [
            origin == reached
            for origin, reached in zip(models["origin"], models["reached"], strict=True)
        ]
        self._rounds.append(
            {
                "round": server_round,
                "clients": clients,
                "concept": truth,
                **models,
                "map": [
                    [server_metrics[name.format(client)] for name in COORDINATES]
                    for client in clients
                ],
                "ari": float(adjusted_rand_score(truth, models["cluster"])),
                "effectiveness": sum(returned) / len(returned),
            }
        )

    def files(self) -> dict[str, object]:
        """Return ``concepts.json``; none without clusters."""
        return {"concepts.json": self._rounds} if self._rounds else {}

    def summary(self) -> dict[str, dict[str, float]]:
        """Return the measures under the key ``concepts``."""
        return {"concepts": self.measures()}

    def remarks(self) -> dict[str, str]:
        """Return nothing: the measures say it all."""
        return {}

    def measures(self) -> dict[str, float]:
        """Return the measures over the whole run; empty without clusters.

        ``ari``, ``ari_least``: mean and least adjusted Rand index of the clusters
        against the concepts, at most 1. ``perfect_rounds``: fraction of the rounds in
        which it is 1. ``effectiveness``: fraction of the updates that went into the
        concept model which their client had started from. ``models``: how many concept
        models were ever updated.
        """
        if not self._rounds:
            return {}
        ari = [row["ari"] for row in self._rounds]
        updates = [len(row["clients"]) for row in self._rounds]
        returned = [row["effectiveness"] for row in self._rounds]
        reached = {model for row in self._rounds for model in row["reached"]}
        return {
            "ari": sum(ari) / len(ari),
            "ari_least": min(ari),
            "perfect_rounds": sum(value == 1 for value in ari) / len(ari),
            "effectiveness": sum(
                fraction * count
                for fraction, count in zip(returned, updates, strict=True)
            )
            / sum(updates),
            "models": len(reached - {-1}),
        }
