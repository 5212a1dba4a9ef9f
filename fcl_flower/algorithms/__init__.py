"""The contracts of a method's two sides, and the registry that finds methods.

It may import `results`, `training` and all rooms below them.
"""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from fcl_flower.algorithms.base import (
        ClientContext,
        ClientLearner,
        Params,
        ServerStrategy,
    )
    from fcl_flower.algorithms.registry import Algorithm, algorithm, registered

__all__ = [
    "Algorithm",
    "ClientContext",
    "ClientLearner",
    "Params",
    "ServerStrategy",
    "algorithm",
    "registered",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "ServerStrategy ClientLearner ClientContext Params",
        "registry": "Algorithm algorithm registered",
    },
)
