"""A run as a node has it: its specification, and the node's own settings."""

from collections.abc import Mapping
from typing import Final, Self

from pydantic import ConfigDict, Field, ValidationError

from fcl_flower.config.parsing import Frozen, first_complaint, validate_params
from fcl_flower.config.run_config import RunConfig

SPEC: Final = "run specification "


class NodeConfig(Frozen):
    """The keys of ``flower-supernode --node-config``; unknown ones are refused.

    Flower's simulation gives the first two, and adds none of its own. Without any the
    server numbers the nodes as it meets them.

    Attributes:
        partition_id: the client's number, counted from 0: its name for good. None
            where the server gives it.
        num_partitions: not used, since the run says how many clients there are.
        data_path: folder with the client's own data.
        marked_tasks: 1 where a task's folder counts once it holds a file DONE.
        state_path: folder for what the client remembers.
        keep_runs: of how many runs it remembers anything; 0 for all.
        device: torch device name, or ``auto``; empty for the run's.
        word_vectors: file of word vectors; empty for the run's.
        client_name: what NVFlare calls the client, and tells every node; not used.
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

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "NodeConfig":
        """Check what Flower was given for this node."""
        return validate_params(cls, values, "node-config ")


class RunSpec(Frozen):
    """A run with nothing left open: what `setup.resolve` decides, sent as JSON.

    The server sends it to each client when they meet. Nobody who has it looks at data
    again to know what the run is.

    Attributes:
        config: every setting with its value.
        modality: of the data: ``images``, ``time-series``, ``tabular``, ``text``.
        input_shape: of one input of the network.
        hidden_tasks: clients are not told which task, or concept, they have.
        local_data: each client has data of its own.
        tasks: that follow one another in the schedule: 1 where concepts are hidden.
        revision: counts the specifications of one run.
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
        """Check what a server has sent."""
        try:
            found = cls.model_validate_json(text)
            if "normalise" not in found.config.data.model_fields_set:
                # Of a version in which all pixels were these.
                return found.with_settings(normalise="fixed")
            return found
        except ValidationError as error:
            raise first_complaint(cls, error, SPEC) from error

    def to_json(self) -> str:
        """Write it down; equal specifications have equal text."""
        return self.model_dump_json()

    def with_settings(self, **settings: object) -> Self:
        """Copy it with other settings, on which nothing else of it depends."""
        return self.model_copy(update={"config": self.config.replace(**settings)})

    def on_node(self, node: NodeConfig) -> Self:
        """Put a node's own device and word vectors in the place of the run's."""
        own = {}
        if node.device:
            own["training.device"] = node.device
        if node.word_vectors and self.modality == "text":
            own["data.word_vectors"] = node.word_vectors
        return self.with_settings(**own) if own else self
