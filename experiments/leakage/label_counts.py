"""How many samples of each class has a client? The bias of its head has moved so.

The gradient of a class's bias is the sum over samples of the probability that the model
gives it, less one for each sample that is of it (Wainakh et al., PETS 2022,
https://arxiv.org/abs/2105.09369).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from watched import WatchedRun

BIAS = "heads.0.bias"


def of_fedavg(seed: int) -> Mapping[str, float]:
    """Return how well the first update of each client tells its label distribution."""
    clients = 5
    run = WatchedRun(
        **{"clients": clients, "tasks": 1, "classes_per_task": 10, "rounds": 1},
        **{"dataset": "digits", "model": "small", "strategy": "fedavg", "seed": seed},
        scenario={"name": "class-incremental", "split": "dirichlet:0.5"},
    )
    counts = np.array(
        [
            np.bincount(run.examples(client, 0, "train").y.numpy(), minlength=10)
            for client in range(clients)
        ]
    )
    moved = np.array(
        [
            np.asarray(one.sent["base"][BIAS]) - np.asarray(one.received["base"][BIAS])
            for one in map(run.last, range(clients))
        ]
    )
    total = counts.sum(1)
    mean = np.average(moved, 0, weights=total)
    return {
        "its update": _correlation(moved, counts),
        "the mean": _correlation([mean] * clients, counts),
        "the mean, of everybody's counts": _correlation([mean], [counts.sum(0)]),
        "most frequent class found in its update": float(
            (moved.argmax(1) == counts.argmax(1)).mean()
        ),
    }


def _correlation(moved: Sequence[np.ndarray], counts: Sequence[np.ndarray]) -> float:
    """Return Pearson's correlation over classes, the mean over clients."""
    pairs = zip(moved, counts, strict=True)
    return float(np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]))
