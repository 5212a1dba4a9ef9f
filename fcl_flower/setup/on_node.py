"""The run as it holds on one node."""

from dataclasses import replace

from fcl_flower.config.node_config import NodeConfig
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import ConfigError
from fcl_flower.setup.checks import has_local_data
from fcl_flower.setup.resolve import resolve
from fcl_flower.setup.resolved_run import ResolvedRun


def resolve_on_node(config: RunConfig, node: NodeConfig) -> ResolvedRun:
    """Return the run as it holds on one node.

    Raises:
        ConfigError: neither the run nor the node says how many clients there are, but
            the scenario shares out data; or the configuration cannot be resolved.
    """
    clients = config.scenario.clients or node.num_partitions
    if not clients and not has_local_data(config):
        raise ConfigError(
            "node-config num-partitions: missing, expected how many clients there are, "
            "which the run does not say either"
        )
    run = resolve(
        config.replace(
            clients=clients,
            device=node.device or config.training.device,
            min_updates=1,  # the server's business, and checked against the clients
        )
    )
    if node.word_vectors and run.modality == "text":
        return replace(run, config=run.config.replace(word_vectors=node.word_vectors))
    return run
