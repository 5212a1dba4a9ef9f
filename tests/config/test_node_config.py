"""What Flower is told of a node."""

import pytest

from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError


def test_a_node_of_nvflare_has_a_name_beside_its_number():
    told = {"client-name": "site-2", "partition-id": 1, "num-partitions": 2}

    node = NodeConfig.of(told)

    assert (node.partition_id, node.num_partitions) == (1, 2)
    assert node.client_name == "site-2"


def test_another_key_is_refused():
    with pytest.raises(ConfigError, match=r"^node-config name: got 'name', expected "):
        NodeConfig.of({"partition-id": 1, "name": "site-2"})
