"""The program of a client: Flower's SuperNode with speed-ups.

``python -m fcl_flower.deploy.speedups.supernode NAMES HOST:PORT flower-supernode ...``
runs flower-supernode with the speed-ups of these names, which commas separate. With
``resident`` it listens at HOST:PORT, in isolation mode ``process``, and an executor in
a thread sees that its messages are answered. Else Flower starts a process for each.

It lasts for months on small devices, mostly without a run. So one process does what
three would, and what Flower's SuperNode imports and never uses is not loaded.
"""

import logging
import os
import runpy
import secrets
import sys
import threading
import traceback
from collections.abc import Collection, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from fcl_flower.deploy.speedups.memory import give_back_pieces

OPTIONAL = ("httpx._main", "watchfiles")
"""Command lines and reloading of libraries, which do without where these are not."""
SQL_STORE = "flwr.supercore.object_store.sql_object_store", "SqlObjectStore"
"""The store of a SuperLink. It brings SQLAlchemy and Alembic, some 30 MB."""


def leave_out() -> None:
    """Let this process load what a SuperNode does not use only where it is used."""
    for name in OPTIONAL:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # no such module
    module, name = SQL_STORE
    stand_in = ModuleType(module)
    vars(stand_in)[name] = _sql_store
    sys.modules.setdefault(module, stand_in)


def _sql_store(*given: Any) -> Any:  # noqa: ANN401
    module, name = SQL_STORE
    del sys.modules[module]
    return getattr(import_module(module), name)(*given)


def run_node(names: Collection[str], address: str, command: Sequence[str]) -> None:
    """Run a SuperNode in this process; see above."""
    give_back_pieces()
    # The first of Flower that is imported: nothing of it is there before.
    if "lean" in names:
        leave_out()
    _replace_steps(names)
    if "pauses" in names:
        _outlast_pauses()
    sys.argv = list(command)
    if "resident" in names:
        # Nobody else on this machine may take the client's messages up. A pipe, as the
        # secret need not lie in any file.
        secret = secrets.token_bytes(32)
        reader, writer = os.pipe()
        os.write(writer, secret)
        os.close(writer)
        sys.argv += ["--superexec-auth-secret-file", f"/dev/fd/{reader}"]
        answering = threading.Thread(target=_answer, args=[address, secret])
        answering.daemon = True
        answering.start()
    code: object = None
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if not isinstance(code, int | None):  # a sentence, as `sys.exit` takes one
        print(code, file=sys.stderr)
        code = 1
    # A SuperNode that has given up, as at an expired certificate, leaves a thread that
    # listens: the process would stay, and do nothing.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _replace_steps(names: Collection[str]) -> None:
    from flwr.supernode import start_client_internal as flower

    if "stopped_runs" in names:
        from fcl_flower.deploy.speedups.stopped_runs import leaving_nothing

        flower._pull_and_store_message = leaving_nothing(flower._pull_and_store_message)
    if "pace" in names:
        from fcl_flower.deploy.speedups.pace import looking_often

        flower._pull_and_store_message = looking_often(flower._pull_and_store_message)
    if "streaming" in names:
        from fcl_flower.deploy.speedups.streaming import FIRST_RETRY

        pull = partial(flower.pull_objects, initial_backoff=FIRST_RETRY)  # type: ignore[attr-defined]
        flower.pull_objects = pull  # type: ignore[attr-defined]


def _outlast_pauses() -> None:
    from flwr.supercore.corestate import in_memory_corestate
    from flwr.supernode.nodestate import in_memory_nodestate

    from fcl_flower.deploy.speedups.pauses import outlast_pauses

    state = in_memory_corestate.InMemoryCoreState
    modules = [in_memory_corestate, in_memory_nodestate]
    outlast_pauses(state, "_cleanup_expired_task_tokens_locked", modules)


def _answer(address: str, secret: bytes) -> None:
    from fcl_flower.deploy.speedups.resident import Executor

    try:
        with closing(Executor(address, secret)) as executor:
            executor.run()
    except BaseException:
        # A SuperNode whose messages nobody answers would seem to work.
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    run_node(sys.argv[1].split(","), sys.argv[2], sys.argv[3:])
