"""Networks, with a head for each task or a single one."""

from typing import TYPE_CHECKING

from fcl_flower.core.lazy import lazy_names

if TYPE_CHECKING:
    from fcl_flower.models.entry import ModelEntry, from_module
    from fcl_flower.models.multi_head import MultiHeadModel
    from fcl_flower.models.registry import MODELS

__all__ = [
    "MODELS",
    "ModelEntry",
    "MultiHeadModel",
    "from_module",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "entry": "ModelEntry from_module",
        "multi_head": "MultiHeadModel",
        "registry": "MODELS",
    },
)
