"""What clients of an asynchronous run were asked and have not answered.

It is part of every checkpoint: a run that is resumed asks the same again, made of the
state that there was when it was asked first. Each client keeps the state before its
last round and answers the same, so that nothing is lost and nothing differs.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Message, MessageType
from typing_extensions import override

from fcl_flower.core.types import Payload, Request, TaskStage
from fcl_flower.federation import messages
from fcl_flower.federation.checkpoint import Saved, StateStore, require_free
from fcl_flower.federation.copies import COPIES, notes_of
from fcl_flower.federation.replies import Asked, ReplyReader
from fcl_flower.federation.wire_format import NOTHING, Known, WireFormat

_PREFIX = "asked/"
"""Of the groups of a checkpoint that are no part of the strategy's state."""
_NOTES = f"{_PREFIX}notes"
_KNOWN = f"{_PREFIX}known/"


@dataclass(frozen=True, slots=True)
class Question:
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
    known: Known = NOTHING

    @classmethod
    def of(
        cls,
        message: Message,
        stage: TaskStage,
        tasks: int,
        made_of: tuple[Payload, Known],
    ) -> "Question":
        """Return what a message of the server's asks.

        Args:
            message: to a client.
            stage: see the attributes.
            tasks: likewise.
            made_of: its payload, and what the client knows then.
        """
        asked = messages.decode_request(message.content)
        return cls(message.metadata.message_type, stage, tasks, asked, *made_of)

    def announce(self, client: int, reader: ReplyReader) -> None:
        """Let a reader expect the client's reply."""
        if self.message_type == MessageType.EVALUATE:
            reader.expect_scores(client, self.tasks)
        else:
            asked = Asked(self.stage, self.request.stage, self.tasks, self.known)
            reader.expect_update(client, asked)

    def message(self, node: int, wire: WireFormat) -> Message:
        """Return the message again.

        Args:
            node: of the client.
            wire: how tensors travel.
        """
        encoder = messages.MessageEncoder(wire)
        content = encoder.encode_request(self.payload, self.request)
        if self.known.models:
            content[COPIES] = notes_of(self.known)
        return Message(content, dst_node_id=node, message_type=self.message_type)


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a checkpoint keeps of an asynchronous run beside the strategy's state.

    Attributes:
        questions: by client, in the order in which they were asked.
        notes: what else is known of each client, as JSON can hold it.
    """

    questions: Mapping[int, Question]
    notes: Mapping[int, Mapping[str, Any]]

    def without_questions(self, clients: Collection[int]) -> "InFlight":
        """Return the same with some asked anew, of the state that there will be.

        Args:
            clients: whose questions are left out; they are asked anew when they come.
        """
        tests = MessageType.EVALUATE
        tested = {c for c, q in self.questions.items() if q.message_type == tests}
        return InFlight(
            {c: q for c, q in self.questions.items() if c not in clients},
            {
                client: {
                    **notes,
                    "queried": 0,
                    "ended_task": notes["ended_task"] or client in tested,
                }
                if client in clients
                else notes
                for client, notes in self.notes.items()
            },
        )

    def to_payload(self) -> Payload:
        """Return it as groups of tensors, those of the questions as they are."""
        asked = {
            client: [
                *(question.message_type, asdict(question.stage), question.tasks),
                *(asdict(question.request), sorted(question.payload)),
            ]
            for client, question in self.questions.items()
        }
        known = {
            client: (question.known.version, sorted(question.known.models))
            for client, question in self.questions.items()
            if question.known.models
        }
        text = json.dumps({"asked": asked, "notes": self.notes, "known": known})
        return {
            _NOTES: {"json": np.frombuffer(text.encode(), np.uint8)},
            **{
                f"{_PREFIX}{client}/{group}": arrays
                for client, question in self.questions.items()
                for group, arrays in question.payload.items()
            },
            **{
                f"{_KNOWN}{client}/{group}": arrays
                for client, question in self.questions.items()
                for group, arrays in question.known.models.items()
            },
        }

    @classmethod
    def of_payload(cls, groups: Payload) -> "InFlight | None":
        """Return what `to_payload` was made of; None where nothing is kept."""
        if _NOTES not in groups:
            return None
        kept = json.loads(np.asarray(groups[_NOTES]["json"]).tobytes())
        known = {
            client: Known(version, {n: groups[f"{_KNOWN}{client}/{n}"] for n in names})
            for client, (version, names) in kept.get("known", {}).items()
        }
        return cls(
            {
                int(client): Question(
                    message_type,
                    TaskStage(**stage),
                    tasks,
                    Request(TaskStage(**request.pop("stage")), **request),
                    {name: groups[f"{_PREFIX}{client}/{name}"] for name in names},
                    known.get(client, NOTHING),
                )
                for client, (message_type, stage, tasks, request, names) in kept[
                    "asked"
                ].items()
            },
            {int(client): notes for client, notes in kept["notes"].items()},
        )


class CheckpointStore(StateStore):
    """The strategy's state, with what is in flight beside it.

    Attributes:
        in_flight: saved with the next state; after `load` what was saved with that.
    """

    def __init__(self, store: StateStore) -> None:
        """Keep both in ``store``."""
        self._store = store
        self.in_flight: InFlight | None = None

    @override
    def load(self, before: int) -> Saved | None:
        saved = self._store.load(before)
        if saved is None:
            return None
        self.in_flight = InFlight.of_payload(saved.payload)
        state = {
            group: arrays
            for group, arrays in saved.payload.items()
            if not group.startswith(_PREFIX)
        }
        return Saved(saved.round, state)

    @override
    def save(self, payload: Payload, server_round: int) -> None:
        require_free(payload, _PREFIX, "the server's state")
        beside = {} if self.in_flight is None else self.in_flight.to_payload()
        self._store.save({**payload, **beside}, server_round)
