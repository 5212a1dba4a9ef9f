"""Ensembles of matched networks: declaration and hyper-parameters.

In one-shot federated learning (Guha, Talwalkar and Smith, 2019,
https://arxiv.org/abs/1902.11175) every client trains a network to the end, and all of
them predict together. Here only networks that have learned the classes of a task
predict for it. The server finds them by sums over features of an untrained network, as
`analytic` does.
"""

from typing import Literal

from pydantic import Field
from typing_extensions import override

from fcl_flower.algorithms.base import Params
from fcl_flower.algorithms.registry import Algorithm
from fcl_flower.config.parsing import Counts

HEADS = "heads."
"""The prefix of the names of the tensors of a model's heads."""


class MatchedEnsembleParams(Params):
    """Hyper-parameters of ensembles of matched networks."""

    counts = (
        Counts(
            "strategy.start strategy.ask strategy.min_samples",
            "strategy.matching",
            ("tested",),
        ),
    )

    matching: Literal["tested", "none"] = "tested"
    """The match of classes of different tasks. With ``tested``, they are one class if
    their means are tested to be the same. With ``none``, no network is shared: each
    task stands alone."""
    start: Literal["matched", "fresh"] = "matched"
    """The start of a new task's network: the ``matched`` network of most of its
    classes, if there is one, or always the ``fresh`` one of the run."""
    ask: Literal["matched", "own"] = "matched"
    """The networks that predict for a task: its own and all ``matched`` ones together,
    or its ``own`` alone. With ``own``, other networks are only a start."""
    min_samples: int = Field(10, ge=1)
    """The fewest training samples of a task whose sums and network are sent: sums over
    fewer would show the samples."""

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
