"""The program of a server: Flower's SuperLink with speed-ups.

``python -m fcl_flower.deploy.speedups.superlink NAMES FOLDER flower-superlink ...``
runs flower-superlink with the speed-ups of these names, which commas separate. FOLDER
is for large objects.
"""

import runpy
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

from fcl_flower.deploy.speedups.memory import give_back_pieces


def run_superlink(names: Collection[str], folder: Path, command: Sequence[str]) -> None:
    """Run Flower's SuperLink in this process."""
    give_back_pieces()
    if "large_objects" in names:
        _store_large_objects(folder)
    if "deliveries" in names:
        _confirm_deliveries()
    if "pauses" in names:
        _outlast_pauses()
    sys.argv = list(command)
    runpy.run_path(sys.argv[0], run_name="__main__")


def _store_large_objects(folder: Path) -> None:
    from flwr.supercore import sql_mixin
    from flwr.supercore.object_store import object_store_factory
    from flwr.supercore.object_store.sql_object_store import SqlObjectStore

    from fcl_flower.deploy.speedups.large_objects import PATIENCE, FileObjectStore

    mixin = vars(sql_mixin)
    mixin["SQLITE_PRAGMAS"] = (*mixin["SQLITE_PRAGMAS"], PATIENCE)
    _replace(object_store_factory, SqlObjectStore, partial(FileObjectStore, folder))


def _confirm_deliveries() -> None:
    from flwr.server.superlink.linkstate import linkstate_factory
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

    from fcl_flower.deploy.speedups.deliveries import ConfirmedDeliveries

    _replace(linkstate_factory, SqlLinkState, ConfirmedDeliveries)


def _outlast_pauses() -> None:
    from flwr.server.superlink.linkstate import sql_linkstate
    from flwr.supercore.corestate import sql_corestate

    from fcl_flower.deploy.speedups.pauses import outlast_pauses

    modules = [sql_corestate, sql_linkstate]
    outlast_pauses(sql_corestate.SqlCoreState, "_cleanup_expired_task_tokens", modules)


def _replace(factory: ModuleType, made: type, ours: Callable[..., object]) -> None:
    name = made.__name__
    if vars(factory)[name] is not made:
        raise RuntimeError(f"flwr: expected a version that makes a {name}")
    vars(factory)[name] = ours


if __name__ == "__main__":
    run_superlink(sys.argv[1].split(","), Path(sys.argv[2]), sys.argv[3:])
