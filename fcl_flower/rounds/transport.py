"""Requests and replies, and the transport between the server and its clients.

There are three transports: in one process (`simulation.in_process`), over Flower's grid
(`flower_app.grid`), and those of the tests.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from fcl_flower.core.errors import WireError
from fcl_flower.rounds.codec import Encoded

TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
QUERY: Final = "query"
"""The kinds of a request. A query other than the greeting has a name after a dot."""

Scalar: TypeAlias = bool | int | float | str | bytes
Value: TypeAlias = (
    Scalar | list[bool] | list[int] | list[float] | list[str] | list[bytes]
)
"""A value of a table."""


@dataclass(slots=True)
class Content:
    """The content of a message.

    Attributes:
        tensors: by group and name, encoded.
        scalars: tables of values, by name.
    """

    tensors: dict[str, dict[str, Encoded]] = field(default_factory=dict)
    scalars: dict[str, dict[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One message to a client.

    Attributes:
        node: the transport's number of the client's node.
        kind: ``train``, ``evaluate``, ``query`` or ``query.NAME``.
        content: of the message.
    """

    node: int
    kind: str
    content: Content = field(default_factory=Content)


Why: TypeAlias = Literal["failed", "late", "gone"]
"""The client failed, was too late, or gives no sign of life."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why there is no answer: a sentence and its class."""

    reason: str
    why: Why = "failed"


class Reply:
    """The answer to a request, or why there is none.

    A transport may open the answer when `content` is read. Then each read returns the
    content or raises an error.
    """

    __slots__ = ("_content", "problem", "request")

    def __init__(
        self, request: Request, content: Content | Callable[[], Content] | Problem
    ) -> None:
        """Take an answer, a function that opens it, or the reason for its lack."""
        self.request = request
        self.problem = content if isinstance(content, Problem) else None
        self._content = content

    @property
    def node(self) -> int:
        """The node that was asked, whatever name the peer gives itself."""
        return self.request.node

    @property
    def content(self) -> Content:
        """Open the answer.

        Raises:
            WireError: there is none; the message says why.
        """
        if isinstance(self._content, Problem):
            raise WireError(self._content.reason)
        return self._content if isinstance(self._content, Content) else self._content()


class Transport(Protocol):
    """Carries requests to nodes, and replies back.

    Attributes:
        simulated: whether all clients are on this machine and part of the run. Each
            answers in the end, whatever time it takes.
        blocking: whether a call may take minutes, as over a network.
    """

    simulated: bool
    blocking: bool

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""
        ...

    def send(self, requests: Sequence[Request], seconds: float) -> Sequence[str | None]:
        """Hand requests over; return a name for each, None if it cannot be sent.

        A client no longer finds a request after so many seconds.
        """
        ...

    def receive(self, name: str, request: Request) -> Reply | None:
        """Take the reply to a request by its name; None if there is none yet."""
        ...
