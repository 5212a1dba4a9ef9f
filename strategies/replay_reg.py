"""Replay, and features that must not move far in a round."""

from dataclasses import replace

from pydantic import Field

from strategies import replay


class ReplayRegParams(replay.ReplayParams):
    """Hyper-parameters of replay with regularization.

    Attributes:
        strength: weight of the penalty, at least 0; 0 is replay alone.
    """

    strength: float = Field(1.0, ge=0)


ALGORITHM = replace(
    replay.ALGORITHM,
    name="replay-reg",
    client="clients.replay.regularized:ReplayReg",
    params_type=ReplayRegParams,
    summary="replay whose features are held near those of the received model",
    paper="Huang et al., NAACL 2021",
)
