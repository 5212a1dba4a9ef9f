"""How well SIT's scores know which tasks share labels; nothing is trained.

python experiments/fedseit_table2/selection.py --data-root DIR [--dataset trec]
    [--seeds 7 8]

The study's clients summarise their tasks in order, and the server scores them as in a
run. Printed by score: Spearman's correlation of the scores with the share of labels
that two tasks have in common, over all pairs; and, for tasks with more than three
candidates, the mean of this share over the three chosen, over all, and over the best
three.
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
from scipy.stats import spearmanr

from clients.fedseit import FedSeit as Learner
from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.types import ClientTask, Payload, TaskStage, client_tasks
from fcl_flower.rounds.client import client_data
from fcl_flower.rounds.place import place_of
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.study import read_study
from strategies.fedweit import FedWeit, FedWeitParams
from strategies.fedweit.maths import Overlap

STUDY = Path(__file__).with_name("lambda2-1.0.toml")
TITLE, COUNT = "fedseit sit-3", 3


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--dataset", default="trec")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8])
    asked = parser.parse_args()
    print("| score | seed | Spearman | shared with the three chosen | all | best |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seed in asked.seeds:
        for overlap in get_args(Overlap)[:2]:
            found = measured(asked.data_root, asked.dataset, seed, overlap)
            cells = [f"{found[0]:.2f}", *(f"{share:.3f}" for share in found[1:])]
            print("|", " | ".join([overlap, str(seed), *cells]), "|")


def measured(
    root: str, dataset: str, seed: int, overlap: Overlap
) -> tuple[float, float, float, float]:
    """Return the correlation, and the mean share of labels of three choices."""
    (row,) = (v for v in read_study(STUDY).variants if v.run.title == TITLE)
    run = Built(resolve(row.replace(data_root=root, datasets=dataset, seed=seed)))
    plan = run.scenario
    learners, samples = {}, {}
    for client in range(run.config.scenario.clients):
        samples[client] = client_data(run, place_of(client), plan.num_tasks)
        network = run.network(samples[client].vectors)
        learner = run.learner(client, network)
        assert isinstance(learner, Learner)
        learners[client] = learner
    params = FedWeitParams(knowledge=f"sit:{COUNT}", overlap=overlap)
    server = FedWeit(params, ServerContext(seed))
    state: Payload = {}
    scores, shares = [], []
    choices: list[tuple[float, float, float]] = []
    for task in range(plan.num_tasks):
        stage = TaskStage(task + 1, task, starts_task=True, ends_task=True)
        answers = {
            client: learner.answer_query({}, {}, stage, samples[client].training(stage))
            for client, learner in learners.items()
        }
        state = server.aggregate_query(state, stage, answers)
        for client in learners:
            new = ClientTask(client, task)
            labels = set(plan.clients[client][task].class_names)
            common = {}
            for other in client_tasks(state, "adapters"):
                if other.client == client:
                    continue
                theirs = plan.clients[other.client][other.task].class_names
                common[other] = len(labels & set(theirs)) / len(labels)
            told = state[new.group("meta/overlap")]
            for other, share in common.items():
                scores.append(float(np.asarray(told[f"{other.client}/{other.task}"])))
                shares.append(share)
            if len(common) > COUNT:
                chosen = server.chosen(state, stage, client)
                picked = [common[other] for other in chosen]
                every = list(common.values())
                best = sorted(every)[-COUNT:]
                choices.append((fmean(picked), fmean(every), fmean(best)))
        state = {**state, **{f"adapters/{client}/{task}": {} for client in learners}}
    got, every, best = np.mean(choices, axis=0).tolist()
    return float(spearmanr(scores, shares).statistic), got, every, best


if __name__ == "__main__":
    main()
