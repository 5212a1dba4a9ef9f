"""The configuration of a node: Flower's ``--node-config``, checked."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from fcl_flower.config.parsing import validate_params


class NodeConfig(BaseModel):
    """The keys of ``flower-supernode --node-config``; unknown ones are refused.

    Flower's simulation gives the first two, and adds none of its own.

    Attributes:
        partition_id: the client's number, counted from 0: its name for good.
        num_partitions: how many clients there are; only needed where the run says
            neither that nor that clients have data of their own.
        data_path: folder with the client's own data.
        state_path: folder for what the client remembers.
        device: torch device name, or ``auto``; empty for the run's.
        word_vectors: file of word vectors; empty for the run's.
        client_name: what NVFlare calls the client, and tells every node; not used.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    partition_id: int = Field(ge=0)
    num_partitions: int = Field(0, ge=0)
    data_path: str = ""
    state_path: str = ""
    device: str = ""
    word_vectors: str = ""
    client_name: str = ""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "NodeConfig":
        """Return what Flower was given for this node.

        Raises:
            ConfigError: a key is unknown or missing, or a value refused.
        """
        return validate_params(cls, values, "node-config ")
