"""Write states that the version of fcl-flower on the path keeps of two tiny runs.

git worktree add OLD COMMIT
PYTHONPATH=OLD python tests/support/write_states.py tests/storage/states_0_2_0.json

Those of 0.2.0 are of commit 34d01568. One run is finished, the other one ended in its
second task.
"""

import argparse
import base64
import contextlib
import io
import json
import tarfile
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np
from torch import nn

import fcl_flower as fcl

RUNS = {
    "fedweit": {"strategy": {"lambda1": 0.0}},
    "fedavg": {"head": "single", "wire_dtype": "int8"},
}
"""Settings by strategy: one whose clients keep much, one with copies of models."""
LAST = 3
"""Round after which a run ends, of two for each of two tasks."""
LEFT_OUT = ("report.html", "flower.log")
STORES = (
    "fcl_flower.federation.transport.state_store",
    "fcl_flower.federation.checkpoint",
    "fcl_flower.rounds.checkpoint",
)


class Tiny(nn.Module):
    """Images of 2 x 2 pixels to three features."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x.flatten(1)).tanh()


def arrays(seed=3):
    """Draw images of 2 x 2 pixels in four classes: train and test."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.standard_normal((4, 4))
    parts = []
    for samples in (40, 20):
        labels = np.repeat(np.arange(4), samples)
        rows = centres[labels] + 0.8 * rng.standard_normal((len(labels), 4))
        parts += [
            np.clip(128 + 20 * rows, 0, 255).astype(np.uint8).reshape(-1, 2, 2),
            labels,
        ]
    return parts


def run(strategy, folder, /, **more):
    """Run to the end, or go on with ``resume``."""
    settings = {"clients": 2, "tasks": 2, "rounds": 2, "classes_per_task": 2}
    return fcl.simulate(
        strategy,
        **{"data": arrays(), "model": Tiny, "output": folder, "progress": False},
        **{**settings, "seed": 7, "learning_rate": 0.05, "data_root": "/runs"},
        **{**RUNS[strategy], **more},
    )


class EndedError(BaseException):
    """The process ends."""


def end_after(number):
    """Let a run end as soon as its server has the checkpoint of a round."""
    for name in STORES:
        with contextlib.suppress(ImportError):
            store = import_module(name).FolderStateStore
            save = store.save

            def save_and_end(self, state, server_round, *more, save=save):
                save(self, state, server_round, *more)
                if self._folder.name == "checkpoint" and server_round == number:
                    raise EndedError

            store.save = save_and_end


def pack(folder):
    """Give the files below a folder as base 64 of a compressed archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in LEFT_OUT:
                archive.add(path, str(path.relative_to(folder)))
    return base64.encodebytes(made.getvalue()).decode().splitlines()


def unpack(lines, folder):
    """Write what `pack` gave."""
    content = io.BytesIO(base64.b64decode("".join(lines)))
    with tarfile.open(fileobj=content) as archive:
        archive.extractall(folder, filter="data")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        for strategy in RUNS:
            run(strategy, here / "finished" / strategy)
        end_after(LAST)
        for strategy in RUNS:
            with contextlib.suppress(EndedError):
                run(strategy, here / "ended" / strategy)
        for file in here.glob("*/*/config.toml"):
            file.write_text(file.read_text().replace(place, "/runs"))
        kept = {"version": fcl.__version__, "files": pack(here)}
    given.output.write_text(json.dumps(kept, indent=0) + "\n")


if __name__ == "__main__":
    main()
