"""The same federation by pfl-research (Apple), with its own simulation.

python with_pfl.py DATA USERS IMAGES COHORT ROUNDS

Run by a Python that has pfl and torch; nothing of ours is needed. As in pfl's own
benchmark, but that nothing is evaluated after the first round.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from simple_cnn import BATCH_SIZE, LEARNING_RATE, sgd, whole
from torch.nn.functional import cross_entropy
from user_samples import user_samples


class Counted(torch.nn.Module):
    """The network with the two functions that pfl asks for; counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = whole()
        self.steps = self.samples = 0
        self.last = torch.zeros(())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of a training batch."""
        self.train()
        self.steps += 1
        self.samples += len(y)
        self.last = cross_entropy(self.net(x), y)
        return self.last

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> Mapping[str, Weighted]:
        """Return what pfl measures of a user before its first round, and only then."""
        self.eval()
        total = cross_entropy(self.net(x), y, reduction="sum").item()
        return {"loss": Weighted(total, len(y))}


def main() -> None:
    """Train, and say how much."""
    data, *counts = sys.argv[1:]
    users, images, cohort, rounds = map(int, counts)
    torch.manual_seed(0)
    np.random.seed(0)  # from which pfl draws
    samples = dict(enumerate(user_samples(Path(data), users, images)))
    sampler = get_user_sampler("random", range(users))
    training = FederatedDataset.from_slices(samples, sampler)
    net = Counted()
    model = PyTorchModel(net, sgd, torch.optim.SGD(net.parameters(), 1.0))
    backend = SimulatedBackend(training, training, [WeightByDatapoints()])
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=cohort,
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE,
            local_num_epochs=1,
            local_batch_size=BATCH_SIZE,
        ),
        NNEvalHyperParams(local_batch_size=images),
        [],
    )
    work = {
        "visits": rounds * cohort,
        "samples": net.samples,
        "steps": net.steps,
        "loss": net.last.item(),
    }
    print(json.dumps(work))


if __name__ == "__main__":
    main()
