"""What a scenario is drawn from."""

from dataclasses import dataclass, fields

import numpy as np

from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset


@dataclass(frozen=True, slots=True)
class Incremental:
    """What only class-incremental scenarios know; the fields of `RunConfig`.

    Attributes:
        class_share: share of a task's classes that a client draws, in (0, 1].
        public_fraction: share of each class's training samples that are the server's,
            in [0, 1).
        public_dataset: name of a data set that the server has instead; empty for none.
        same_labels: data sets whose classes of one name are one: ``a=b=c,d=e``.
        train_samples: of each class, at most, those of the server included; 0 for all.
        test_samples: of each class, at most; 0 for all.
    """

    class_share: float = 0.6
    public_fraction: float = 0.1
    public_dataset: str = ""
    same_labels: str = ""
    train_samples: int = 0
    test_samples: int = 0

    @classmethod
    def of(cls, config: RunConfig) -> "Incremental":
        """Return what a configuration says."""
        return cls(**{one.name: getattr(config, one.name) for one in fields(cls)})


USUAL = Incremental()


@dataclass(frozen=True, slots=True)
class ScenarioSpec:
    """What a scenario is drawn from.

    Attributes:
        sources: the data sets; none where clients have data of their own.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2; 0 where tasks share out all classes.
        valid_fraction: share of a task's training samples kept for validation.
        window: training samples that a client has of a hidden concept in a round.
        stay: rounds that it stays with one, on average; 0 for all at once.
        incremental: what only class-incremental scenarios know.
        public: the server's own data set; None for none.
        seed: the run's seed.
    """

    sources: tuple[Dataset, ...]
    clients: int
    tasks: int
    classes_per_task: int
    valid_fraction: float
    window: int
    stay: int
    incremental: Incremental
    public: Dataset | None
    seed: int

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the generator of one purpose."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))
