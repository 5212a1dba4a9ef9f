"""The policy and the status of a service: two files in its folder."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.core.share import share
from fcl_flower.results.files import json_value, read_as, write_json

SERVICE_LOCK = ".service-lock"
"""Held by a service for as long as it lasts."""
BEGIN_NOW = "begin-now"
"""A file that makes a service begin with the tasks that are there."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class _File(BaseModel):
    """A file in the folder of a service; ``name`` is the file's."""

    model_config = ConfigDict(frozen=True)
    name: ClassVar[str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the file in a folder; a `ConfigError` where there is none."""
        return read_as(cls, folder / cls.name, json_value)

    def write(self, folder: Path) -> None:
        """Replace the file in a folder in one step."""
        write_json(folder / self.name, self.model_dump(mode="json"))


class ClientTasks(BaseModel):
    """The tasks of a client, as a service knows them.

    Attributes:
        connected: whether it can be asked now.
        tasks: the number of its tasks.
        learned: the number of its tasks that the federation has trained on.
        samples: of its next task; 0 without one.
        told: the time of its answer, in seconds since 1970; None for never.
    """

    model_config = ConfigDict(frozen=True)

    connected: bool = False
    tasks: Count = 0
    learned: Count = 0
    samples: Count = 0
    told: Seconds | None = None

    @property
    def ready(self) -> bool:
        """Whether it could train on a new task now."""
        return self.connected and self.tasks > self.learned


class Policy(_File):
    """The rule by which a service begins to train.

    Attributes:
        quorum: the clients with a new task that are enough: a fraction of the known
            clients, or a number of clients if it is a whole number.
        deadline: seconds from the first client's new task, after which any number of
            clients is enough; 0 for never.
        every: the least seconds between the beginnings of two trainings.
        min_samples: new training samples of all clients together that are enough.
        look: seconds between two questions to a client for its tasks.
    """

    name = "service-policy.json"
    quorum: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] = 0.6
    deadline: Seconds = 0.0
    every: Seconds = 0.0
    min_samples: Count = 0
    look: Seconds = 30.0

    def next_training(
        self,
        clients: Mapping[int, ClientTasks],
        first_new: float | None,
        last_begun: float | None,
    ) -> tuple[float, str]:
        """Say when the next training begins if nothing changes, and what it waits for.

        It begins when clients with a new task are a quorum and have enough samples, or
        at the deadline, and no earlier than `every` allows. The time is infinite if it
        waits for clients and there is no deadline.

        Args:
            clients: all known clients.
            first_new: since when a client has had a new task; None if none has.
            last_begun: when the last training began; None before the first.
        """
        ready = [client for client in clients.values() if client.ready]
        if not ready or first_new is None:
            return math.inf, "a client with a new task"
        needed, samples = self.quorum, sum(client.samples for client in ready)
        if isinstance(needed, float):
            needed = max(1, share(needed, len(clients)))
        missing = []
        if len(ready) < needed:
            have = f"where {len(ready)} have one"
            missing.append(f"a new task at {needed} clients, {have}")
        if samples < self.min_samples:
            have = f"where there are {samples}"
            missing.append(f"{self.min_samples} new samples, {have}")
        opens = -math.inf if last_begun is None else last_begun + self.every
        if not missing:
            return max(first_new, opens), "the time of the next training"
        sentence = " and ".join(missing)
        if not self.deadline:
            return math.inf, sentence
        return max(first_new + self.deadline, opens), f"{sentence}, or the deadline"


class ServiceStatus(_File):
    """The status of a service; times are seconds since 1970.

    Attributes:
        state: waiting, training or failed; then ``sentence`` has the reason.
        since: when it came into this state.
        learned: number of tasks that the federation has finished.
        sentence: what it waits for, or does, in words.
        due: when the next training begins if nothing changes; None where unknown.
        first_new: since when a client has a new task; None while none has.
        last_begun: when the last training began; None before the first.
        clients: by number.
    """

    name = "service.json"
    state: Literal["waiting", "training", "failed"]
    since: Seconds
    learned: Count
    sentence: str
    due: Seconds | None = None
    first_new: Seconds | None = None
    last_begun: Seconds | None = None
    clients: dict[int, ClientTasks] = {}
