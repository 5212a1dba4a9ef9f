"""What foreign adapters cost FedSeIT: an epoch with K of them against one without.

python experiments/fedseit_epoch/benchmark.py [--dataset NAME --data-root DIR]

One client, one task, one thread. Rounds of five epochs with every K follow each other
in turn; a ratio is the median of the ratios within a turn, so that a noisy machine hits
both sides alike. Seconds are those of the processor. A round is everything that a
client does between two messages, but the reading of its state; its seconds are divided
by its epochs. The first round of each K, which computes the extremes of the documents,
is reported by itself, and a second one is not counted. The last line is the same
network without federation, written with torch's own convolutions over padded batches.
"""

import argparse
import statistics
import time

import numpy as np
import torch

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.types import Payload, SparseArray, TaskStage
from fcl_flower.data.examples import InputSpec, TaskData, batches, task_data
from fcl_flower.models.words import DROPOUT, FILTERS, WIDTHS
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.loop import score
from fcl_flower.training.tensors import snapshot

FOREIGN = (0, 1, 3, 5, 10)
DENSITY = 0.05
EPOCHS = 5
PLAIN = "plain torch"


def main() -> None:
    """Print a table: documents and words of the task, then a line for each K."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="stdlib-docs")
    parser.add_argument("--data-root", default="")
    parser.add_argument("--word-vectors", default="")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument(
        "--set", default="", help="parameters of fedseit, as inside a TOML table"
    )
    given = parser.parse_args()
    run = Built(
        resolve(
            RunConfig.from_settings(
                strategy="fedseit",
                dataset=given.dataset,
                data_root=given.data_root,
                word_vectors=given.word_vectors,
                clients=3,
                tasks=5,
                epochs=EPOCHS,
                batch_size=64,
                lr_patience=0,  # a rate that falls ends the training
                **{"strategy.params": given.set},
            )
        )
    )
    plan = run.scenario
    learner = run.learner(0)
    form = InputSpec(
        learner.model.input_shape,
        single_head=False,
        tokenizer=run.word_vectors,
    )
    data = task_data(plan, 0, 0, form)
    words = (data.train.x != 0).sum(1).double()
    print(
        f"{given.dataset}: {len(words)} documents of {words.mean():.1f} words, "
        f"{learner.model.body.table.shape[1]} dimensions, batches of "
        f"{run.config.training.batch_size}"
    )
    server = run.strategy()
    start = snapshot(learner.model, learner.model.shared_names())
    base = server.configure_train(server.init(start), TaskStage(1, 0, True, False), 0)
    rng = np.random.default_rng(0)
    states: dict[int, Payload] = {}
    first: dict[int, float] = {}
    for count in FOREIGN:
        foreign = {f"adapters/{c + 1}/0": adapter(base, rng) for c in range(count)}
        begun = time.process_time()
        states[count], _ = learner.train(
            learner.init(), {**base, **foreign}, TaskStage(1, 0, True, False), data
        )
        first[count] = time.process_time() - begun
    plain = PlainCnn(learner.model.body.table, data.classes)
    seconds: dict[int | str, list[float]] = {count: [] for count in (*FOREIGN, PLAIN)}
    for turn in range(given.turns + 1):
        stage = TaskStage(turn + 2, 0, False, False)
        for count in FOREIGN:
            begun = time.process_time()
            states[count], _ = learner.train(states[count], {"base": {}}, stage, data)
            seconds[count].append((time.process_time() - begun) / EPOCHS)
        begun = time.process_time()
        plain.epoch(data, run.config.training.batch_size, turn)
        seconds[PLAIN].append(time.process_time() - begun)
    seconds = {count: found[1:] for count, found in seconds.items()}
    print("| K | first round, s | epoch, s | ratio to K = 0 | range of the ratio |")
    print("| --- | --- | --- | --- | --- |")
    for count, found in seconds.items():
        ratios = [k / none for k, none in zip(found, seconds[0], strict=True)]
        begun_with = f"{first[count]:.2f}" if count in first else ""
        print(
            f"| {count} | {begun_with} | {statistics.median(found):.3f} "
            f"| {statistics.median(ratios):.2f} | {min(ratios):.2f} to "
            f"{max(ratios):.2f} |"
        )


class PlainCnn(torch.nn.Module):
    """Kim's network of torch's own layers."""

    def __init__(self, table: torch.Tensor, classes: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding.from_pretrained(table, padding_idx=0)
        self.convs = torch.nn.ModuleList(
            torch.nn.Conv1d(table.shape[1], FILTERS, width) for width in WIDTHS
        )
        self.head = torch.nn.Linear(FILTERS * len(WIDTHS), classes)
        self.optimizer = torch.optim.Adam(self.parameters(), fused=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits of documents, padded to the longest of the batch."""
        x = x[:, : max(*WIDTHS, int((x != 0).sum(1).max()))]
        words = self.embedding(x).transpose(1, 2)
        pooled = [torch.relu(conv(words)).amax(2) for conv in self.convs]
        return self.head(torch.dropout(torch.cat(pooled, 1), DROPOUT, self.training))

    def epoch(self, data: TaskData, batch_size: int, seed: int) -> None:
        """Train for one epoch and validate."""
        self.train()
        for x, y in batches(data.train, batch_size, seed):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self(x), y).backward()
            self.optimizer.step()
        self.eval()
        score(self, data.valid)


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
