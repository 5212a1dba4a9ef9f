"""Hierarchical knowledge consolidation: what adapters of some tasks have in common.

Yoon et al., ICLR 2020, https://arxiv.org/abs/1902.09432, as the authors' code has it.
K-means finds groups of tasks by their tau; then, entry by entry of a group,

    max tau_i - min tau_i <= beta:  sigma~ = (max tau_i + min tau_i) / 2,  tau_i = 0,
    elsewhere:                      sigma~ = 0,                  tau_i stays.

Each layer is clustered by itself. There centres go on from those of the last time;
here k-means++ draws them anew.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from clients.fedweit.task_summary import cluster_labels
from fcl_flower.core.schedule import derive
from fcl_flower.core.types import Array, Arrays, SparseArray
from fcl_flower.training.tensors import dense


def split_group(adapters: Sequence[Array], gap: float) -> tuple[Array, list[Array]]:
    """Return sigma~ of a group, and what is left of the tau of each of its tasks.

    Args:
        adapters: tau of each task, all of one shape; at least one.
        gap: beta, at least 0.
    """
    stacked = np.stack(adapters)
    high, low = stacked.max(0), stacked.min(0)
    alike = high - low <= gap
    local = np.where(alike, (high + low) / 2, 0)
    return local, [np.where(alike, 0, adapter) for adapter in adapters]


def group_tasks(adapters: Sequence[Array], count: int, seed: int) -> list[int]:
    """Return the group of each task, counted from 0.

    Args:
        adapters: tau of each task, all of one shape; at least one.
        count: groups, at least 1; there are never more than tasks.
        seed: of the clustering.
    """
    points = np.stack([adapter.reshape(-1) for adapter in adapters])
    # K-means sees no more of a point than its distances, which a rotation leaves as
    # they are: in this one a point has as many coordinates as there are tasks.
    rotated = np.asarray(np.linalg.qr(points.T, mode="r")).T
    labels = cluster_labels(rotated, min(count, len(points)), "k-means", seed)
    return [int(label) for label in labels]


def consolidate(
    adapters: Mapping[int, Arrays], count: int, gap: float, seed: int
) -> dict[str, Arrays]:
    """Return the groups of a client's state that change.

    Args:
        adapters: of each task, with what its group had before.
        count: groups of tasks, at least 1.
        gap: beta, at least 0.
        seed: of the clustering.

    Returns:
        ``adapters/T``: tau, sparse; ``local/G``: sigma~ of the tensors for which group
        G has several tasks, sparse; ``meta/groups/T``: the task's group, by tensor.
    """
    tasks = list(adapters)
    changed: dict[str, dict[str, Array | SparseArray]] = {
        f"{kind}/{task}": {} for kind in ("adapters", "meta/groups") for task in tasks
    }
    for number, name in enumerate(adapters[tasks[0]]):
        values = [dense(adapters[task][name]) for task in tasks]
        groups = group_tasks(values, count, derive(seed, "layer", number))
        for group in sorted(set(groups)):
            members = [n for n, found in enumerate(groups) if found == group]
            left = [values[n] for n in members]
            if len(members) > 1:
                local, left = split_group(left, gap)
                kept = changed.setdefault(f"local/{group}", {})
                kept[name] = SparseArray.of_nonzero(local)
            for n, tau in zip(members, left, strict=True):
                changed[f"adapters/{tasks[n]}"][name] = SparseArray.of_nonzero(tau)
                changed[f"meta/groups/{tasks[n]}"][name] = np.asarray(group)
    return dict(changed)
