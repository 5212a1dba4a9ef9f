"""Requests that clients have not answered yet.

It is part of every asynchronous checkpoint: a run that is resumed asks the same again,
made of the state that there was when it was asked first. Each client keeps the state
before its last round and answers the same, so that nothing is lost and nothing differs.
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
    """One message to a client, as it was sent.

    Attributes:
        kind: of the request, as in `Request`.
        stage: of the client, in the server's count of rounds.
        tasks: how many accuracies its reply has to hold; 0 for none.
        assignment: what the message asked for, in the client's own count.
        payload: of the message, its models as values.
        known: what the client knows of them then.
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
        progress: what else is known of each client, as JSON can hold it.
    """

    requests: Mapping[int, PendingRequest]
    progress: Mapping[int, Mapping[str, Any]]

    def without(self, clients: Collection[int]) -> "PendingRequests":
        """Drop the requests of some clients, who are asked anew when they come."""
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
        """Turn them into groups of tensors, those of the requests as they are."""
        asked, known = dict[int, Any](), dict[int, Any]()
        groups: dict[str, Any] = {}
        for client, one in self.requests.items():
            about = (one.kind, asdict(one.stage), one.tasks)
            asked[client] = (*about, asdict(one.assignment), sorted(one.payload))
            groups |= {f"{client}/{g}": arrays for g, arrays in one.payload.items()}
            models = one.known.models
            if models:
                known[client] = (one.known.version, sorted(models))
                groups |= {f"known/{client}/{g}": models[g] for g in models}
        text = json.dumps({"asked": asked, "notes": self.progress, "known": known})
        return {"notes": {"json": np.frombuffer(text.encode(), np.uint8)}, **groups}

    @classmethod
    def from_payload(cls, groups: Payload) -> Self:
        """Restore what `to_payload` was given."""
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
        return cls(requests, {int(c): found for c, found in kept["notes"].items()})
