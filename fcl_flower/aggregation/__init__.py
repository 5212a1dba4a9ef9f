"""How many updates become one: means, and what hostile clients cannot move far."""

from typing import Literal, TypeAlias

# Here, not beside its code: a configuration needs no NumPy.
Rule: TypeAlias = Literal["mean", "median", "trimmed-mean", "geometric-median", "krum"]
Weighting: TypeAlias = Literal["examples", "uniform"]
