"""What clients were asked and have not answered.

It is part of every asynchronous checkpoint: a run that is resumed asks the same again,
made of the state that there was when it was asked first. Each client keeps the state
before its last round and answers the same, so that nothing is lost and nothing differs.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from flwr.app import Message, MessageType

from fcl_flower.core.types import Payload, Request, TaskStage
from fcl_flower.federation.codec import WireFormat
from fcl_flower.federation.copies import COPIES, NO_VERSION, ModelVersion, notes_of
from fcl_flower.federation.messages import MessageEncoder


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """One message to a client, as it was sent.

    Attributes:
        message_type: Flower's, with what follows the dot.
        stage: of the client, in the server's count of rounds.
        tasks: how many accuracies its reply has to hold; 0 for none.
        request: what the message asked for, in the client's own count.
        payload: of the message, its models as values.
        known: what the client knows of them then.
    """

    message_type: str
    stage: TaskStage
    tasks: int
    request: Request
    payload: Payload
    known: ModelVersion = NO_VERSION

    def message(self, node: int, wire: WireFormat) -> Message:
        """Make the message again."""
        content = MessageEncoder(wire).encode_request(self.payload, self.request)
        if self.known.models:
            content[COPIES] = notes_of(self.known)
        return Message(content, dst_node_id=node, message_type=self.message_type)


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """What a checkpoint keeps of an asynchronous run beside the strategy's state.

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
            if request.message_type == MessageType.EVALUATE
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
            about = (one.message_type, asdict(one.stage), one.tasks)
            asked[client] = (*about, asdict(one.request), sorted(one.payload))
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
            message_type, stage, tasks, request, names = about
            requests[int(client)] = PendingRequest(
                message_type,
                TaskStage(**stage),
                tasks,
                Request(TaskStage(**request.pop("stage")), **request),
                {name: groups[f"{client}/{name}"] for name in names},
                known.get(client, NO_VERSION),
            )
        return cls(requests, {int(c): found for c, found in kept["notes"].items()})
