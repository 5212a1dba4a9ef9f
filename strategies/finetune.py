"""FedAvg on the new classes only, in class-incremental learning: a preset of FedAvg."""

from dataclasses import replace

from strategies import fedavg

ALGORITHM = replace(
    fedavg.ALGORITHM,
    name="finetune",
    summary="FedAvg on the new classes only: the cost of forgetting",
    paper="Yogatama et al., 2019",
    counterpart="",
    defaults={"data.datasets": "stdlib-docs", "scenario.name": "class-incremental"},
    models=("transformer",),
)
