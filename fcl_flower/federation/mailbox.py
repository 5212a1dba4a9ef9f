"""Ask the clients and wait: one answer for everyone asked, whatever happens."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeAlias

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fcl_flower.core import failures
from fcl_flower.core.errors import WireError
from fcl_flower.flower import chunks
from fcl_flower.flower.patience import PatientClock
from fcl_flower.flower.transport import (
    at_once,
    in_thread,
    is_engine,
    is_remote,
    stream_messages,
)

MIN_PAUSE = 0.02
MAX_PAUSE = 1.0
UNAVAILABLE = 5
"""Flower's code for a node that no longer gives a sign of life."""
PATIENCE = 0.05
"""A share of what one has waited already: looking costs little, and delays little."""
LATE = 1000
"""Our code, beside Flower's, for a reply that was not waited for any longer."""
TTL_MARGIN = 10.0
POLL_TIMEOUT = 0.25
"""What a look at the answers may take; one that takes longer goes on by itself."""
PUSH_SECONDS = 60.0
"""What it may take to hand messages to Flower, beside the time for their bytes."""
SLOWEST = 2**20
"""Bytes a second."""
MAX_REASON = 300


Deadline: TypeAlias = Callable[[Iterable[float], int], float]
"""From the seconds after which there was each answer so far, and how many there may
still be with these, to when the others are no longer waited for. A failure is no
answer."""


@dataclass(slots=True)
class _Push:
    messages: list[Message]
    call: "Future[Iterable[str]]"
    until: float


@dataclass(slots=True)
class _Question:
    message: Message
    until: float
    look: "Future[Message | None] | None" = None

    def answer(self) -> Message | None:
        if self.look is None or not self.look.done():
            return None
        found, self.look = self.look.result(), None
        if found is not None and found.has_content():
            try:
                chunks.join(found.content)
            except OSError as error:
                return _problem(self.message, f"its reply cannot be read: {error!r}")
        return found


class Mailbox:
    """Questions that are on their way, each with its own deadline.

    ``all_answer`` says that everybody does in the end, as in Flower's simulation.

    Answers are fetched one by one, so that bytes that Flower
    cannot open cost only one. ``src_node_id`` of an answer is the node that was asked,
    whatever the peer says of itself.

    Over a network nothing here waits: Flower's calls retry without end where its server
    does not answer, and look for hours for the rest of a reply whose client is gone.
    Deadlines count the time in which this process could have collected answers.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        """Send through ``grid``; wait ``timeout`` seconds for each answer."""
        self._grid = grid
        self._timeout = timeout
        self._remote = is_remote(grid)
        self.all_answer = is_engine(grid)
        if self._remote:
            stream_messages()
        self._begin = in_thread if self._remote else at_once
        self._pushes: list[_Push] = []
        self._waiting = deque[_Question]()
        self._unsent: list[Message] = []
        self._overdue: list[_Question] = []
        self._clock = PatientClock(time.monotonic)
        self._quiet_since = time.monotonic()

    def __len__(self) -> int:
        """Count the answers that are missing."""
        pushed = sum(len(push.messages) for push in self._pushes)
        return pushed + len(self._waiting) + len(self._unsent)

    def send(self, messages: Iterable[Message]) -> None:
        """Send messages; a client no longer finds them when we have given them up."""
        asked = list(messages)
        for message in asked:
            message.metadata.ttl = self._timeout + TTL_MARGIN
        until = self._clock() + min(self._timeout, _push_seconds(asked))
        call = self._begin(self._grid.push_messages, asked)
        self._pushes.append(_Push(asked, call, until))
        self._note_sent()

    def collect(self) -> Iterator[Message]:
        """Yield what has been answered since the last time; does not wait.

        A client that cannot be reached, fails, answers too late, or answers with
        bytes that Flower cannot open, is answered for by an error. In one process an
        answer is computed when it is taken from here, and not before: nothing holds
        two of them unless the caller does.
        """
        self._note_sent()
        unsent, self._unsent = self._unsent, []
        yield from (_problem(message, failures.NOT_REACHED) for message in unsent)
        if self._remote:
            self._look(self._waiting)
        for _ in range(len(self._waiting)):
            question = self._waiting.popleft()
            if not self._remote:
                self._look([question])
            answer = question.answer()
            if answer is None and self._clock() > question.until:
                answer = _problem(question.message, failures.NO_REPLY, LATE)
            if answer is None:
                self._waiting.append(question)
            else:
                self._quiet_since = time.monotonic()
                yield answer

    def close(self) -> list[Message]:
        """Answer by an error for all who have not answered; see `busy`."""
        late, self._waiting = list(self._waiting), deque()
        for push in self._pushes:
            late += [_Question(message, push.until) for message in push.messages]
        self._pushes = []
        self._overdue += late
        return [late_answer(question.message) for question in late]

    def busy(self) -> set[int]:
        """Find the nodes that still work on what `close` has answered for."""
        self._look(self._overdue)
        self._clock.look()
        now = self._clock()
        self._overdue = [
            question
            for question in self._overdue
            if now < question.until and question.answer() is None
        ]
        return {question.message.metadata.dst_node_id for question in self._overdue}

    def _note_sent(self) -> None:
        self._clock.look()
        now = self._clock()
        for push in list(self._pushes):
            if push.call.done():
                sent = set(push.call.result())
            elif now > push.until:
                sent = set[str]()
            else:
                continue
            self._pushes.remove(push)
            for message in push.messages:
                if message.metadata.message_id in sent:
                    self._waiting.append(_Question(message, now + self._timeout))
                else:
                    self._unsent.append(message)
            self._quiet_since = time.monotonic()

    def _look(self, questions: Collection[_Question]) -> None:
        for question in questions:
            if question.look is None:
                question.look = self._begin(_pull, self._grid, question.message)
        wait((q.look for q in questions if q.look), POLL_TIMEOUT)

    def pause(self) -> None:
        """Wait a moment: longer, the longer nothing has come."""
        quiet = time.monotonic() - self._quiet_since
        time.sleep(min(max(MIN_PAUSE, PATIENCE * quiet), MAX_PAUSE))


def send_and_wait(
    grid: Grid, messages: Iterable[Message], timeout: float
) -> Iterator[Message]:
    """Send all messages; yield one answer to each, as they come."""
    return ask(Mailbox(grid, timeout), messages, wait_for_all)


def wait_for_all(times: Iterable[float], asked: int) -> float:
    """Wait for all answers: a `Deadline` that never comes."""
    return math.inf


def ask(
    box: Mailbox, messages: Iterable[Message], closes_at: Deadline
) -> Iterator[Message]:
    """Send all messages, at most one to a node; yield one answer to each, as they come.

    After ``closes_at`` seconds answers are no longer waited for. It is not asked in
    Flower's simulation, where seconds say nothing of a client.
    """
    if box.all_answer:
        closes_at = wait_for_all
    began = time.monotonic()
    box.send(messages)
    times, failed, asked = list[float](), 0, len(box)
    while len(box):
        good = bad = 0
        for answer in box.collect():
            good, bad = good + (not answer.has_error()), bad + answer.has_error()
            yield answer
        seconds = time.monotonic() - began
        times += [seconds] * good
        failed += bad
        if seconds >= closes_at(times, asked - failed):
            yield from box.close()
        elif not good + bad:
            box.pause()


def late_answer(message: Message) -> Message:
    """Answer for a client that is not waited for any longer."""
    return _problem(message, f"{failures.WAS_LATE}: the round had its quorum", LATE)


def is_late(reply: Message) -> bool:
    """Tell whether a reply was not waited for any longer."""
    return reply.has_error() and reply.error.code == LATE


def is_gone(reply: Message) -> bool:
    """Tell whether Flower answers for a node that gives no sign of life."""
    return reply.has_error() and reply.error.code == UNAVAILABLE


def content(reply: Message) -> RecordDict:
    """Open a reply."""
    if reply.has_error():
        raise WireError(str(reply.error.reason))
    return reply.content


def reason(error: Exception) -> str:
    """Say why a reply is not used, in one printable line.

    A peer may have put into the message of an error what it likes.
    """
    text = str(error) if isinstance(error, WireError) else repr(error)
    line = " ".join(text.split())[:MAX_REASON]
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _push_seconds(messages: Iterable[Message]) -> float:
    size = sum(
        len(array.data)
        for message in messages
        for record in message.content.array_records.values()
        for array in record.values()
    )
    return PUSH_SECONDS + size / SLOWEST


def _pull(grid: Grid, message: Message) -> Message | None:
    try:
        for reply in grid.pull_messages([message.metadata.message_id]):
            if reply.has_error():
                reason = f"{failures.FAILED}: {reply.error.reason}"
                return _problem(message, reason, reply.error.code)
            return Message(reply.content, reply_to=message)
    # Flower unpacks the peer's bytes here, and lets out whatever that raises.
    except Exception as error:
        return _problem(message, f"its reply cannot be opened: {error!r}")
    return None


def _problem(message: Message, reason: str, code: int = 0) -> Message:
    return Message(Error(code=code, reason=reason), reply_to=message)
