"""FedAvg on all tasks at once, the bound without forgetting: a preset of FedAvg.

FedET (Liu et al., IJCAI 2023, table 4) calls it MTL, multi-task learning.
"""

from dataclasses import replace

from strategies import finetune

ALGORITHM = replace(
    finetune.ALGORITHM,
    name="mtl",
    summary="FedAvg on all tasks at once: the bound without forgetting",
    paper="-",
    defaults={**finetune.ALGORITHM.defaults, "scenario.joint": True},
)
