"""Was a sample in a class's sum that `analytic` sends? It lies nearer to it then."""

from collections.abc import Mapping

import numpy as np
from sklearn.metrics import roc_auc_score
from watched import WatchedRun

NUMBERS = (1, 2, 3, 5, 10, 20, 50)


def of_analytic(seed: int) -> Mapping[str, float]:
    """Return the AUC by the number of samples of the class, the mean over classes.

    The attacker knows features of samples, and the sum and number of a class. With a
    sum over several clients nothing changes, if one of them alone has the class.
    """
    run = WatchedRun(
        **{"clients": 2, "tasks": 1, "classes_per_task": 10, "rounds": 1},
        **{"dataset": "digits", "model": "small", "strategy": "analytic"},
        **{"scenario": "class-incremental", "seed": seed},
    )
    learner, _ = run.learner(0)
    mine, others = (run.examples(0, 0, split) for split in ("train", "test"))
    h, strangers = learner.features(mine.x), learner.features(others.x)
    y, their = mine.y.numpy(), others.y.numpy()
    rng = np.random.default_rng(seed)
    scores: dict[int, list[float]] = {}
    for label in np.unique(y):
        for number in NUMBERS:
            members = rng.permutation(np.flatnonzero(y == label))[:number]
            if len(members) < number:
                continue
            centre = h[members].mean(0)
            both = np.concatenate([h[members], strangers[their == label]])
            truth = np.arange(len(both)) < number
            near = -np.linalg.norm(both - centre, axis=1)
            scores.setdefault(number, []).append(roc_auc_score(truth, near))
    return {str(number): float(np.mean(of)) for number, of in scores.items()}
