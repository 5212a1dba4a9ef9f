"""Networks with heads: bodies, pre-trained encoders, and the registry of models.

It may import `privacy` and all rooms below it.
"""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from fcl_flower.models.build import from_module
    from fcl_flower.models.heads import MultiHeadModel
    from fcl_flower.models.registry import MODELS, ModelEntry

__all__ = [
    "MODELS",
    "ModelEntry",
    "MultiHeadModel",
    "from_module",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "build": "from_module",
        "heads": "MultiHeadModel",
        "registry": "MODELS ModelEntry",
    },
)
