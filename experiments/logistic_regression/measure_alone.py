"""Logistic regression on the frozen features of a study: what exact heads must beat.

    python experiments/logistic_regression/measure_alone.py STUDY.toml --data-root DIR

Each task alone, as scikit-learn does it; its strength is the one with which most of the
task's validation samples are answered rightly, and both kinds of samples are fitted
then, as exact heads fit them. Prints a line for each seed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression

from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.examples import Examples, InputSpec, task_data
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.study import read_study
from fcl_flower.training.feature_cache import frozen_features

STRENGTHS = (1.0, 10.0, 100.0, 1000.0, 10000.0)
"""scikit-learn's C: the larger, the less the weights are drawn towards 0."""


def accuracy(config: RunConfig) -> float:
    """Return the fraction of right answers, mean over the tasks of all clients.

    Args:
        config: of a run whose tasks and whose frozen network are taken.
    """
    run = Built(resolve(config))
    plan = run.scenario
    network = run.network().eval()
    form = InputSpec(network.input_shape, False, run.tokenizer)

    def known(examples: Examples) -> tuple[npt.NDArray[np.float64], list[int]]:
        with torch.no_grad():
            x = network.body(frozen_features(network, examples.x))
        unit = torch.nn.functional.normalize(x.double())
        return unit.numpy(), examples.y.tolist()

    found = []
    for client, tasks in enumerate(plan.clients):
        for task in range(len(tasks)):
            data = task_data(plan, client, task, form)
            train, valid, test = map(known, (data.train, data.valid, data.test))
            found.append(_best(train, valid).score(*test))
    return float(np.mean(found))


def _best(
    train: tuple[npt.NDArray[np.float64], list[int]],
    valid: tuple[npt.NDArray[np.float64], list[int]],
) -> LogisticRegression:
    def score(strength: float) -> float:
        return float(_model(strength).fit(*train).score(*valid))

    features, labels = np.concatenate([train[0], valid[0]]), train[1] + valid[1]
    return _model(max(STRENGTHS, key=score)).fit(features, labels)


def _model(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, max_iter=1000)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the accuracy for each seed of a study, and their mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--dataset", default="")
    given = parser.parse_args(arguments)
    study = read_study(given.study)
    config = study.variants[0].replace(data_root=given.data_root)
    if given.dataset:
        config = config.replace(datasets=given.dataset)
    found = []
    for seed in study.seeds:
        found.append(accuracy(config.replace(seed=seed)))
        print(f"seed {seed}: {found[-1]:.4f}", flush=True)
    spread = np.std(found, ddof=1) if len(found) > 1 else 0.0
    print(f"{np.mean(found):.3f} ± {spread:.3f}")


if __name__ == "__main__":
    main()
