"""Requests that clients have not answered yet.

They are part of every asynchronous checkpoint. A resumed run sends the same requests
again, made of the same state. Each client keeps the state before its last round and
gives the same answer, so that no number differs.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from fcl_flower.core.types import Assignment, Payload, TaskStage
from fcl_flower.rounds.codec import WireFormat
from fcl_flower.rounds.copies import COPIES, NO_VERSION, ModelVersion, notes_of
from fcl_flower.rounds.messages import MessageEncoder
from fcl_flower.rounds.transport import EVALUATE, Request


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request to a client, with all that it was made of.

    Attributes:
        kind: of the request, as in `Request`.
        stage: of the client, in the server's count of rounds.
        tasks: the number of accuracies in the reply; 0 for none.
        assignment: of the client, in its own count of rounds.
        payload: of the message, its models as values.
        known: the models that the client has after the message.
    """

    kind: str
    stage: TaskStage
    tasks: int
    assignment: Assignment
    payload: Payload
    known: ModelVersion = NO_VERSION

    def again(self, node: int, wire: WireFormat) -> Request:
        """Make the request again."""
        content = MessageEncoder(wire).encode_request(self.payload, self.assignment)
        if self.known.models:
            content.scalars[COPIES] = notes_of(self.known)
        return Request(node, self.kind, content)


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """The part of an asynchronous checkpoint beside the strategy's state.

    Attributes:
        requests: by client, in the order in which they were sent.
        progress: of each client, in the types of JSON.
    """

    requests: Mapping[int, PendingRequest]
    progress: Mapping[int, Mapping[str, Any]]

    def without(self, clients: Collection[int]) -> "PendingRequests":
        """Drop the requests of some clients, which get new ones when they connect."""
        tests = {
            client
            for client, request in self.requests.items()
            if request.kind == EVALUATE
        }
        return PendingRequests(
            {c: request for c, request in self.requests.items() if c not in clients},
            {
                client: {
                    **progress,
                    "queried": 0,
                    "ended_task": progress["ended_task"] or client in tests,
                }
                if client in clients
                else progress
                for client, progress in self.progress.items()
            },
        )

    def to_payload(self) -> Payload:
        """Turn all into groups of tensors, among them those of the requests."""
        asked, known = dict[int, Any](), dict[int, Any]()
        groups: dict[str, Any] = {}
        for client, request in self.requests.items():
            about = (request.kind, asdict(request.stage), request.tasks)
            payload, models = request.payload, request.known.models
            asked[client] = (*about, asdict(request.assignment), sorted(payload))
            groups |= {f"{client}/{g}": arrays for g, arrays in payload.items()}
            if models:
                known[client] = (request.known.version, sorted(models))
                groups |= {f"known/{client}/{g}": models[g] for g in models}
        text = json.dumps({"asked": asked, "notes": self.progress, "known": known})
        return {"notes": {"json": np.frombuffer(text.encode(), np.uint8)}, **groups}

    @classmethod
    def from_payload(cls, groups: Payload) -> Self:
        """Restore requests from the groups of `to_payload`."""
        kept = json.loads(np.asarray(groups["notes"]["json"]).tobytes())
        known = {
            client: ModelVersion(
                version, {name: groups[f"known/{client}/{name}"] for name in names}
            )
            for client, (version, names) in kept.get("known", {}).items()
        }
        requests: dict[int, PendingRequest] = {}
        for client, about in kept["asked"].items():
            kind, stage, tasks, assignment, names = about
            requests[int(client)] = PendingRequest(
                kind,
                TaskStage(**stage),
                tasks,
                Assignment(TaskStage(**assignment.pop("stage")), **assignment),
                {name: groups[f"{client}/{name}"] for name in names},
                known.get(client, NO_VERSION),
            )
        return cls(requests, {int(c): notes for c, notes in kept["notes"].items()})
