"""Tensors of a message travel piece by piece, with no second copy of them.

Flower (1.41) makes all pieces of a message before the first is sent, and joins those
that come, which stay, in a buffer that is then copied: a tensor is there twice when it
leaves, and four times when it comes. Here a few pieces are in memory at a time. Those
that come wait in a file without a name, until somebody wants to read the message.

It replaces how Flower's programs push and pull the objects of a message. A worker runs
this file by its path: nothing of this package is imported.
"""

import json
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, cast

from flwr.app import Array, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.constant import HEAD_BODY_DIVIDER
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import (
    get_num_workers,
    inflate_object_from_contents,
    pull_objects,
)

LARGE = 2**20
"""Bytes from which on a piece waits in a file."""
FIRST_RETRY = 0.1
"""Seconds until a piece is asked for again that is not there yet; then twice as many
each time. Flower (1.41) begins with one second, by which a piece is long there."""


class Spool:
    """A file without a name, where Flower's programs have theirs; made when needed."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock, self._end = Lock(), 0

    @cached_property
    def file(self) -> int:
        """The file's descriptor, open while somebody holds what lies in it."""
        file = tempfile.TemporaryFile(dir=os.environ.get("FLWR_HOME"))  # noqa: SIM115
        weakref.finalize(self, file.close)
        return file.fileno()

    def store(self, body: memoryview) -> "Stored":
        """Append the body of a piece."""
        with self._lock:
            file, start = self.file, self._end
            self._end += len(body)
        if os.pwrite(file, body, start) < len(body):
            raise OSError("no space for a message that comes in")
        return Stored(self, start, len(body))


class Stored(NamedTuple):
    """The body of a piece, in a file."""

    spool: Spool
    start: int
    size: int


Content: TypeAlias = bytes | Stored


def size_of(content: Content | memoryview) -> int:
    """Count the bytes of a content."""
    return content.size if isinstance(content, Stored) else len(content)


def pulled(
    object_ids: list[str], pull_object_fn: Callable[[str], bytes]
) -> dict[str, Content]:
    """Pull contents by their ids; large ones lie on the disk of Flower's programs."""
    spool = Spool()

    def stored(object_id: str) -> Content:
        content = pull_object_fn(object_id)
        if len(content) < LARGE or kind_of(content) != ArrayChunk.__qualname__:
            return content
        return spool.store(_body(content))

    found: dict[str, Any] = pull_objects(
        object_ids, cast(Any, stored), initial_backoff=FIRST_RETRY
    )
    return found


class Unread(bytes):
    """Stands for the bytes of a tensor: empty, but for what they are to be read from.

    Flower passes on what it takes for bytes.
    """

    pieces: Sequence[Content] = ()
    _whole: memoryview | None = None

    def read(self) -> memoryview:
        """Read the tensor's bytes into memory, once for all names that it has."""
        if self._whole is None:
            self._whole = _joined(self.pieces)
        return self._whole


def inflated(object_id: str, contents: dict[str, Content]) -> InflatableObject:
    """Inflate an object; its tensors are read by `join`, or one by one."""
    objects: dict[str, InflatableObject] = {}
    empty = ArrayChunk(memoryview(b""))
    for name, content in contents.items():
        if isinstance(content, bytes) and kind_of(content) == Array.__qualname__:
            pieces = chunks_of(content)
            array = Array.inflate(content, dict.fromkeys(pieces, empty))
            array.data = Unread()
            array.data.pieces = [contents[piece] for piece in pieces]
            objects[name] = array
    # Pieces are left out, as arrays are there already.
    whole = {
        n: content for n, content in contents.items() if isinstance(content, bytes)
    }
    return inflate_object_from_contents(object_id, whole, objects=objects)


def join(records: RecordDict) -> None:
    """Read the tensors of what was inflated, each into memory of its own."""
    for record in records.array_records.values():
        for array in record.values():
            if isinstance(array.data, Unread):
                array.data = cast(bytes, array.data.read())


def _joined(pieces: Sequence[Content]) -> memoryview:
    bodies = [one if isinstance(one, Stored) else _body(one) for one in pieces]
    joined, end = memoryview(bytearray(sum(map(size_of, bodies)))), 0
    for body in bodies:
        into, end = joined[end : end + size_of(body)], end + size_of(body)
        if isinstance(body, memoryview):
            into[:] = body
        elif os.preadv(body.spool.file, [into], body.start) < body.size:
            raise OSError("a message that came in is not whole")
    return joined.toreadonly()


def _body(content: bytes) -> memoryview:
    return memoryview(content)[content.index(HEAD_BODY_DIVIDER) + 1 :]


def chunks_of(content: bytes) -> list[str]:
    """List the ids of the pieces of a tensor, in their order."""
    _, children, _ = get_object_head_values_from_object_content(content)
    order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return [children[number] for number in order]


def kind_of(content: bytes) -> str:
    """Name the class of the object with a content."""
    return get_object_head_values_from_object_content(content)[0]


def pushed(
    object_contents: Iterable[tuple[str, bytes]],
    push_object_fn: Callable[[str, bytes], None],
    *,
    max_concurrent_pushes: int = 2,
) -> None:
    """Push contents, each made when one before it has left.

    When one fails, those under way are waited for: Flower ends a process of which a
    word arrives after its task has ended.
    """
    workers = get_num_workers(max_concurrent_pushes)
    pool, under_way = ThreadPoolExecutor(workers), deque[Future[None]]()
    try:
        for content in object_contents:
            under_way.append(pool.submit(push_object_fn, *content))
            if len(under_way) > workers:
                under_way.popleft().result()
        while under_way:
            under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def take_over_pushes() -> None:
    """Let Flower push in this way, in this process."""
    name = "push_object_contents_from_iterable"
    if not hasattr(inflatable_utils, name):
        raise RuntimeError(f"flwr: expected a version with inflatable_utils.{name}")
    setattr(inflatable_utils, name, pushed)


# ---- what a server takes from clients

MOST_BYTES = 2**31
"""The most bytes of all tensors of a message together."""
MOST_TIMES = 64
"""The most times that a tensor may be larger than the bytes that were sent.

Honest chunks have 5 MB, and repeat in constant tensors alone.
"""


def take_up() -> None:
    """Let this process's connection to the SuperLink take little, and refuse much."""
    # It brings Flower's whole client of a network.
    from flwr.superlink.grid import http_grid

    for name in ("pull_objects", "inflate_object_from_contents"):
        if not hasattr(http_grid, name):
            raise RuntimeError(f"flwr: expected a version with http_grid.{name}")
    take_over_pushes()
    vars(http_grid)["pull_objects"] = pulled
    vars(http_grid)["inflate_object_from_contents"] = assembled


def assembled(object_id: str, contents: dict[str, Content]) -> InflatableObject:
    """Inflate the object that was sent in parts; ``contents`` by id are used up.

    Its tensors are read when they are looked at, by `Unread.read`.

    Raises:
        ValueError: a few bytes claim tensors of very many.
    """
    sent = sum(map(size_of, contents.values()))
    claimed = sum(_joined_bytes(content, contents) for content in contents.values())
    allowed = min(MOST_BYTES, MOST_TIMES * sent)
    if claimed > allowed:
        raise ValueError(
            f"a message of {sent} bytes: expected tensors of at most {allowed} bytes, "
            f"got {claimed}"
        )
    return inflated(object_id, contents)


def _joined_bytes(content: Content, contents: Mapping[str, Content]) -> int:
    if isinstance(content, Stored) or kind_of(content) != Array.__qualname__:
        return 0
    return sum(size_of(contents[piece]) for piece in chunks_of(content))
