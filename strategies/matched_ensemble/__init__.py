"""Ensembles of matched networks: declaration and hyper-parameters.

One-shot federated learning (Guha, Talwalkar and Smith, 2019,
https://arxiv.org/abs/1902.11175) has every client train a network to the end, and asks
all of them together. Here only those are asked that have learned the classes of a task,
which the server tells from sums over features that nobody trains, as `analytic` does.
"""

from typing import Literal

from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm

HEADS = "heads."
"""Before the names of the tensors of a model's heads."""


class MatchedEnsembleParams(Params):
    """Hyper-parameters of ensembles of matched networks."""

    matching: Literal["tested", "none"] = "tested"
    """Classes of different tasks are taken for one if their means are ``tested`` to be
    the same; with ``none`` nothing is asked or handed on: each task stands alone."""
    start: Literal["matched", "fresh"] = "matched"
    """What a new task begins with: the ``matched`` network of most of its classes, if
    there is one, or always the ``fresh`` one of the run."""
    ask: Literal["matched", "own"] = "matched"
    """Who answers for a task: its own network and all ``matched`` ones together, or its
    ``own`` alone, by which others are no more than a start."""
    min_samples: int = Field(10, ge=1)
    """Training samples of a task without which neither sums over them nor its network
    are sent: over fewer they would show them."""

    @property
    @override
    def needs_validation(self) -> bool:
        return self.matching == "tested"


ALGORITHM = Algorithm(
    name="matched-ensemble",
    server="strategies.matched_ensemble.server:MatchedEnsemble",
    client="clients.matched_ensemble:MatchedEnsemble",
    params_type=MatchedEnsembleParams,
    summary="a network for each task, asked together with those of the same classes",
    paper="Guha et al., 2019",
    returns_to_tasks=False,
)
