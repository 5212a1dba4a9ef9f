"""FedAvg on all tasks at once, the bound without forgetting: a preset of FedAvg.

Named MTL, multi-task learning, in FedET (Liu et al., IJCAI 2023, table 4).
"""

from dataclasses import replace

from strategies import fedavg

ALGORITHM = replace(
    fedavg.ALGORITHM,
    name="mtl",
    summary="FedAvg on all tasks at once: the bound without forgetting",
    paper="-",
    counterpart="",
    defaults={
        "data.datasets": "stdlib-docs",
        "scenario.name": "class-incremental",
        "scenario.joint": True,
    },
    models=("transformer",),
)
