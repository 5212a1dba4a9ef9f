"""What a scenario is drawn from."""

from dataclasses import dataclass

import numpy as np
from pydantic import Field

from fcl_flower.config.params import Params
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset


class ConceptsParams(Params):
    """Parameters of the scenario concepts."""

    window: int = Field(320, ge=2)
    """Training samples that a client has in a round."""
    mean_duration: int = Field(1, ge=0)
    """Rounds that a client stays with a concept, on average; 0 for all concepts at
    once."""
    reveal_ids: bool = False
    """Tell clients which concept they have: for baselines that need a task id."""


class ClassIncrementalParams(Params):
    """Parameters of the scenario class-incremental."""

    class_fraction: float = Field(0.6, gt=0, le=1)
    """Fraction of each task's classes that a client has."""
    merge_labels: str = ""
    """Data sets whose classes of the same name are one class, such as 'a=b=c,d=e'."""


@dataclass(frozen=True, slots=True)
class Incremental:
    """What only class-incremental scenarios know.

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
