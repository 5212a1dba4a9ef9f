"""Send requests and wait: each gets one reply, whatever happens."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from threading import Thread
from typing import ParamSpec, TypeAlias, TypeVar

from fcl_flower.core import failures
from fcl_flower.core.errors import WireError
from fcl_flower.core.patient_clock import PatientClock
from fcl_flower.rounds.transport import Problem, Reply, Request, Transport

MIN_PAUSE = 0.02
MAX_PAUSE = 1.0
PATIENCE = 0.05
"""The next pause, as a fraction of the time that was waited so far."""
TTL_MARGIN = 10.0
POLL_TIMEOUT = 0.25
"""Seconds that a look for replies may take; a longer look goes on beside the rest."""
PUSH_SECONDS = 60.0
"""Seconds to hand requests over, beside the time for their bytes."""
SLOWEST = 2**20
"""The slowest connection, in bytes a second."""
MAX_REASON = 300

P = ParamSpec("P")
T = TypeVar("T")

Deadline: TypeAlias = Callable[[Iterable[float], int], float]
"""A function that says after how many seconds a round waits no longer.

Its arguments are the seconds after which each answer came, and the number of these
answers and of those that may still come. A failure is no answer.
"""


def in_thread(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> "Future[T]":
    """Begin a call, which may block for minutes; a process may end before it does."""
    future = Future[T]()
    Thread(target=_complete, args=(future, function, args, kwargs), daemon=True).start()
    return future


def at_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
    """Make a call, and return its result or its error as a future."""
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


@dataclass(slots=True)
class _Push:
    requests: list[Request]
    call: "Future[Sequence[str | None]]"
    until: float


@dataclass(slots=True)
class _Question:
    request: Request
    name: str
    until: float
    look: "Future[Reply | None] | None" = None

    def answer(self) -> Reply | None:
        if self.look is None or not self.look.done():
            return None
        reply, self.look = self.look.result(), None
        return reply


class Mailbox:
    """Requests on their way, each with its own deadline.

    Replies are fetched one by one, so that damaged bytes cost only one of them.

    Calls of the transport may block, and then nothing here waits for them. Flower's
    calls retry without end if its server does not answer. They look for hours for the
    rest of a reply whose client is gone. Deadlines count the time in which this process
    could have collected replies.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        """Send through ``transport``; wait ``timeout`` seconds for each answer."""
        self._transport = transport
        self._timeout = timeout
        self._begin = in_thread if transport.blocking else at_once
        self._pushes: list[_Push] = []
        self._waiting = deque[_Question]()
        self._unsent: list[Request] = []
        self._overdue: list[_Question] = []
        self._clock = PatientClock(time.monotonic)
        self._quiet_since = time.monotonic()

    def __len__(self) -> int:
        """Count the answers that are missing."""
        pushed = sum(len(push.requests) for push in self._pushes)
        return pushed + len(self._waiting) + len(self._unsent)

    @property
    def all_answer(self) -> bool:
        """Whether all clients answer in the end, as in a simulation."""
        return self._transport.simulated

    def send(self, requests: Iterable[Request]) -> None:
        """Send requests; a client does not find a request that was given up."""
        asked = list(requests)
        until = self._clock() + min(self._timeout, _push_seconds(asked))
        call = self._begin(self._transport.send, asked, self._timeout + TTL_MARGIN)
        self._pushes.append(_Push(asked, call, until))
        self._note_sent()

    def collect(self) -> Iterator[Reply]:
        """Yield the replies that have come since the last call; do not wait.

        The reply of a client that cannot be reached, fails or is too late is a problem.
        In one process a client computes its reply when the caller takes it: only the
        caller can hold two replies.
        """
        self._note_sent()
        unsent, self._unsent = self._unsent, []
        for request in unsent:
            yield Reply(request, Problem(failures.NOT_REACHED))
        blocking = self._transport.blocking
        if blocking:
            self._look(self._waiting)
        for _ in range(len(self._waiting)):
            question = self._waiting.popleft()
            if not blocking:
                self._look([question])
            answer = question.answer()
            if answer is None and self._clock() > question.until:
                answer = Reply(question.request, Problem(failures.NO_REPLY, "late"))
            if answer is None:
                self._waiting.append(question)
            else:
                self._quiet_since = time.monotonic()
                yield answer

    def close(self) -> list[Reply]:
        """Return a problem for each missing reply; see `busy`."""
        late, self._waiting = list(self._waiting), deque()
        for push in self._pushes:
            late += [_Question(request, "", push.until) for request in push.requests]
        self._pushes = []
        self._overdue += late
        return [late_answer(question.request) for question in late]

    def busy(self) -> set[int]:
        """Find the nodes that still work on requests that `close` has given up."""
        self._look(self._overdue)
        self._clock.look()
        now = self._clock()
        self._overdue = [
            question
            for question in self._overdue
            if now < question.until and question.answer() is None
        ]
        return {question.request.node for question in self._overdue}

    def _note_sent(self) -> None:
        self._clock.look()
        now = self._clock()
        for push in list(self._pushes):
            names: Sequence[str | None] = [None] * len(push.requests)
            if push.call.done():
                names = push.call.result()
            elif now <= push.until:
                continue
            self._pushes.remove(push)
            for request, name in zip(push.requests, names, strict=True):
                if name is None:
                    self._unsent.append(request)
                else:
                    question = _Question(request, name, now + self._timeout)
                    self._waiting.append(question)
            self._quiet_since = time.monotonic()

    def _look(self, questions: Collection[_Question]) -> None:
        for question in questions:
            if question.look is None and question.name:
                receive = self._transport.receive
                question.look = self._begin(receive, question.name, question.request)
        wait((q.look for q in questions if q.look), POLL_TIMEOUT)

    def pause(self) -> None:
        """Wait a moment; the longer no reply has come, the longer."""
        quiet = time.monotonic() - self._quiet_since
        time.sleep(min(max(MIN_PAUSE, PATIENCE * quiet), MAX_PAUSE))


def wait_for_all(times: Iterable[float], asked: int) -> float:
    """Wait for all answers: a `Deadline` that never comes."""
    return math.inf


def ask(
    box: Mailbox, requests: Iterable[Request], closes_at: Deadline
) -> Iterator[Reply]:
    """Send all requests, at most one to a node; yield one reply to each, as they come.

    After ``closes_at`` seconds missing replies become problems. A simulation waits for
    all, as seconds say nothing of a client there.
    """
    if box.all_answer:
        closes_at = wait_for_all
    began = time.monotonic()
    box.send(requests)
    times, failed, asked = list[float](), 0, len(box)
    while len(box):
        good = bad = 0
        for answer in box.collect():
            good, bad = good + (answer.problem is None), bad + bool(answer.problem)
            yield answer
        seconds = time.monotonic() - began
        times += [seconds] * good
        failed += bad
        if seconds >= closes_at(times, asked - failed):
            yield from box.close()
        elif not good + bad:
            box.pause()


def late_answer(request: Request) -> Reply:
    """Make the reply of a client that is not waited for any longer."""
    why = f"{failures.WAS_LATE}: the round had its quorum"
    return Reply(request, Problem(why, "late"))


def is_late(reply: Reply) -> bool:
    """Tell whether a reply was not waited for any longer."""
    return reply.problem is not None and reply.problem.why == "late"


def is_gone(reply: Reply) -> bool:
    """Tell whether a node gives no sign of life."""
    return reply.problem is not None and reply.problem.why == "gone"


def reason(error: Exception) -> str:
    """Say why a reply is not used, in one printable line.

    The message of an error may quote any text of a peer.
    """
    text = str(error) if isinstance(error, WireError) else repr(error)
    line = " ".join(text.split())[:MAX_REASON]
    return "".join(sign if sign.isprintable() else "?" for sign in line)


def _push_seconds(requests: Iterable[Request]) -> float:
    size = sum(
        len(tensor.data)
        for request in requests
        for group in request.content.tensors.values()
        for tensor in group.values()
    )
    return PUSH_SECONDS + size / SLOWEST
