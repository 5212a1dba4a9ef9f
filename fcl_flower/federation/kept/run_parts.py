"""What all clients of a run share in a process, built once and kept between messages.

A process serves many messages of a run: all clients of a simulation in turn, or one
client again and again. Nothing of a client's own is here, neither data nor state, and
nothing that a learner may change: it gets the network as it was at first.
"""

from typing import TypeAlias

from flwr.app import Context

from fcl_flower.config.attack import refuse_attack
from fcl_flower.config.node_config import NodeConfig
from fcl_flower.config.run_config import RunConfig
from fcl_flower.data.scenarios.registry import Scenario
from fcl_flower.data.text.word_vectors import WordVectors
from fcl_flower.federation.kept.lent_network import LentNetwork
from fcl_flower.models.registry import MultiHeadModel
from fcl_flower.setup import factory
from fcl_flower.setup.on_node import resolve_on_node
from fcl_flower.setup.resolved_run import ResolvedRun
from fcl_flower.setup.threads import limited_threads

_Key: TypeAlias = tuple[int, str, str]


class RunParts:
    """What all clients of a run share on nodes that are configured alike.

    Attributes:
        run: as it holds on these nodes.
        scenario: who learns what.
    """

    def __init__(self, run: ResolvedRun) -> None:
        """Draw the scenario, and limit the threads of this process to the run's.

        Raises:
            ConfigError: it cannot be drawn.
        """
        self.run = run
        self.scenario: Scenario = factory.build_scenario(run)
        # What reads the data may have brought a library of its own.
        limited_threads(run.algorithm, run.config.training.threads)
        self._network: LentNetwork | None = None

    def network(self, words: WordVectors | None) -> MultiHeadModel:
        """Return the initial network on its device, the caller's to change.

        It is the caller's until the same thread asks again (`LentNetwork`).

        Args:
            words: vectors of a client's own words; None for those of the run.

        Raises:
            ConfigError: the network does not suit the data, or its device is not there.
        """
        if words is not None:  # one client's own: of no use to any other
            return factory.build_network(self.run, self.scenario, words)
        if self._network is None:
            made = factory.build_network(self.run, self.scenario)
            self._network = LentNetwork(made)
        return self._network.lend()


_KEPT: dict[_Key, RunParts] = {}
"""Of one run at a time; more than one where its nodes are configured differently."""


def run_parts(context: Context, node: NodeConfig) -> RunParts:
    """Return what the clients of a run share, built if this process has not yet.

    It is known again by the run's number, by its whole configuration and by all that
    the node's says of more than one client. The parts of another run are let go.

    Args:
        context: of the message.
        node: its node's configuration.

    Raises:
        ConfigError: the configuration is refused.
    """
    alike = node.model_copy(
        update={"partition_id": 0, "data_path": "", "state_path": ""}
    )
    key = (context.run_id, repr(sorted(context.run_config.items())), repr(alike))
    if key not in _KEPT:
        given = RunConfig.of(context.run_config)
        refuse_attack(given)  # a server sent it, and no server may ask for that
        made = RunParts(resolve_on_node(given, node))
        for other in [known for known in _KEPT if known[:2] != key[:2]]:
            del _KEPT[other]
        _KEPT[key] = made
    return _KEPT[key]


def forget_runs() -> None:
    """Let go of all parts: the run has ended, and another may have the same number."""
    _KEPT.clear()
