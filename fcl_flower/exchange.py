"""Ask the clients and wait: one answer for everyone asked, whatever happens."""

import time
from collections.abc import Callable, Iterable, Iterator
from logging import WARNING
from typing import TypeVar

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fcl_flower.errors import RoundError, WireError

POLL_SECONDS = 0.02
MAX_REASON = 300

T = TypeVar("T")


def exchange(
    grid: Grid, messages: Iterable[Message], timeout: float
) -> Iterator[Message]:
    """Send all messages; yield one answer to each, as they come.

    A client that cannot be reached, fails, answers too late, or answers with bytes
    that Flower cannot open, is answered for by an error. Answers are fetched one by
    one, so that nobody else's is lost with such bytes. ``src_node_id`` of an answer is
    the node that was asked, whatever the peer says of itself.

    Args:
        grid: connects to the nodes.
        messages: at most one for each node.
        timeout: seconds to wait for all answers together.
    """
    asked = list(messages)
    sent = set(grid.push_messages(asked))
    pending: list[Message] = []
    for message in asked:
        if message.metadata.message_id in sent:
            pending.append(message)
        else:
            yield _problem(message, "could not be reached")
    deadline = time.monotonic() + timeout
    while pending and time.monotonic() < deadline:
        waiting: list[Message] = []
        for message in pending:
            answer = _pull(grid, message)
            if answer is None:
                waiting.append(message)
            else:
                yield answer
        if len(waiting) == len(pending):
            time.sleep(POLL_SECONDS)
        pending = waiting
    for message in pending:
        yield _problem(message, "no reply in time")


def open_replies(
    replies: Iterable[Message], open_one: Callable[[RecordDict], T]
) -> tuple[dict[int, T], dict[int, str]]:
    """Return what ``open_one`` makes of each answer, and why it could not, by node."""
    opened: dict[int, T] = {}
    failed: dict[int, str] = {}
    for reply in replies:
        node = reply.metadata.src_node_id
        try:
            if reply.has_error():
                raise WireError(str(reply.error.reason))
            opened[node] = open_one(reply.content)
        # A peer's content may break Flower's accessors, or our checks, in any way.
        except Exception as error:
            text = str(error) if isinstance(error, WireError) else repr(error)
            failed[node] = " ".join(text.split())[:MAX_REASON]
    return opened, failed


def roll_call(grid: Grid, timeout: float) -> dict[int, int]:
    """Return partition number by node id; node ids are random in every run.

    A node that does not answer, or not with a partition number, is left out.

    Raises:
        RoundError: two nodes claim the same partition.
    """
    asks = [
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)
        for node in grid.get_node_ids()
    ]
    roster, failed = open_replies(exchange(grid, asks, timeout), _partition)
    for node, why in failed.items():
        log(WARNING, "node %d left out: %s", node, why)
    if len(set(roster.values())) < len(roster):
        raise RoundError(f"two nodes claim the same partition: {roster}")
    return dict(sorted(roster.items(), key=lambda pair: pair[1]))


def _pull(grid: Grid, message: Message) -> Message | None:
    """Return the answer to a message, None if there is none yet."""
    try:
        for reply in grid.pull_messages([message.metadata.message_id]):
            if reply.has_error():
                return _problem(message, f"the client failed: {reply.error.reason}")
            return Message(reply.content, reply_to=message)
    # Flower unpacks the peer's bytes here, and lets out whatever that raises.
    except Exception as error:
        return _problem(message, f"its reply cannot be opened: {error!r}")
    return None


def _problem(message: Message, reason: str) -> Message:
    return Message(Error(code=0, reason=reason), reply_to=message)


def _partition(records: RecordDict) -> int:
    found = records.config_records["who"]["partition"]
    if not isinstance(found, int) or found < 0:
        raise WireError(f"who/partition: expected a number from 0, got {found!r}")
    return found
