"""How a case is run and what is read of it: all that knows the inside of the package.

A change that moves modules changes the imports here, and nothing else of the check.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from cases import Case
from typing_extensions import override

from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import RunSpec
from fcl_flower.core.types import Array, SparseArray
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.checkpoint import FolderStateStore, StateStore
from fcl_flower.rounds.place import Place
from fcl_flower.rounds.transport import TRAIN, Content, Problem, Request
from fcl_flower.setup.resolve import resolve
from fcl_flower.simulation.in_process import InProcessTransport, run_simulated
from fcl_flower.simulation.local_runs import Backend, Job, run_all

MEASURED: Final = (
    *("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy"),
    *("sample_accuracy", "accuracy_matrix", "client_accuracy", "honest_accuracy"),
    *("before_aggregation", "untrained_client_tasks", "late_replies", "left_out"),
    *("bytes_up", "bytes_down", "nominal_bytes_up", "nominal_bytes_down"),
    *("bytes_by_kind", "model_bytes", "concepts", "total_rounds", "clock"),
)
"""What is compared of a summary."""


class InterruptedRunError(BaseException):
    """The server's process is gone, and blames no client for it."""


class MortalTransport(InProcessTransport):
    """A transport whose server dies after some number of training replies."""

    left = 0

    @override
    def answer(self, request: Request, place: Place) -> Content | Problem:
        if request.kind == TRAIN:
            self.left -= 1
            if self.left < 0:
                raise InterruptedRunError
        return super().answer(request, place)


def run(case: Case, folder: Path, materials: Path) -> dict[str, Any]:
    """Run one case in this process; return what is compared.

    Args:
        case: with `Case.stop` it is interrupted, and resumed.
        folder: for the run.
        materials: see `materials.write`.
    """
    config = resolved(case, folder, materials).config
    nodes = range(101, 101 + config.scenario.clients)
    places = [{"data-path": path} for path in case.local_data(materials)]
    if case.stop:
        transport = MortalTransport(nodes, config, places)
        transport.left = case.stop
        try:
            run_simulated(transport, config)
        except InterruptedRunError:
            config = config.replace(resume=True)
        else:
            raise AssertionError("the run was over before it was interrupted")
    run_simulated(InProcessTransport(nodes, config, places), config)
    return numbers(folder)


def run_on_flower(
    cases: Mapping[str, Case], materials: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run cases on Flower's simulation runtime; yield what is compared of each."""
    names = {materials / f"run-{number}": name for number, name in enumerate(cases)}
    jobs = [Job(resolved(cases[names[f]], f, materials), f) for f in names]
    for job, outcome in run_all(Backend("flower", workers=1), jobs):
        if isinstance(outcome, Exception):
            raise outcome
        yield names[job.folder], numbers(job.folder)


def resolved(case: Case, folder: Path, materials: Path) -> RunSpec:
    """Resolve the configuration of a case."""
    config = RunConfig.from_settings(
        **case.settings_with(materials),
        seed=1,
        output=str(folder),
        client_state=str(folder / CLIENTS),
        keep_clients=True,
    )
    return resolve(config)


def numbers(folder: Path) -> dict[str, Any]:
    """Read what is compared of a finished run."""
    summary = json.loads((folder / "summary.json").read_text())
    # Without what is in flight in an asynchronous run, which is no part of the state.
    server = FolderStateStore(folder / CHECKPOINT)
    clients = sorted((folder / CLIENTS).iterdir())
    return {
        **{key: summary[key] for key in MEASURED},
        "epsilon": summary.get("privacy", {}).get("by_client"),
        "state_sha256": digest(server, without="asked"),
        "clients_sha256": {f.name: digest(FolderStateStore(f)) for f in clients},
    }


def digest(store: StateStore, without: str = "") -> str:
    """Compute the checksum of the last state in a store, and of what is beside it."""
    saved = store.load()
    assert saved is not None
    beside = {
        f"{name}/{group}": arrays
        for name, groups in saved.beside.items()
        if name != without
        for group, arrays in groups.items()
    }
    found = hashlib.sha256()
    for part in exact({**saved.state, **beside}):
        found.update(part)
    return found.hexdigest()


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
    """Take an array apart: type, shape and bytes."""
    return array.dtype.name, array.shape, array.tobytes()
