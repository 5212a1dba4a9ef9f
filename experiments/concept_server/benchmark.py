"""Concept Matching's server: a round of N models, and the same with scikit-learn.

python experiments/concept_server/benchmark.py [--clients 20,80,320,1000]

Models of LeNet's size in five planted groups lie as rows of one memory-mapped matrix of
float32 in a temporary file, which neither side has to copy or to load. Both sides read
it in a process of their own:

* ours: `ConceptMatching.aggregate_train` with its defaults, the whole of it;
* plain: scikit-learn on the matrix of all weights: k-means and silhouette for 2 to 5
  clusters, the mean of each cluster of the best, and their distances to the concept
  models. It is spared what else our side does: where each client started, and the map.

Seconds are those of the processor. Peak memory is the most that was resident, the rows
of the file included, which the system may drop again; memory above the models is what
the process itself asked for during the round, sampled every five milliseconds.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, silhouette_score

from fcl_flower.algorithms.base import ServerContext
from fcl_flower.core.types import Arrays, TaskStage, Update
from strategies.concept_matching import ConceptMatchingParams
from strategies.concept_matching.maths import Labels
from strategies.concept_matching.server import (
    ROUND,
    ConceptMatching,
)

CONCEPTS = 5
SHAPES: dict[str, tuple[int, ...]] = {
    "conv1": (20, 3, 5, 5),
    "conv2": (50, 20, 5, 5),
    "fc1": (3200, 800),
    "fc2": (800, 500),
    "head": (500, 30),
    **{f"bias{i}": (n,) for i, n in enumerate((20, 50, 800, 500, 30))},
}
WEIGHTS = sum(map(prod, SHAPES.values()))
BASE, GROUP, CLIENT = 0.02, 0.01, 0.005
"""Standard deviations: of a network, of a concept from it, of a client from that."""

Matrix = npt.NDArray[np.float32]


def main() -> None:
    """Print a Markdown table, a line for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="20,80,320,1000")
    parser.add_argument("--plain-limit", type=int, default=320)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(measured(given.side, int(given.clients), given.file)))
        return
    print(
        "| clients | models | seconds: ours | plain | ratio | above the models: ours "
        "| plain | ratio | peak: ours | plain | ARI: ours | plain |\n"
        f"|{' --- |' * 12}"
    )
    for clients in map(int, given.clients.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "models"
            write_models(file, clients)
            ours = in_a_process("ours", clients, file, given.threads)
            plain = None
            if clients <= given.plain_limit:
                plain = in_a_process("plain", clients, file, given.threads)
        print(line(clients, ours, plain), flush=True)


def write_models(file: Path, clients: int) -> None:
    """Write a row for each client and a last one for the network they started from."""
    rng = np.random.default_rng(0)

    def drawn(deviation: float) -> Matrix:
        return rng.standard_normal(WEIGHTS, np.float32) * np.float32(deviation)

    base = drawn(BASE)
    centres = [base + drawn(GROUP) for _ in range(CONCEPTS)]
    with file.open("wb") as rows:
        for group in groups(clients):
            rows.write((centres[group] + drawn(CLIENT)).tobytes())
        rows.write(base.tobytes())


def groups(clients: int) -> list[int]:
    """Return the planted group of each client."""
    return [client % CONCEPTS for client in range(clients)]


def in_a_process(side: str, clients: int, file: Path, threads: int) -> dict[str, float]:
    """Return what a process of its own measured for one side."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    command = [sys.executable, __file__, "--side", side, "--file", str(file)]
    done = subprocess.run(
        [*command, "--clients", str(clients)],
        env={**os.environ, **limits},
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measured(side: str, clients: int, file: str) -> dict[str, float]:
    """Run one side here; return seconds, gigabytes and the adjusted Rand index."""
    rows = np.memmap(file, np.float32, "r", shape=(clients + 1, WEIGHTS))
    above = Above()
    began = time.process_time()
    with above:
        labels = SIDES[side](np.asarray(rows[:-1]), np.asarray(rows[-1]))
    return {
        "seconds": time.process_time() - began,
        "above": above.most / 1e9,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "ari": adjusted_rand_score(groups(clients), labels),
    }


class Above:
    """Watches how much memory of its own the process gets beyond what it had."""

    def __init__(self) -> None:
        """Take what there is as nothing."""
        self.most = 0
        self._before = self._own()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, self._own() - self._before)

    def _own(self) -> int:
        """Return the bytes that are resident and belong to no file."""
        memory = psutil.Process().memory_info()
        return int(memory.rss - memory.shared)


def ours(rows: Matrix, base: Matrix) -> Labels:
    """Return the labels after a round of Concept Matching."""
    strategy = ConceptMatching(
        ConceptMatchingParams(concepts=CONCEPTS), ServerContext(0)
    )
    updates = {
        client: Update({"base": model(row)}, 100) for client, row in enumerate(rows)
    }
    state = strategy.aggregate_train(
        strategy.init(model(base)), TaskStage(1, 0, False, False), updates
    )
    return np.asarray(state[ROUND]["cluster"])


def plain(rows: Matrix, base: Matrix) -> Labels:
    """Return the labels of scikit-learn on all weights."""
    divisions: list[Labels] = [
        KMeans(count, n_init=10, random_state=0).fit_predict(rows)
        for count in range(2, CONCEPTS + 1)
    ]
    best = max(divisions, key=lambda labels: float(silhouette_score(rows, labels)))
    merged = np.stack([rows[best == j].mean(axis=0) for j in range(best.max() + 1)])
    cdist(merged, np.tile(base, (CONCEPTS, 1)), "cityblock")
    return best


SIDES: dict[str, Callable[[Matrix, Matrix], Labels]] = {"ours": ours, "plain": plain}


def model(row: Matrix) -> Arrays:
    """Return a row as tensors, without a copy."""
    ends = np.cumsum([prod(shape) for shape in SHAPES.values()])[:-1]
    return {
        name: part.reshape(shape)
        for (name, shape), part in zip(SHAPES.items(), np.split(row, ends), strict=True)
    }


def line(clients: int, ours: dict[str, float], plain: dict[str, float] | None) -> str:
    """Return a line of the table; a side that was not run has dashes."""

    def pair(name: str, form: str) -> list[str]:
        return [form.format(s[name]) if s else "-" for s in (ours, plain)]

    def ratio(name: str) -> str:
        return f"{plain[name] / ours[name]:.1f}" if plain else "-"

    cells = [
        str(clients),
        f"{clients * WEIGHTS * 4 / 1e9:.2f} GB",
        *pair("seconds", "{:.1f}"),
        ratio("seconds"),
        *pair("above", "{:.2f} GB"),
        ratio("above"),
        *pair("peak", "{:.2f} GB"),
        *pair("ari", "{:.2f}"),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
