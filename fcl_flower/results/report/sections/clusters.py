"""The sections on hidden concepts: how well the server separates them.

The measures are those of Concept Matching (Jiang et al., 2025, tables II and III).
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from fcl_flower.results.metrics import Accuracy
from fcl_flower.results.report.charts import scatter
from fcl_flower.results.report.charts.heatmap import Axis, category_map
from fcl_flower.results.report.charts.lines import Series, lines
from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Chart, Charts, Section
from fcl_flower.results.report.reader import Run
from fcl_flower.results.report.schema import NONE, Clustering


def clustering_sections(rounds: Sequence[Clustering], run: Run) -> Iterator[Section]:
    """Yield measures over rounds, the model of each concept, and maps of two rounds."""
    names = run.scenario.concepts
    yield _measures_section(rounds, run)
    yield _models_section(rounds, names, run.summary.total_rounds)
    yield _maps_section(rounds, names)


def _measures_section(rounds: Sequence[Clustering], run: Run) -> Section:
    at = np.arange(1, run.summary.total_rounds + 1)
    ari, effectiveness = np.full((2, len(at)), np.nan)
    for one in rounds:
        ari[one.round - 1], effectiveness[one.round - 1] = one.ari, one.effectiveness
    perfect = sum(one.ari == 1 for one in rounds)
    matched = sum(one.effectiveness * len(one.clients) for one in rounds)
    updates = sum(len(one.clients) for one in rounds)
    return Section(
        f"Clusters are exactly the hidden concepts in {perfect} of "
        f"{numbers.plural(len(rounds), 'round')}; {matched / updates:.0%} of the "
        "updates reached the concept model they started from",
        "Adjusted Rand index of the clusters against the hidden concepts: 1 is "
        "perfect, 0 is what chance gives. Matching effectiveness: fraction of the "
        "updates that went into the concept model which their client had started from.",
        lines(
            [
                Series("adjusted Rand index", at, ari, "var(--c0)"),
                Series("matching effectiveness", at, effectiveness, "var(--c2)"),
            ],
            "round",
            "Clustering and matching over rounds",
            "index, fraction",
        ),
    )


def _models_section(
    rounds: Sequence[Clustering], names: Sequence[str], total: int
) -> Section:
    """Return which concept model the clients of each concept reached, by round."""
    reached: dict[tuple[int, int], Counter[int]] = {}
    for one in rounds:
        for concept, model in zip(one.concept, one.reached, strict=True):
            reached.setdefault((concept, one.round - 1), Counter())[model] += 1
    models = np.full((len(names), total), np.nan)
    for cell, counts in reached.items():
        # Of equally many the lowest number, but an update before none.
        models[cell] = max(counts, key=lambda m: (counts[m], m != NONE, -m))

    def hint(concept: int, column: int) -> str:
        counts = reached[concept, column]
        shown = ", ".join(f"{_model(m)} by {n}" for m, n in sorted(counts.items()))
        return (
            f"round {column + 1}, {names[concept]}: {shown} of "
            f"{numbers.plural(counts.total(), 'client')}"
        )

    note = (
        "The concept model that most of a concept's clients reached in each round. "
        "Empty: no client had data of the concept."
    )
    divided = {cell for cell, counts in reached.items() if len(counts) > 1}
    if divided:
        note += " A dot: some of its clients reached another one, or none."
    return Section(
        _sharing(models, names),
        note,
        category_map(
            models,
            Axis("concept", names),
            Axis("round", [*map(str, range(1, total + 1))]),
            _model,
            hint,
            "Concept model that each concept reached in each round",
            divided,
        ),
    )


def _model(number: int) -> str:
    return "none" if number == NONE else f"model {number}"


def _sharing(models: Accuracy, names: Sequence[str]) -> str:
    """Return whether concepts share a model, by the last that each has reached."""
    owners: dict[int, list[str]] = {}
    for name, row in zip(names, models, strict=True):
        updated = row[row >= 0]
        if len(updated):
            owners.setdefault(int(updated[-1]), []).append(name)
    shared = {model: some for model, some in owners.items() if len(some) > 1}
    if not owners:
        return "No concept reached a concept model"
    if not shared:
        reached = sum(map(len, owners.values()))
        if reached == len(names):
            return "Every concept ends with a concept model of its own"
        return (
            f"{reached} of {len(names)} concepts end with a concept model of their own"
        )
    model, some = max(shared.items(), key=lambda item: len(item[1]))
    more = f", and {len(shared) - 1} more are shared" if len(shared) > 1 else ""
    return (
        f"{', '.join(some[:-1])} and {some[-1]} last reached the same concept model, "
        f"{model}{more}"
    )


def _maps_section(rounds: Sequence[Clustering], names: Sequence[str]) -> Section:
    """Return where the clients' models lay in the first round and at the end."""
    last = next((one for one in reversed(rounds) if one.clusters > 1), rounds[-1])
    shown = [rounds[0]] if last is rounds[0] else [rounds[0], last]
    return Section(
        f"In round {last.round} the client models form "
        f"{numbers.plural(last.clusters, 'cluster')}: {_purity(last)}",
        "Each point is the model of a client after its training: near points have "
        "similar weights. Its number is the hidden concept of its data: "
        f"{', '.join(f'{k} {name}' for k, name in enumerate(names))}. Zoom in where "
        "points cover each other. Each map has its own scale, the same in both "
        "directions.",
        Charts([_map(one, names) for one in shown], "maps"),
    )


def _purity(one: Clustering) -> str:
    """Return how clusters and concepts go together."""
    if one.ari == 1:
        return "just the hidden concepts"
    members: dict[int, set[int]] = {}
    for cluster, concept in zip(one.cluster, one.concept, strict=True):
        members.setdefault(cluster, set()).add(concept)
    members.pop(NONE, None)
    mixed = sum(len(concepts) > 1 for concepts in members.values())
    if mixed:
        return f"{mixed} of them with more than one concept"
    return "each of one concept, but not all of its clients"


def _map(one: Clustering, names: Sequence[str]) -> Chart:
    points = [
        scatter.Point(
            position,
            concept,
            cluster,
            f"client {client}, {names[concept]}: {_cluster(cluster)}, started from "
            f"{_model(origin)}, reached {_model(reached)}",
        )
        for client, concept, cluster, origin, reached, position in zip(
            one.clients,
            one.concept,
            one.cluster,
            one.origin,
            one.reached,
            one.map,
            strict=True,
        )
    ]
    what = f"Map of the client models of round {one.round}"
    return scatter.scatter(points, _cluster, what, _caption(one))


def _cluster(number: int) -> str:
    return "no cluster" if number == NONE else f"cluster {number}"


def _caption(one: Clustering) -> str:
    return (
        f"round {one.round}: {numbers.plural(one.clusters, 'cluster')}, adjusted Rand "
        f"index {numbers.fraction(one.ari)}"
    )
