"""The arithmetic alone: one resident model that trains one user after the other.

python bare.py DATA USERS IMAGES COHORT ROUNDS

Weights are copied in place, pictures are tensors from the start, a sum is kept of what
users have learned, and nothing else is done: what a simulation costs above this is its
own. The last line that is printed says what was done, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from simple_cnn import BATCH_SIZE, LEARNING_RATE, sgd, whole
from torch.nn.functional import cross_entropy
from user_samples import user_samples


def main() -> None:
    """Train, and say how much."""
    data, *counts = sys.argv[1:]
    users, images, cohort, rounds = map(int, counts)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    samples = user_samples(Path(data), users, images)
    model = whole()
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    visits = steps = seen = 0
    loss = torch.zeros(())
    for _ in range(rounds):
        total = [torch.zeros_like(weight) for weight in start]
        for user in rng.choice(users, cohort, replace=False):
            x, y = samples[user]
            with torch.no_grad():
                torch._foreach_copy_([*weights], start)
            optimizer = sgd(weights, LEARNING_RATE)
            for batch in torch.split(torch.randperm(len(y)), BATCH_SIZE):
                loss = cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps += 1
                seen += len(batch)
            with torch.no_grad():
                torch._foreach_add_(total, [*weights])
            visits += 1
        start = [weight / cohort for weight in total]
    work = {"visits": visits, "samples": seen, "steps": steps, "loss": loss.item()}
    print(json.dumps(work))


if __name__ == "__main__":
    main()
