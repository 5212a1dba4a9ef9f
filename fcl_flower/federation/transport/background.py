"""Calls over a network, which may block for minutes, beside the loop that made them."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

from flwr.serverapp import Grid

P = ParamSpec("P")
T = TypeVar("T")


def is_remote(grid: Grid) -> bool:
    """Return whether calls of a grid go over a network.

    Those of a simulation do not: there all goes on in the thread of the loop.
    """
    # Not imported here: it takes seconds, and where there is one, it is there.
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    return module is not None and isinstance(grid, module.HttpGrid)


def is_engine(grid: Grid) -> bool:
    """Return whether Flower's simulation engine answers for all nodes.

    Each of them answers in the end, and when says nothing of a client.
    """
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return module is not None and isinstance(grid, module.InMemoryGrid)


def in_thread(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> "Future[T]":
    """Begin a call; a process may end before it returns."""
    future = Future[T]()
    Thread(target=_complete, args=(future, function, args, kwargs), daemon=True).start()
    return future


def at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
    """Make a call, and return what has come of it."""
    future = Future[T]()
    _complete(future, function, args, kwargs)
    return future


def _complete(
    future: "Future[T]",
    function: Callable[..., T],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> None:
    try:
        future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
