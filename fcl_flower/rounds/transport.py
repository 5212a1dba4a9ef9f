"""Requests and replies, and what carries them between the server and its clients.

The rounds know three carriers by one interface: clients in this process
(`simulation.in_process`), Flower's grid (`flower_app.grid`), and those of the tests.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from fcl_flower.core.errors import WireError
from fcl_flower.rounds.codec import Encoded

TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
QUERY: Final = "query"
"""The kinds of a request. A query has a name after a dot, but for the greeting."""

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
        node: where the client is reached now: a number of the transport's.
        kind: ``train``, ``evaluate``, ``query`` or ``query.NAME``.
        content: of the message.
    """

    node: int
    kind: str
    content: Content = field(default_factory=Content)


Why: TypeAlias = Literal["failed", "late", "gone"]
"""The client failed, was not waited for any longer, or gives no sign of life."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why there is no answer: a sentence and its class."""

    reason: str
    why: Why = "failed"


class Reply:
    """The answer to a request, or why there is none.

    The answer of a transport may be opened when it is looked at. Whatever a peer has
    sent, `content` returns it or raises an error, each time anew.
    """

    __slots__ = ("_content", "problem", "request")

    def __init__(
        self, request: Request, content: Content | Callable[[], Content] | Problem
    ) -> None:
        """Take an answer, what opens it, or why there is none."""
        self.request = request
        self.problem = content if isinstance(content, Problem) else None
        self._content = content

    @property
    def node(self) -> int:
        """The node that was asked, whatever the peer says of itself."""
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
        simulated: the run has started all clients on this machine: each answers in the
            end, and seconds say nothing of it.
        blocking: a call may take minutes, as over a network.
    """

    simulated: bool
    blocking: bool

    def nodes(self) -> Iterable[int]:
        """List the nodes that are connected now."""
        ...

    def send(self, requests: Sequence[Request], seconds: float) -> Sequence[str | None]:
        """Hand requests over; return a name for each, None for one that cannot be sent.

        A client no longer finds a request after so many seconds.
        """
        ...

    def receive(self, name: str, request: Request) -> Reply | None:
        """Take the reply to a request that was sent under a name; None: not yet."""
        ...
