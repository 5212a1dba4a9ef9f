"""What the router costs a FedET run: read from the server's last checkpoint.

python experiments/fedet_text/routing.py RUN...

RUN is the folder of a finished run of FedET (of texts or images). Prints by task, over
the test samples of all clients: accuracy, the share of samples that reach a group which
knows their class, accuracy among these, and what accuracy would be if every sample went
to the best-scored group that knows its class.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from clients.fedet.client import KNOWN, NEVER, assign_group
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.examples import InputSpec, concat, task_examples
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.distillation import predict_logits
from fcl_flower.training.tensors import load
from strategies.fedet.trainer import Router


class Outcome(NamedTuple):
    """What became of each test sample of a task; all bool, shape (N,)."""

    right: npt.NDArray[np.bool_]
    reached: npt.NDArray[np.bool_]
    right_if_reached: npt.NDArray[np.bool_]


def main() -> None:
    """Print a table for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="+")
    for folder in parser.parse_args().run:
        print(folder)
        print("| task | samples | accuracy | routed well | there | all routed well |")
        print("| --- | --- | --- | --- | --- | --- |")
        found = outcomes(folder)
        for task, one in enumerate(found):
            print(row(str(task + 1), one))
        whole = Outcome(*(np.concatenate(part) for part in zip(*found, strict=True)))
        print(row("all", whole), flush=True)


def outcomes(folder: Path) -> list[Outcome]:
    """Return what becomes of the test samples of every task, in the order of tasks."""
    run = Built(resolve(RunConfig.read(folder / "config.toml", "run")))
    torch.set_num_threads(run.config.training.threads)
    plan = run.scenario
    saved = FolderStateStore(folder / "checkpoint").load(before=2**31)
    if saved is None:
        raise SystemExit(f"{folder}: no checkpoint")
    state = saved.state
    known = torch.from_numpy(np.asarray(state[KNOWN]["classes"]).astype(bool))
    tokenizer = run.tokenizer
    form = InputSpec(run.spec.input_shape, True, tokenizer)
    model = run.model()
    router = Router(model, state.get("router", {}), len(known))
    found = []
    for task in range(plan.num_tasks):
        tests = concat(
            [
                task_examples(plan, client, task, "test", form)
                for client in range(run.config.scenario.clients)
            ]
        )
        scores = router.scores(tests.x)
        guesses = []
        for group in range(len(known)):
            load(model, state[f"enhancers/{group}"])
            logits = predict_logits(model, tests.x).masked_fill(~known[group], NEVER)
            guesses.append(logits.argmax(1))
        right = torch.stack(guesses, 1) == tests.y[:, None]
        samples = torch.arange(len(tests.y))
        chosen = assign_group(scores, known.any(1))
        best = assign_group(scores, known.T[tests.y])
        found.append(
            Outcome(
                right[samples, chosen].numpy(),
                known[chosen, tests.y].numpy(),
                right[samples, best].numpy(),
            )
        )
    return found


def row(name: str, one: Outcome) -> str:
    """Return a row of the table."""
    there = one.right[one.reached].mean() if one.reached.any() else np.nan
    shares = (one.right.mean(), one.reached.mean(), there, one.right_if_reached.mean())
    cells = " | ".join(f"{share:.3f}" for share in shares)
    return f"| {name} | {len(one.right)} | {cells} |"


if __name__ == "__main__":
    main()
