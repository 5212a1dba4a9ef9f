"""Replay whose features stay near those of the received model: a preset of replay.

Huang et al., NAACL 2021, https://arxiv.org/abs/2104.05489.
"""

from dataclasses import replace

from strategies import replay

ALGORITHM = replace(
    replay.ALGORITHM,
    name="replay-reg",
    summary="replay whose features are held near those of the received model",
    paper="Huang et al., NAACL 2021",
    defaults={**replay.ALGORITHM.defaults, "strategy.strength": 1.0},
)
