"""What foreign adapters cost FedSeIT: an epoch with K of them against one without.

python experiments/fedseit_epoch/benchmark.py [--dataset NAME --data-root DIR]

One client, one task, one thread. Rounds of five epochs with every K follow each other
in turn; a ratio is the median of the ratios within a turn, so that a noisy machine hits
both sides alike. Seconds are those of the processor. A round is everything that a client
does between two messages, but the reading of its memory; its seconds are divided by its
epochs. The first round of each K, which computes the extremes of the documents, is
reported by itself. The last line is the network without any of this: Kim's, of torch's
own layers, with Adam.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from fcl_flower import assembly
from fcl_flower.config import RunConfig
from fcl_flower.data.tasks import task_data
from fcl_flower.sparse import SparseArray
from fcl_flower.tensors import snapshot
from fcl_flower.types import Payload, Stage

FOREIGN = (0, 1, 3, 5, 10)
DENSITY = 0.05
EPOCHS = 5


def main() -> None:
    """Print a table: documents and words of the task, then a line for each K."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="stdlib-docs")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--word-vectors", default="")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--set", default="", help="settings of fedseit")
    given = parser.parse_args()
    config = assembly.completed(
        RunConfig(
            strategy="fedseit",
            dataset=given.dataset,
            data_root=given.data_root,
            word_vectors=given.word_vectors,
            clients=3,
            tasks=5,
            epochs=EPOCHS,
            set=given.set,
        )
    )
    plan = assembly.scenario(config)
    learner = assembly.learner(config, plan, 0)
    data = task_data(
        plan,
        0,
        0,
        data_root=Path(assembly.data_root(config)),
        input_shape=learner.model.input_shape,
        single_head=False,
        vectors=assembly.vectors(config),
    )
    words = (data.train.x != 0).sum(1).double()
    print(
        f"{config.dataset}: {len(words)} documents of {words.mean():.1f} words, "
        f"{learner.model.body.table.shape[1]} dimensions, batches of {config.batch_size}"
    )
    server = assembly.strategy(config)
    start = snapshot(learner.model, learner.model.shared_names())
    base = server.broadcast(server.init(start), Stage(1, 0, True, False), 0)
    rng = np.random.default_rng(0)
    states: dict[int, Payload] = {}
    first: dict[int, float] = {}
    for count in FOREIGN:
        foreign = {f"adapters/{c + 1}/0": adapter(base, rng) for c in range(count)}
        begun = time.process_time()
        states[count], _ = learner.train(
            learner.init(), {**base, **foreign}, Stage(1, 0, True, False), data
        )
        first[count] = time.process_time() - begun
    seconds: dict[int, list[float]] = {count: [] for count in FOREIGN}
    for turn in range(given.turns):
        stage = Stage(turn + 2, 0, False, False)
        for count in FOREIGN:
            begun = time.process_time()
            states[count], _ = learner.train(states[count], {"base": {}}, stage, data)
            seconds[count].append((time.process_time() - begun) / EPOCHS)
    print("| K | first round, s | epoch, s | ratio to K = 0 | range of the ratio |")
    print("| --- | --- | --- | --- | --- |")
    for count in FOREIGN:
        ratios = [k / none for k, none in zip(seconds[count], seconds[0], strict=True)]
        print(
            f"| {count} | {first[count]:.2f} | {statistics.median(seconds[count]):.3f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to "
            f"{max(ratios):.2f} |"
        )


def adapter(base: Payload, rng: np.random.Generator) -> dict[str, SparseArray]:
    """Return an adapter of random numbers, as sparse as trained ones are."""
    found = {}
    for name, weight in base["base"].items():
        kept = rng.random(weight.shape) < DENSITY
        values = rng.normal(0, 0.02, weight.shape).astype(np.float32)
        found[name] = SparseArray.of_mask(values, kept)
    return found


if __name__ == "__main__":
    main()
