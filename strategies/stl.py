"""Single-task learning: declaration; all of it happens on the client."""

from fcl_flower.algorithms.registry import Algorithm

ALGORITHM = Algorithm(
    name="stl",
    server="strategies.local:NoOpStrategy",
    client="clients.stl:SingleTask",
    summary="a fresh model for each task: the single-task bound",
    single_task=True,
)
