"""A run as a node has it: its specification, and the node's own settings."""

from collections.abc import Mapping
from typing import Final, Self

from pydantic import ConfigDict, Field, ValidationError

from fcl_flower.config.parsing import Frozen, first_complaint, validate_params
from fcl_flower.config.run_config import RunConfig

SPEC: Final = "run specification "


class NodeConfig(Frozen):
    """The keys of ``flower-supernode --node-config``.

    Flower's simulation sets the first two. Without the first, the server numbers the
    nodes in the order in which they reply.

    Attributes:
        partition_id: the client's lasting number, counted from 0; None if the server
            numbers the client.
        num_partitions: not used, since the run has the number of clients.
        data_path: folder with the client's own data.
        marked_tasks: 1 if a task's folder counts only once it holds a file DONE.
        state_path: folder for the client's states.
        keep_runs: number of runs whose states the client keeps; 0 for all.
        device: torch device name, or ``auto``; empty for the run's.
        word_vectors: file of word vectors; empty for the run's.
        client_name: NVFlare's name of the client, which it sets; not used.
        hide_faults: 1 if the server hears nothing of what is wrong with the data.
    """

    model_config = ConfigDict(
        alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    partition_id: int | None = Field(None, ge=0)
    num_partitions: int = Field(0, ge=0)
    data_path: str = ""
    marked_tasks: int = Field(0, ge=0, le=1)
    state_path: str = ""
    keep_runs: int = Field(0, ge=0)
    device: str = ""
    word_vectors: str = ""
    client_name: str = ""
    hide_faults: int = Field(0, ge=0, le=1)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "NodeConfig":
        """Check the node config that Flower passes on."""
        return validate_params(cls, values, "node-config ")


class RunSpec(Frozen):
    """A run with nothing left open, as `setup.resolve` decides it; sent as JSON.

    The server sends it to each client. With it no program has to look at data to know
    the run.

    Attributes:
        config: every setting with its value.
        modality: ``images``, ``time-series``, ``tabular`` or ``text``.
        input_shape: shape of one input of the network.
        hidden_tasks: whether clients do not know their task, or concept.
        local_data: whether each client has local data.
        tasks: number of tasks in the schedule; 1 if concepts are hidden.
        revision: number of this specification among those of the run.
    """

    config: RunConfig
    modality: str
    input_shape: tuple[int, ...]
    hidden_tasks: bool
    local_data: bool
    tasks: int = Field(ge=1)
    revision: int = Field(0, ge=0)

    @property
    def names_classes(self) -> bool:
        """Whether clients name the classes of a single head as they meet them."""
        return self.local_data and self.config.model.growing_head

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Check the specification that a server has sent."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise first_complaint(cls, error, SPEC) from error

    def to_json(self) -> str:
        """Convert to JSON; equal specifications have equal text."""
        return self.model_dump_json()

    def with_settings(self, **settings: object) -> Self:
        """Copy with other settings, on which no other field depends."""
        return self.model_copy(update={"config": self.config.replace(**settings)})

    def on_node(self, node: NodeConfig) -> Self:
        """Replace the run's device and word vectors by those of the node, if any."""
        own = {}
        if node.device:
            own["training.device"] = node.device
        if node.word_vectors and self.modality == "text":
            own["data.word_vectors"] = node.word_vectors
        return self.with_settings(**own) if own else self
