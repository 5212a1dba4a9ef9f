"""Ask the clients and wait: one answer for everyone asked, whatever happens."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fcl_flower.core.errors import WireError

SOONEST = 0.02
LATEST = 1.0
UNAVAILABLE = 5
"""Flower's code for a node that no longer gives a sign of life."""
PATIENCE = 0.05
"""A share of what one has waited already: looking costs little, and delays little."""
LATE = 1000
"""Our code, beside Flower's, for a reply that was not waited for any longer."""
GRACE = 10.0
MAX_REASON = 300


Closing: TypeAlias = Callable[[Iterable[float], int], float]
"""From the seconds after which there was each answer so far, and how many there may
still be with these, to when the others are no longer waited for. A failure is no
answer."""


class Mailbox:
    """Questions that are on their way, each with its own deadline.

    Answers are fetched one by one, so that bytes that Flower
    cannot open cost only one. ``src_node_id`` of an answer is the node that was asked,
    whatever the peer says of itself.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        """Send through ``grid``; wait ``timeout`` seconds for each answer."""
        self._grid = grid
        self._timeout = timeout
        self._waiting: list[tuple[Message, float]] = []
        self._unsent: list[Message] = []
        self._overdue: list[tuple[Message, float]] = []
        self._quiet_since = time.monotonic()

    def __len__(self) -> int:
        """Return how many answers are missing."""
        return len(self._waiting) + len(self._unsent)

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages; a client no longer finds them when we have given them up."""
        asked = list(messages)
        for message in asked:
            message.metadata.ttl = self._timeout + GRACE
        sent = set(self._grid.push_messages(asked))
        now = time.monotonic()
        for message in asked:
            if message.metadata.message_id in sent:
                self._waiting.append((message, now + self._timeout))
            else:
                self._unsent.append(message)
        self._quiet_since = now

    def collect(self) -> list[Message]:
        """Return what has been answered since the last time; does not wait.

        A client that cannot be reached, fails, answers too late, or answers with
        bytes that Flower cannot open, is answered for by an error.
        """
        found = [_problem(message, "could not be reached") for message in self._unsent]
        self._unsent = []
        now = time.monotonic()
        waiting = []
        for message, deadline in self._waiting:
            answer = _pull(self._grid, message)
            if answer is None and now > deadline:
                answer = _problem(message, "no reply in time", LATE)
            if answer is None:
                waiting.append((message, deadline))
            else:
                found.append(answer)
        self._waiting = waiting
        if found:
            self._quiet_since = now
        return found

    def close(self) -> list[Message]:
        """Answer by an error for all who have not answered; see `busy`."""
        late, self._waiting = self._waiting, []
        self._overdue += late
        return [late_answer(message) for message, _ in late]

    def busy(self) -> set[int]:
        """Return the nodes that still work on what `close` has answered for."""
        now = time.monotonic()
        self._overdue = [
            (message, deadline)
            for message, deadline in self._overdue
            if now < deadline and _pull(self._grid, message) is None
        ]
        return {message.metadata.dst_node_id for message, _ in self._overdue}

    def pause(self) -> None:
        """Wait a moment: longer, the longer nothing has come."""
        quiet = time.monotonic() - self._quiet_since
        time.sleep(min(max(SOONEST, PATIENCE * quiet), LATEST))


def send_and_wait(
    grid: Grid, messages: Iterable[Message], timeout: float
) -> Iterator[Message]:
    """Send all messages; yield one answer to each, as they come.

    Args:
        grid: connects to the nodes.
        messages: at most one for each node.
        timeout: seconds to wait for all answers together.
    """
    return ask(Mailbox(grid, timeout), messages, wait_for_all)


def wait_for_all(times: Iterable[float], asked: int) -> float:
    """Return when answers are no longer waited for: never."""
    return math.inf


def ask(
    box: Mailbox, messages: Iterable[Message], closes_at: Closing
) -> Iterator[Message]:
    """Send all messages; yield one answer to each, as they come.

    Args:
        box: waits for nothing.
        messages: at most one for each node.
        closes_at: after how many seconds answers are no longer waited for.
    """
    began = time.monotonic()
    box.send(messages)
    times, failed, asked = list[float](), 0, len(box)
    while len(box):
        answers = box.collect()
        yield from answers
        seconds = time.monotonic() - began
        good = sum(not answer.has_error() for answer in answers)
        times += [seconds] * good
        failed += len(answers) - good
        if seconds >= closes_at(times, asked - failed):
            yield from box.close()
        elif not answers:
            box.pause()


def late_answer(message: Message) -> Message:
    """Return the answer for a client that is not waited for any longer."""
    return _problem(message, "was late: the round had its quorum", LATE)


def is_late(reply: Message) -> bool:
    """Return whether a reply was not waited for any longer."""
    return reply.has_error() and reply.error.code == LATE


def is_gone(reply: Message) -> bool:
    """Return whether Flower answers for a node that gives no sign of life."""
    return reply.has_error() and reply.error.code == UNAVAILABLE


def content(reply: Message) -> RecordDict:
    """Return what a reply holds.

    Raises:
        WireError: the client failed.
    """
    if reply.has_error():
        raise WireError(str(reply.error.reason))
    return reply.content


def reason(error: Exception) -> str:
    """Return why a reply is not used, in one printable line.

    A peer may have put into the message of an error what it likes.
    """
    text = str(error) if isinstance(error, WireError) else repr(error)
    line = " ".join(text.split())[:MAX_REASON]
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _pull(grid: Grid, message: Message) -> Message | None:
    """Return the answer to a message, None if there is none yet."""
    try:
        for reply in grid.pull_messages([message.metadata.message_id]):
            if reply.has_error():
                reason = f"the client failed: {reply.error.reason}"
                return _problem(message, reason, reply.error.code)
            return Message(reply.content, reply_to=message)
    # Flower unpacks the peer's bytes here, and lets out whatever that raises.
    except Exception as error:
        return _problem(message, f"its reply cannot be opened: {error!r}")
    return None


def _problem(message: Message, reason: str, code: int = 0) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)
