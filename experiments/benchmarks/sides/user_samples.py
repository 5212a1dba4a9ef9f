"""The users' pictures as tensors: NumPy and torch alone."""

from pathlib import Path

import numpy as np
import torch


def user_samples(
    data: Path, users: int, images: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each user's images, (images, 3, 32, 32), and labels, (images,).

    Args:
        data: the file of `users.write_users`.
        users: that are in it.
        images: of each.
    """
    with np.load(data) as file:
        x, y = torch.from_numpy(file["x_train"]), torch.from_numpy(file["y_train"])
    pictures = x.permute(0, 3, 1, 2).float().div_(255)
    return [
        (pictures[at : at + images].clone(), y[at : at + images])
        for at in range(0, users * images, images)
    ]
