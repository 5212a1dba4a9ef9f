"""What a client's message may take in memory when Flower puts it together.

Flower sends a tensor as chunks and the order of their numbers, and a chunk may have its
place more than once: a message of 1 MB can name one chunk a hundred thousand times.
Nobody is asked before these bytes are joined, so the sizes are added up first.
"""

import json
from collections.abc import Mapping

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import http_grid

from fcl_flower.core.errors import WireError

MOST_BYTES = 2**31
"""Of all tensors of a message together."""
MOST_TIMES = 64
"""What was sent. Honest chunks are of 20 MB and repeat in constant tensors alone."""


def bound_assembly() -> None:
    """Let Flower's connection to the SuperLink refuse what takes too much memory.

    Raises:
        RuntimeError: it puts messages together in another way than is known here.
    """
    if not hasattr(http_grid, "inflate_object_from_contents"):
        raise RuntimeError("flwr: expected a version that inflates objects by contents")
    http_grid.inflate_object_from_contents = assembled


def assembled(object_id: str, contents: dict[str, bytes]) -> InflatableObject:
    """Return the object that was sent in parts.

    Args:
        object_id: of the whole.
        contents: of the whole and of all its parts, by id; used up.

    Raises:
        WireError: put together it would take more than it may.
    """
    sent = sum(map(len, contents.values()))
    claimed = sum(_joined_bytes(content, contents) for content in contents.values())
    allowed = min(MOST_BYTES, MOST_TIMES * sent)
    if claimed > allowed:
        raise WireError(
            f"a message of {sent} bytes: expected tensors of at most {allowed} bytes, "
            f"got {claimed}"
        )
    return inflate_object_from_contents(object_id, contents)


def _joined_bytes(content: bytes, contents: Mapping[str, bytes]) -> int:
    """Return what the chunks of a tensor take when they are joined; 0 of others."""
    kind, children, _ = get_object_head_values_from_object_content(content)
    if kind != Array.__qualname__:
        return 0
    order = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    sizes = [len(contents[child]) for child in children]
    return sum(sizes[number] for number in order)
