"""What a scenario is drawn from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal

import numpy as np
from typing_extensions import TypeVar

from fcl_flower.config.params import Params
from fcl_flower.core.seeds import derive
from fcl_flower.data.datasets.base import Dataset
from fcl_flower.data.partition import Indices

P_co = TypeVar("P_co", bound=Params, default=Params, covariant=True)


@dataclass(frozen=True, slots=True)
class ScenarioSpec(Generic[P_co]):
    """What a scenario is drawn from.

    Attributes:
        sources: the data sets; none where clients have local data.
        clients: number of clients, at least 1.
        tasks: tasks per client, at least 1.
        classes_per_task: at least 2; 0 where tasks share out all classes.
        valid_fraction: share of a task's training samples kept for validation.
        params: settings of the scenario itself.
        max_train_per_class: training samples of each class for all together, those of
            the server included; 0 for all there are.
        max_test_per_class: likewise.
        public_fraction: share of each class's training samples that are the server's,
            in [0, 1).
        public: the server's own data set; None for none.
        seed: the run's seed.
    """

    sources: tuple[Dataset, ...]
    clients: int
    tasks: int
    classes_per_task: int
    valid_fraction: float
    params: P_co
    max_train_per_class: int = 0
    max_test_per_class: int = 0
    public_fraction: float = 0.0
    public: Dataset | None = None
    seed: int = 0

    def rng(self, purpose: str, *key: int) -> np.random.Generator:
        """Return the generator of one purpose."""
        return np.random.default_rng(derive(self.seed, f"scenario-{purpose}", *key))

    def shuffled_class(
        self, source: Dataset, split: Literal["train", "test"], label: int
    ) -> Indices:
        """Return the samples of a class that are used, in a shuffled order."""
        train = split == "train"
        y = (source.train if train else source.test).y
        most = self.max_train_per_class if train else self.max_test_per_class
        # By name, so that the samples are the same in whatever order data sets come.
        rng = self.rng(f"{split}/{source.name}", label)
        return rng.permutation(np.flatnonzero(y == label))[: most or None]

    def samples(
        self, source: Dataset, split: Literal["train", "test"], labels: Iterable[int]
    ) -> Indices:
        """Return the samples of some classes that are used, ascending."""
        train = split == "train"
        if self.max_train_per_class if train else self.max_test_per_class:
            found = [self.shuffled_class(source, split, label) for label in labels]
            return np.sort(np.concatenate(found))
        y = (source.train if train else source.test).y
        return np.flatnonzero(np.isin(y, list(labels)))
