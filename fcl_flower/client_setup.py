"""What a client makes of the run's configuration and of its node's."""

from pathlib import Path

from fcl_flower import assembly, completion
from fcl_flower.config import RunConfig
from fcl_flower.data.client_data import ClientData, DealtData
from fcl_flower.data.own import OwnData
from fcl_flower.data.scenarios import Scenario
from fcl_flower.data.tasks import Form
from fcl_flower.data.vector_files import find_vectors
from fcl_flower.errors import ConfigError
from fcl_flower.models import model_entry
from fcl_flower.node import NodeConfig
from fcl_flower.own_run import own_data, wanted


def on_node(config: RunConfig, node: NodeConfig) -> RunConfig:
    """Return the run's configuration, completed, as it holds on one node.

    Raises:
        ConfigError: neither the run nor the node says how many clients there are, but
            the scenario deals out data; or the configuration cannot be completed.
    """
    clients = config.clients or node.num_partitions
    if not clients and not own_data(config):
        raise ConfigError(
            "node-config num-partitions: missing; expected how many clients there are, "
            "which the run does not say either"
        )
    config = completion.completed(
        config.with_values(
            clients=clients,
            device=node.device or config.device,
            min_replies=1,  # the server's business, and checked against the clients
        )
    )
    if node.word_vectors and completion.data_kind(config) == "text":
        return config.with_values(word_vectors=node.word_vectors)
    return config


def client_data(
    config: RunConfig, plan: Scenario, node: NodeConfig, tasks: int
) -> ClientData:
    """Return where a client's samples come from.

    Args:
        config: of `on_node`.
        plan: the scenario.
        node: the client's node.
        tasks: how many tasks the client is asked for.

    Raises:
        ConfigError: the client should have data of its own, but has not, or not as
            described; or word vectors are missing.
    """
    shape = completion.input_shape(config)
    root = completion.data_root(config)
    if not plan.own:
        numbering = assembly.tokens(config) or assembly.vectors(config)
        form = Form(root, shape, config.head == "single", numbering)
        return DealtData(plan, node.partition_id, form)
    if not node.data_path:
        raise ConfigError(
            "node-config data-path: missing; expected the folder with this client's "
            f"own data, for scenario {plan.name}"
        )
    folder = Path(node.data_path).expanduser()
    words = assembly.tokens(config) or vector_file(config)
    return OwnData(folder, wanted(config, shape), tasks, words)


def vector_file(config: RunConfig) -> Path | None:
    """Return the file of word vectors of a client with data of its own.

    None where the data are not text, or their model has tokens of its own.

    Raises:
        ConfigError: there is no such file, or none is named.
    """
    if completion.data_kind(config) != "text" or model_entry(config.model).encoder:
        return None
    if not config.word_vectors:
        raise ConfigError(
            "word-vectors: '' is refused: expected a file, of the run or of the node, "
            "since clients with texts of their own have to agree on the vectors"
        )
    return find_vectors(config.word_vectors, completion.data_root(config))
