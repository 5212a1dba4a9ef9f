"""Whose task: how groups of a server's state and tensors are named after it."""

from typing import NamedTuple, Self

from fcl_flower.core.types import Payload


class ClientTask(NamedTuple):
    """A client, and one of its tasks, both counted from 0."""

    client: int
    task: int

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the task that ``c/t`` names."""
        client, task = name.split("/")
        return cls(int(client), int(task))

    @property
    def name(self) -> str:
        """Return ``c/t``."""
        return f"{self.client}/{self.task}"

    def group(self, kind: str) -> str:
        """Return the group of a payload that carries this kind of its tensors."""
        return f"{kind}/{self.name}"


def client_tasks(state: Payload, kind: str) -> list[ClientTask]:
    """Return of whose tasks there are groups ``kind/c/t``, ascending."""
    start = f"{kind}/"
    names = (g.removeprefix(start) for g in state if g.startswith(start))
    return sorted(map(ClientTask.of, names))
