"""The program of a client: Flower's SuperNode, mended, lean, with an executor in it.

``python -m fcl_flower.flower.supernode HOST:PORT flower-supernode ...`` runs
flower-supernode, which listens there, in isolation mode ``process``; an executor in a
thread sees that its messages are answered. With nothing in place of HOST:PORT Flower
starts a process for each message.

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
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from fcl_flower.flower.memory import give_back_pieces

OPTIONAL = ("httpx._main", "watchfiles")
"""Command lines and reloading of libraries, which do without where these are not."""
SQL_STORE = "flwr.supercore.object_store.sql_object_store", "SqlObjectStore"
"""Of a SuperLink. It brings SQLAlchemy and Alembic, some 30 MB."""


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


def run_node(address: str, command: Sequence[str]) -> None:
    """Run a SuperNode in this process; its messages wait at HOST:PORT, if not empty."""
    give_back_pieces()
    # The first of Flower that is imported: nothing of it is there before.
    leave_out()
    from flwr.supercore.corestate import in_memory_corestate
    from flwr.supernode import start_client_internal as flower
    from flwr.supernode.nodestate import in_memory_nodestate

    from fcl_flower.flower.chunks import FIRST_RETRY
    from fcl_flower.flower.looks import looking_often
    from fcl_flower.flower.patience import outlast_pauses
    from fcl_flower.flower.stopped_runs import leaving_nothing

    step = leaving_nothing(flower._pull_and_store_message)
    flower._pull_and_store_message = looking_often(step)
    pull = partial(flower.pull_objects, initial_backoff=FIRST_RETRY)  # type: ignore[attr-defined]
    flower.pull_objects = pull  # type: ignore[attr-defined]
    state = in_memory_corestate.InMemoryCoreState
    modules = [in_memory_corestate, in_memory_nodestate]
    outlast_pauses(state, "_cleanup_expired_task_tokens_locked", modules)
    sys.argv = list(command)
    if address:
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


def _answer(address: str, secret: bytes) -> None:
    from fcl_flower.flower.executor import Executor

    try:
        with closing(Executor(address, secret)) as executor:
            executor.run()
    except BaseException:
        # A SuperNode whose messages nobody answers would seem to work.
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    run_node(sys.argv[1], sys.argv[2:])
