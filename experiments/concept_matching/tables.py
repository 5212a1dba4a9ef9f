"""Tables II and III of Concept Matching: every clustering with every distance.

python experiments/concept_matching/tables.py --data-root DIR --output DIR2

Computes what ``fcl study experiments/concept_matching/clusterings.toml`` computes, in
less time: two rows differ in their server sides alone, so that clients have to train
only once for all servers that have sent them the same concept models. All servers start
together; those whose models part, in a single bit, go on by themselves. Each seed is a
file of DIR2 as soon as it is done, and is not computed again.
"""

import argparse
import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from clients.concept_matching import ConceptMatching as ConceptMatchingLearner
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.diagnostics import Clustering, Points
from fcl_flower.core.types import Payload, TaskStage
from fcl_flower.data.examples import ClientData
from fcl_flower.data.scenarios.plan import ConceptStream
from fcl_flower.results.record import discovery
from fcl_flower.results.recorder import with_truth
from fcl_flower.results.tables import format_mean_std, mean_and_std
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.place import place_of
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.study import read_study
from fcl_flower.training.loop import score
from fcl_flower.training.tensors import snapshot
from strategies.concept_matching.server import ConceptMatching

STUDY = Path(__file__).with_name("clusterings.toml")
COLUMNS = {
    "accuracy": "accuracy",
    "ari": "ARI",
    "ari_least": "least ARI",
    "perfect_rounds": "perfect rounds",
    "effectiveness": "matching effectiveness",
}


@dataclass
class Client:
    """One client side with its samples; its state is kept by the branches."""

    learner: ConceptMatchingLearner
    samples: ClientData


@dataclass
class Server:
    """One row of the tables."""

    strategy: ConceptMatching
    state: Payload
    stream: ConceptStream
    frames: list[Clustering]


@dataclass
class Branch:
    """Servers whose clients cannot tell them apart, and the state of these."""

    servers: dict[str, Server]
    states: Mapping[int, Payload]


def main() -> None:
    """Run all rows, seed by seed; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=0, help="0: those of the study")
    asked = parser.parse_args()
    asked.output.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for seed in asked.seeds:
        rows = [
            row.replace(
                seed=seed,
                data_root=asked.data_root,
                rounds=asked.rounds or row.federation.rounds_per_task,
            )
            for row in read_study(STUDY).variants
        ]
        rounds = rows[0].federation.rounds_per_task
        done = asked.output / f"rounds-{rounds}-seed-{seed}.json"
        if not done.exists():
            done.write_text(json.dumps(one_seed(rows), indent=1), encoding="utf-8")
        for label, measures in json.loads(done.read_text(encoding="utf-8")).items():
            found[label].append(measures)
    print("| row |", " | ".join(COLUMNS.values()), "|")
    print("| --- |", " | ".join("---" for _ in COLUMNS), "|")
    for label, runs in found.items():
        cells = [
            format_mean_std(mean_and_std(one[name] for one in runs)) for name in COLUMNS
        ]
        print("|", label, "|", " | ".join(cells), "|")


def one_seed(rows: list[RunConfig]) -> dict[str, dict[str, float]]:
    """Return by row what a run's summary says of it."""
    runs = [Built(resolve(row)) for row in rows]
    clients, found = all_clients(runs[0]), {}
    for number, branch in enumerate(run_rounds(runs, clients)):
        accuracy = mean_accuracy(runs[0], clients, branch)
        for label, server in branch.servers.items():
            measures = discovery(server.frames).model_dump()
            found[label] = {"accuracy": accuracy, "run": number, **measures}
    return {row.run.title: found[row.run.title] for row in rows}


def run_rounds(runs: list[Built], clients: dict[int, Client]) -> list[Branch]:
    """Return the servers after the last round, by what they would send."""
    plan = runs[0].scenario
    schedule = runs[0].schedule
    network = runs[0].model()
    start = snapshot(network, network.shared_names())
    servers = {}
    for run in runs:
        strategy = cast(ConceptMatching, run.strategy())
        assert plan.stream is not None  # concepts are hidden
        state = strategy.init(start)
        servers[run.config.title] = Server(strategy, state, plan.stream, [])
    states = {number: one.learner.init() for number, one in clients.items()}
    branches = split(Branch(servers, states), schedule.stage(1))
    for number in range(1, schedule.num_rounds + 1):
        stages = {
            client: schedule.stage(number, client)
            for client in schedule.participants(number)
        }
        after = []
        for branch in branches:
            train_round(branch, clients, stages, schedule.stage(number))
            after += split(branch, schedule.stage(number))
        branches = after
        print(f"round {number}: {len(branches)} different runs", flush=True)
    return branches


def all_clients(run: Built) -> dict[int, Client]:
    """Return every client of the run."""
    found = {}
    for number in range(run.config.scenario.clients):
        samples = client_data(run, place_of(number), tasks=1)
        learner = run.learner(number)
        found[number] = Client(cast(ConceptMatchingLearner, learner), samples)
    return found


def train_round(
    branch: Branch,
    clients: dict[int, Client],
    stages: dict[int, TaskStage],
    stage: TaskStage,
) -> None:
    """Train one round, and let every server of the branch answer."""
    one = next(iter(branch.servers.values()))
    states, updates = dict(branch.states), {}
    for number, at in stages.items():
        client = clients[number]
        received = one.strategy.configure_train(one.state, at, number)
        states[number], updates[number] = client.learner.train(
            states[number], received, at, client.samples.training(at)
        )
    branch.states = states
    for server in branch.servers.values():
        for update in updates.values():
            server.strategy.check_update(server.state, update)
        server.state = server.strategy.aggregate_train(server.state, stage, updates)
        found = server.strategy.diagnostics(server.state, stage, {})["map"]
        assert isinstance(found, Points)
        server.frames += [with_truth(frame, server.stream) for frame in found.frames]


def split(branch: Branch, stage: TaskStage) -> list[Branch]:
    """Return a branch for each of the different payloads that servers would send."""
    apart: dict[str, Branch] = {}
    for label, server in branch.servers.items():
        sent = fingerprint(
            server.strategy.configure_train(server.state, stage, client=0)
        )
        own = apart.setdefault(sent, Branch({}, branch.states))
        own.servers[label] = server
    return list(apart.values())


def fingerprint(payload: Payload) -> str:
    """Return a digest of every name and every bit of a payload of dense tensors."""
    digest = hashlib.sha256()
    for group, arrays in sorted(payload.items()):
        for name, tensor in sorted(arrays.items()):
            digest.update(f"{group}/{name} {tensor.dtype} {tensor.shape}".encode())
            digest.update(np.asarray(tensor).tobytes())
    return digest.hexdigest()


def mean_accuracy(run: Built, clients: dict[int, Client], branch: Branch) -> float:
    """Return the mean accuracy over clients and concepts, as a run tests them."""
    schedule = run.schedule
    stage = schedule.stage(schedule.num_rounds)
    one = next(iter(branch.servers.values()))
    found = []
    for number, client in clients.items():
        sent = one.strategy.configure_train(one.state, stage, number)
        state = branch.states[number]
        for concept in range(run.config.scenario.tasks):
            recent = client.samples.examples(concept, "valid")
            known = client.learner.select_model(state, sent, recent)
            predict = partial(client.learner.predict, state, known, stage.task)
            tests = client.samples.examples(concept, "test")
            found.append(score(predict, tests).accuracy)
    return statistics.fmean(found)


if __name__ == "__main__":
    main()
