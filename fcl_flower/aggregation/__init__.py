"""Aggregation of many updates to one, by means or by robust rules.

It may import `core`.
"""

from typing import Literal, TypeAlias

# The types are here because the configuration reads them and must not import NumPy.
Rule: TypeAlias = Literal["mean", "median", "trimmed-mean", "geometric-median", "krum"]
Weighting: TypeAlias = Literal["examples", "uniform"]
