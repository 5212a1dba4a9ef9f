"""How long the rest of a run will take, from the rounds that are finished."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

CAUTION = 2.0
"""How little is made of a growth that few tasks have shown: what is added to the sum of
squares below a slope (ridge regression). Of two tasks a fifth of it counts, of three a
half, of five five sixths."""

SLOWEST_START = 2.0
"""Times a round that the first may count for: a task's first round is often the longest
by far, that of the run for reasons that do not come again."""

FIRST_TEST = 0.5
"""Share of the first test that is taken to come again: it loads what the others find
loaded, but nobody can tell how much that is before there is a second."""


@dataclass(slots=True)
class _Rounds:
    """Rounds of one kind in one task: those that are finished, and those to come.

    Attributes:
        finished: how many.
        seconds: that these took together.
        to_come: how many others there will be.
    """

    finished: int = 0
    seconds: float = 0.0
    to_come: int = 0

    @property
    def mean(self) -> float:
        return self.seconds / self.finished


@dataclass(slots=True)
class _Task:
    """The rounds of one task: those after which clients are tested, and the others."""

    plain: _Rounds = field(default_factory=_Rounds)
    tested: _Rounds = field(default_factory=_Rounds)


class Pace:
    """Foretells the seconds that are left of a run.

    A round of task t, counted from 0, takes what training takes in that task, and where
    clients are tested after it, (t + 1) times what the test on one task takes, as there
    is one on each task so far. The first task does not say how training grows: nothing
    is remembered, received of others or distilled yet. From the second on its growth is
    taken to be linear.
    """

    def __init__(self, rounds: int, tasks: int, tested: Callable[[int], bool]) -> None:
        """Foretell a run without a finished round.

        Args:
            rounds: of the whole run, at least 1.
            tasks: into which these are divided, at least 1.
            tested: whether clients are tested after a round, counted from 1.
        """
        self._rounds, self._tested = rounds, tested
        self._tasks = [_Task() for _ in range(tasks)]
        self._first = 0.0
        for number in range(1, rounds + 1):
            self._of(number).to_come += 1

    def add(self, number: int, seconds: float) -> None:
        """Note what a round took; the rounds come in their order, from 1.

        The first also loads what the others find loaded: what is more than
        `SLOWEST_START` times the second does not count.
        """
        found = self._of(number)
        found.to_come -= 1
        if number == 1:
            self._first = seconds
        elif number == 2:
            excess = self._first - SLOWEST_START * seconds
            self._of(1).seconds -= max(0.0, excess)
        found.finished += 1
        found.seconds += seconds

    def left(self, running: float = 0.0) -> float | None:
        """Return the seconds until the last round is finished; None if none is yet.

        Args:
            running: seconds since the last round was finished.
        """
        seen = [t for t, task in enumerate(self._tasks) if _measured(task).finished]
        if not seen:
            return None
        training = self._training(seen)
        test = self._test()
        rest, following = 0.0, 0.0
        for t, task in reversed([*enumerate(self._tasks)]):
            for rounds, extra in ((task.tested, test * (t + 1)), (task.plain, 0.0)):
                if rounds.to_come:
                    following = training[t] + extra
                    rest += rounds.to_come * following
        return rest - min(running, following)

    def _of(self, number: int) -> _Rounds:
        """Return the rounds of the kind and the task of one of them."""
        task = self._tasks[(number - 1) * len(self._tasks) // self._rounds]
        return task.tested if self._tested(number) else task.plain

    def _training(self, seen: Sequence[int]) -> list[float]:
        """Return the seconds that training takes in a round, by task.

        The mean of the latest task that has a finished round, and as one round more the
        mean of the task before: its first round alone is often the longest.
        """
        means = {t: _measured(self._tasks[t]).mean for t in seen}
        *before, latest = seen
        level, count = means[latest], _measured(self._tasks[latest]).finished
        if before:
            level = (count * level + means[before[-1]]) / (count + 1)
        grown = _slope({t: mean for t, mean in means.items() if 0 < t <= latest})
        return [max(0.0, level + grown * (t - latest)) for t in range(len(self._tasks))]

    def _test(self) -> float:
        """Return the seconds of a test on one task; 0 where it cannot be told apart."""
        both = {
            t: task
            for t, task in enumerate(self._tasks)
            if task.plain.finished and task.tested.finished
        }
        if len(both) > 1:  # then what the first has loaded is known not to come again
            del both[min(both)]
        tests = sum(task.tested.finished * (t + 1) for t, task in both.items())
        more = sum(
            task.tested.finished * (task.tested.mean - task.plain.mean)
            for task in both.values()
        )
        share = FIRST_TEST if tests == 1 else 1.0
        return max(0.0, share * more / tests) if tests else 0.0


def _measured(task: _Task) -> _Rounds:
    """Return the rounds that show what training takes: without a test, if there are."""
    return task.plain if task.plain.finished else task.tested


def _slope(means: Mapping[int, float]) -> float:
    """Return by how much values grow from task to task, cautiously.

    Args:
        means: a value of some tasks, by their number; of fewer than two it is 0.
    """
    if len(means) < 2:
        return 0.0
    middle, level = fmean(means), fmean(means.values())
    product = sum((t - middle) * (mean - level) for t, mean in means.items())
    return product / (sum((t - middle) ** 2 for t in means) + CAUTION)
