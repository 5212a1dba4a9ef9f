"""The arithmetic alone, on a device: one network trains one user after another.

python bare.py DATA NETWORK DEVICE USERS IMAGES ROUNDS

DATA is the file that `users.write_users` wrote. Weights are copied in place, images are
on the device from the start, and a mean is kept of what users have learned. The last
line that is printed has the median seconds of a round after the first, as JSON.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from fcl_flower.data.images import to_tensor
from fcl_flower.models.build import create_model

BATCH_SIZE = 10
LEARNING_RATE = 0.01
CLASSES = 10


def main() -> None:
    """Train, and say how long it took."""
    data, network, device, *counts = sys.argv[1:]
    users, images, rounds = map(int, counts)
    torch.set_num_threads(1)
    model = create_model(network, tasks=1, classes=CLASSES, single_head=True, seed=0)
    model = model.to(device)
    with np.load(Path(data)) as file:
        x = to_tensor(file["x_train"], model.input_shape).to(device)
        y = torch.from_numpy(file["y_train"]).to(device)
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]
    loss = torch.zeros((), device=device)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        total = [torch.zeros_like(weight) for weight in start]
        for user in range(users):
            with torch.no_grad():
                torch._foreach_copy_([*weights], start)
            optimizer = torch.optim.SGD(weights, lr=LEARNING_RATE, fused=True)
            rows = user * images + torch.randperm(images)
            for batch in torch.split(rows.to(device), BATCH_SIZE):
                loss = cross_entropy(model(x[batch], 0), y[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, [*weights])
        start = [weight / users for weight in total]
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    main()
