"""Whether FedET's Enhancers add anything under an exact head.

python experiments/analytic/enhancers.py RUN...

RUN is the folder of a finished run of FedET on texts, with MiniLM. An exact
discriminant is solved from the training and validation samples of all clients and
tasks, on features of the frozen encoder, of the run's Enhancers, or of both, and scored
on all test samples. The Enhancers are the last ones, which have seen every task, and
their features of old samples are computed anew: no federation could have these sums, so
that the last two columns are a bound for what the Enhancers are worth. Prints FedET's
own accuracy first.
"""

import argparse
import json
from pathlib import Path
from typing import cast, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.examples import Examples, InputSpec, SplitName, concat
from fcl_flower.data.examples import task_examples as examples_of
from fcl_flower.data.scenarios.plan import Scenario
from fcl_flower.models.adapters import EnhancedTransformer
from fcl_flower.models.encoder import Transformer
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import load
from strategies.analytic.heads import HeadSums, solve
from strategies.analytic.sums import add_up, exact

CHUNK = 64
COLUMNS = {
    "last block": ["frozen/5"],
    "last two blocks": ["frozen/4", "frozen/5"],
    "Enhancers": ["enhanced"],
    "last two blocks and Enhancers": ["frozen/4", "frozen/5", "enhanced"],
}


def main() -> None:
    """Print a table, a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="+")
    print(f"| run | FedET | {' | '.join(COLUMNS)} |")
    print("| --- " * (2 + len(COLUMNS)) + "|")
    for folder in parser.parse_args().run:
        summary = json.loads((folder / "summary.json").read_text())
        found = [summary["sample_accuracy"][-1], *accuracies(folder)]
        cells = " | ".join(f"{value:.3f}" for value in found)
        print(f"| {folder.name} | {cells} |", flush=True)


def accuracies(folder: Path) -> list[float]:
    """Return the accuracy of an exact head for each column."""
    run = Built(resolve(RunConfig.read(folder / "config.toml", "run")))
    torch.set_num_threads(run.config.training.threads)
    plan = run.scenario
    saved = FolderStateStore(folder / "checkpoint").load(before=2**31)
    if saved is None:
        raise SystemExit(f"{folder}: no checkpoint")
    tokenizer = run.tokenizer
    form = InputSpec(run.spec.input_shape, True, tokenizer)
    network = run.model()
    body = cast(EnhancedTransformer, network.body.eval())
    splits = {split: everything(plan, split, form) for split in get_args(SplitName)}
    known: dict[str, dict[str, Tensor]] = {
        split: frozen(body, examples.x) for split, examples in splits.items()
    }
    groups = sorted(g for g in saved.state if g.startswith("enhancers/"))
    for split, examples in splits.items():
        parts = []
        for group in groups:
            load(network, saved.state[group])
            parts.append(by_chunks(body, examples.x))
        known[split]["enhanced"] = torch.cat(parts, 1) / len(parts) ** 0.5
    found = []
    for names in COLUMNS.values():
        h = {
            split: torch.cat([of[name] for name in names], 1).numpy()
            / len(names) ** 0.5
            for split, of in known.items()
        }
        y = {split: examples.y.numpy() for split, examples in splits.items()}
        size = (plan.num_labels, h["train"].shape[1])
        train, valid = (
            add_up([exact(h[s].astype(np.float64), y[s], size[0])], *size)
            for s in ("train", "valid")
        )
        (head,), *_ = solve([HeadSums(train, valid)], "discriminant", 0.0)
        logits = h["test"] @ head.weight.T + head.bias
        found.append(float((logits.argmax(1) == y["test"]).mean()))
    return found


def everything(plan: Scenario, split: SplitName, form: InputSpec) -> Examples:
    """Return the samples of a split of all clients and tasks."""
    clients = range(len(plan.clients))
    return concat(
        [
            examples_of(plan, client, task, split, form)
            for client in clients
            for task in range(plan.num_tasks)
        ]
    )


@torch.no_grad()
def frozen(body: EnhancedTransformer, x: Tensor) -> dict[str, Tensor]:
    """Return the mean over tokens behind each block of the encoder alone."""
    enhancers = list(body.enhancers)
    parts: dict[str, list[Tensor]] = {}
    for enhancer in enhancers:
        enhancer.idle = True  # type: ignore[assignment]
    for start in range(0, len(x), CHUNK):
        hidden = body.enter(x[start : start + CHUNK])
        for number in range(len(body.blocks)):
            hidden = body.run(hidden, number, number + 1)
            of_block = normalize(body.pool(hidden))
            parts.setdefault(f"frozen/{number}", []).append(of_block)
    for enhancer in enhancers:
        enhancer.idle = False  # type: ignore[assignment]
    return {name: torch.cat(found) for name, found in parts.items()}


@torch.no_grad()
def by_chunks(body: Transformer, x: Tensor) -> Tensor:
    """Return what the Enhancers make of inputs, of length 1."""
    found = [body(x[start : start + CHUNK]) for start in range(0, len(x), CHUNK)]
    return normalize(torch.cat(found))


if __name__ == "__main__":
    main()
