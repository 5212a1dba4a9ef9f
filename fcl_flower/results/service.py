"""``service.json``: what a federation that runs as a service waits for, or does."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.core.share import share
from fcl_flower.results.files import json_value, read_as, write_json

FILE = "service.json"
POLICY_FILE = "service-policy.json"
SERVICE_LOCK = ".service-lock"
"""Held by a service for as long as it lasts."""
BEGIN_NOW = "begin-now"
"""A file by which a service is told to begin with what there is."""

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Policy(_Kept):
    """When a service begins to train.

    Attributes:
        quorum: clients with a new task that are enough: a fraction of those that are
            known, or a number of clients where it is a whole number.
        deadline: seconds after which the clients that have a new task are enough, from
            the moment that the first has one; 0 for never.
        every: seconds between the beginnings of two trainings, at least.
        min_samples: new training samples of all clients together that are enough.
        look: seconds between two questions to a client for its tasks.
    """

    quorum: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, le=1)] = 0.6
    deadline: Seconds = 0.0
    every: Seconds = 0.0
    min_samples: Count = 0
    look: Annotated[float, Field(gt=0)] = 30.0

    def needed(self, known: int) -> int:
        """Count the clients with a new task that are enough."""
        if isinstance(self.quorum, int):
            return self.quorum
        return max(1, share(self.quorum, known))


class ClientTasks(_Kept):
    """What is known of a client: its tasks, and when (seconds since 1970) it told them.

    ``learned`` tasks are its own that the federation has trained on; ``samples`` are
    those of its next one, 0 where it has none yet.
    """

    connected: bool
    tasks: Count
    learned: Count
    samples: Count
    told: Seconds | None

    @property
    def ready(self) -> bool:
        """Whether it could train on a new task now."""
        return self.connected and self.tasks > self.learned


class ServiceStatus(_Kept):
    """What a service waits for, or does; times are seconds since 1970.

    Attributes:
        state: waiting, training, or failed, of which ``sentence`` tells the reason.
        since: when it came into this state.
        learned: tasks that the federation has finished.
        sentence: what it waits for, or does, in words.
        due: when the next training begins if nothing changes; None where nobody knows.
        first_new: since when a client has a new task; None while none has.
        last_begun: when the last training began; None before the first.
        clients: by number.
    """

    state: Literal["waiting", "training", "failed"]
    since: Seconds
    learned: Count
    sentence: str
    due: Seconds | None = None
    first_new: Seconds | None = None
    last_begun: Seconds | None = None
    clients: dict[int, ClientTasks] = {}


def read_status(folder: Path) -> ServiceStatus:
    """Read what a service in a folder does; a `ConfigError` where there is none."""
    return read_as(ServiceStatus, folder / FILE, json_value)


def read_policy(folder: Path) -> Policy:
    """Read when a service in a folder begins to train."""
    return read_as(Policy, folder / POLICY_FILE, json_value)


def write(path: Path, content: Policy | ServiceStatus) -> None:
    """Replace one of the files in one step."""
    write_json(path, content.model_dump(mode="json"))
