"""How well a server tells hidden concepts apart: its clusters against the truth.

The server half's insights ``cluster/C``, ``origin/C`` and ``reached/C`` say of client C
in which cluster its model was put (-1: in none), with which concept model it seems to
have started, and which one it went into (-1: none). Only the record knows what the
client's data were: neither the server half nor the client half is told. The measures
are those of Concept Matching (Jiang et al., 2025, tables II and III).
"""

from collections.abc import Mapping
from typing import Any

from sklearn.metrics import adjusted_rand_score

from fcl_flower.data.scenarios.concept_stream import ConceptStream

ASPECTS = ("cluster", "origin", "reached")
PLACE = ("map/{}/x", "map/{}/y")


class ConceptDiagnostics:
    """Collects the insights of each round; a run without clusters leaves it empty."""

    def __init__(self, stream: ConceptStream | None) -> None:
        """Begin with nothing; ``stream`` says who meets what, if it is hidden."""
        self._stream = stream
        self._rounds: list[dict[str, Any]] = []

    def add(self, server_round: int, diagnostics: Mapping[str, float]) -> None:
        """Keep what a round says of every client that has a cluster in it."""
        clients = sorted(
            int(name.removeprefix("cluster/"))
            for name in diagnostics
            if name.startswith("cluster/")
        )
        if self._stream is None or not clients:
            return
        met = [self._stream.concepts_met(client, server_round) for client in clients]
        if any(len(concepts) > 1 for concepts in met):
            return  # all concepts at once: there is nothing to tell apart
        told = {
            aspect: [int(diagnostics[f"{aspect}/{client}"]) for client in clients]
            for aspect in ASPECTS
        }
        truth = [concept for (concept,) in met]
        arrived = [
            start == end
            for start, end in zip(told["origin"], told["reached"], strict=True)
        ]
        self._rounds.append(
            {
                "round": server_round,
                "clients": clients,
                "concept": truth,
                **told,
                "map": [[diagnostics[n.format(c)] for n in PLACE] for c in clients],
                "ari": float(adjusted_rand_score(truth, told["cluster"])),
                "effectiveness": sum(arrived) / len(arrived),
            }
        )

    def rounds(self) -> list[dict[str, Any]]:
        """Return what ``concepts.json`` holds, a round each; empty without clusters."""
        return self._rounds

    def summary(self) -> dict[str, float]:
        """Return the measures over the whole run; empty without clusters.

        ``ari``, ``ari_least``: mean and least adjusted Rand index of the clusters
        against the concepts, at most 1. ``perfect_rounds``: share of the rounds in
        which it is 1. ``effectiveness``: share of the updates that went into the
        concept model which their client had started from, in [0, 1]. ``models``: how
        many concept models were ever updated.
        """
        if not self._rounds:
            return {}
        found = [row["ari"] for row in self._rounds]
        sizes = [len(row["clients"]) for row in self._rounds]
        matched = [row["effectiveness"] for row in self._rounds]
        reached = {k for row in self._rounds for k in row["reached"]}
        return {
            "ari": sum(found) / len(found),
            "ari_least": min(found),
            "perfect_rounds": sum(ari == 1 for ari in found) / len(found),
            "effectiveness": sum(
                share * size for share, size in zip(matched, sizes, strict=True)
            )
            / sum(sizes),
            "models": len(reached - {-1}),
        }
