"""Calls over a network, which may block for minutes, beside the loop that made them."""

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

from flwr.app import Array
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
)

from fcl_flower.core.errors import WireError
from fcl_flower.flower import chunks
from fcl_flower.flower.chunks import Content, Stored, kind_of, size_of

CHUNK_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
"""Of the pieces that Flower cuts a tensor into."""

P = ParamSpec("P")
T = TypeVar("T")


def is_remote(grid: Grid) -> bool:
    """Tell whether calls of a grid go over a network.

    Those of a simulation do not: there all goes on in the thread of the loop.
    """
    # Not imported here: it takes seconds, and where there is one, it is there.
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    return module is not None and isinstance(grid, module.HttpGrid)


def is_engine(grid: Grid) -> bool:
    """Tell whether Flower's simulation engine answers for all nodes.

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


MOST_BYTES = 2**31
"""Of all tensors of a message together."""
MOST_TIMES = 64
"""What was sent. Honest chunks are of 20 MB and repeat in constant tensors alone."""


def stream_messages() -> None:
    """Let Flower's connection to the SuperLink take little memory, and refuse much."""
    # It brings Flower's whole client of a network.
    from flwr.superlink.grid import http_grid

    for name in ("pull_objects", "inflate_object_from_contents"):
        if not hasattr(http_grid, name):
            raise RuntimeError(f"flwr: expected a version with http_grid.{name}")
    chunks.take_over_pushes()
    vars(http_grid)["pull_objects"] = chunks.pulled
    vars(http_grid)["inflate_object_from_contents"] = assembled


def assembled(object_id: str, contents: dict[str, Content]) -> InflatableObject:
    """Inflate the object that was sent in parts; ``contents`` by id are used up.

    Its tensors are read by `chunks.join`.
    """
    sent = sum(map(size_of, contents.values()))
    claimed = sum(_joined_bytes(content, contents) for content in contents.values())
    allowed = min(MOST_BYTES, MOST_TIMES * sent)
    if claimed > allowed:
        raise WireError(
            f"a message of {sent} bytes: expected tensors of at most {allowed} bytes, "
            f"got {claimed}"
        )
    return chunks.inflated(object_id, contents)


def _joined_bytes(content: Content, contents: Mapping[str, Content]) -> int:
    if isinstance(content, Stored) or kind_of(content) != Array.__qualname__:
        return 0
    return sum(size_of(contents[piece]) for piece in chunks.chunks_of(content))
