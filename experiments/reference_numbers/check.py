"""Every strategy against the numbers that it is known to give, bit by bit.

``numbers.json`` holds, for each strategy, what a run of seed 1 on its default scenario
gave on CPU: accuracies, bytes of every kind in both directions, and a checksum of the
server's last state; synchronous, asynchronous where that is possible, and interrupted
and resumed. A change that is not meant to change results must leave them as they are::

    python experiments/reference_numbers/check.py             # minutes
    python experiments/reference_numbers/check.py --all       # an hour: whole encoders

Cases of strategies that train a whole encoder come in two sizes: ``small`` has two
clients, two tasks and few samples of each class.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.sparse import SparseArray
from fcl_flower.core.types import Array
from fcl_flower.federation.pacing.in_flight import CheckpointStore
from fcl_flower.federation.transport.state_store import FolderStateStore
from fcl_flower.results.run_folder import CHECKPOINT
from fcl_flower.runtime.in_process.grid import InProcessGrid
from fcl_flower.runtime.in_process.run import run_apps
from fcl_flower.setup.resolve import resolve

NUMBERS = Path(__file__).with_name("numbers.json")
WHOLE_ENCODERS = ("finetune", "replay", "replay-reg", "mtl", "fedet")


class InterruptedRunError(BaseException):
    """The server's process is gone, and blames no client for it."""


class MortalGrid(InProcessGrid):
    """A grid whose server dies after some number of training replies."""

    left = 0

    @override
    def reply(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type.startswith("train"):
            self.left -= 1
            if self.left < 0:
                raise InterruptedRunError
        return super().reply(message, context)


def main() -> None:
    """Compare the cases that are asked for; exit with 1 where one differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="whole encoders, too")
    parser.add_argument("--only", default="", help="cases that begin with this")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    wrong = []
    for name, expected in json.loads(NUMBERS.read_text()).items():
        if not name.startswith(given.only) or (
            name in WHOLE_ENCODERS and not given.all
        ):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = numbers(Path(folder), expected["settings"], expected.get("stop", 0))
        differing = [k for k in found if not same(found[k], expected[k])]
        wrong += [name] * bool(differing)
        verdict = "the same" if not differing else f"OTHER: {', '.join(differing)}"
        print(f"{name}: {verdict} ({time.monotonic() - started:.0f} s)", flush=True)
    sys.exit(f"other numbers: {', '.join(wrong)}" if wrong else 0)


def numbers(folder: Path, settings: Mapping[str, Any], stop: int) -> dict[str, Any]:
    """Run one case; return what is compared.

    Args:
        folder: for the run.
        settings: of `RunConfig.from_settings`.
        stop: training replies after which the run is interrupted, and resumed; 0 for
            none.
    """
    config = RunConfig.from_settings(
        **settings, seed=1, output=str(folder), client_state=str(folder / "clients")
    )
    config = resolve(config).config
    if stop:
        grid = MortalGrid(nodes(config), config.flat())
        grid.left = stop
        try:
            run_apps(grid, config)
        except InterruptedRunError:
            config = config.replace(resume=True)
    run_apps(InProcessGrid(nodes(config), config.flat()), config)
    summary = json.loads((folder / "summary.json").read_text())
    # Without what is in flight in an asynchronous run, which is no part of the state.
    store = CheckpointStore(FolderStateStore(folder / CHECKPOINT))
    state = store.load(before=sys.maxsize)
    assert state is not None
    digest = hashlib.sha256()
    for part in exact(state.payload):
        digest.update(part)
    measured = json.loads(NUMBERS.read_text())["fedavg"].keys() - {"settings", "stop"}
    found = {key: summary[key] for key in measured - {"state_sha256"}}
    return {**found, "state_sha256": digest.hexdigest()}


def nodes(config: RunConfig) -> range:
    """Return a node for each client."""
    return range(101, 101 + config.scenario.clients)


def exact(value: object) -> Iterator[bytes]:
    """Yield all that a payload consists of, in an order of its own."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield repr(key).encode()
            yield from exact(value[key])
    elif isinstance(value, SparseArray):
        parts = (plain(value.indices), plain(value.values))
        yield repr(("sparse", value.shape, *parts)).encode()
    else:
        yield repr(plain(np.asarray(value))).encode()


def plain(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    """Return all that an array consists of."""
    return array.dtype.name, array.shape, array.tobytes()


def same(found: object, expected: object) -> bool:
    """Return whether two values of a summary are the same, NaN and None included."""
    if isinstance(found, float) and isinstance(expected, float) and math.isnan(found):
        return math.isnan(expected)
    return found == expected


if __name__ == "__main__":
    main()
