"""Where a client's samples come from: shared out by a scenario, or local."""

from typing import Protocol

from typing_extensions import override

from fcl_flower.core.types import TaskStage
from fcl_flower.data.examples import (
    Examples,
    InputSpec,
    SplitName,
    TaskData,
    concept_data,
    task_data,
    task_examples,
)
from fcl_flower.data.scenarios.plan import Scenario
from fcl_flower.data.text.word_vectors import WordVectors


class ClientData(Protocol):
    """The samples of one client as its model takes them."""

    @property
    def vectors(self) -> WordVectors | None:
        """Return vectors of the client's own words; None where the run's will do."""

    def training(self, stage: TaskStage) -> TaskData:
        """Return what the client trains on in a round."""

    def examples(self, task: int, split: SplitName) -> Examples:
        """Return one split of a task, or of a hidden concept."""


class ScenarioData(ClientData):
    """What a scenario deals to a client."""

    def __init__(self, scenario: Scenario, client: int, form: InputSpec) -> None:
        """Keep the plan, the client's number and the form of the tensors."""
        self._scenario, self._client, self._form = scenario, client, form

    @property
    @override
    def vectors(self) -> WordVectors | None:
        return None

    @override
    def training(self, stage: TaskStage) -> TaskData:
        if self._scenario.stream is None:
            return task_data(self._scenario, self._client, stage.task, self._form)
        return concept_data(self._scenario, self._client, stage.round, self._form)

    @override
    def examples(self, task: int, split: SplitName) -> Examples:
        return task_examples(self._scenario, self._client, task, split, self._form)
