"""Benchmarks of Avalanche: of what is like theirs, and of the library's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import fcl_flower as fcl
from fcl_flower.data.scenarios.given import from_avalanche

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = ((7, 2), (0, 5))


class Samples(list):
    """Rows as the library's data sets give them: another form for evaluation."""

    def __init__(self, rows, evaluated=None):
        super().__init__(rows)
        self.evaluated = evaluated or rows

    def eval(self):
        return self.evaluated


def experience(labels, make, *, task=0, each=3, tasks=None):
    rows = [
        (make(label, n), torch.tensor(label), task)
        for label in labels
        for n in range(each)
    ]
    return SimpleNamespace(
        dataset=Samples([("of training", 0)] * len(rows), rows),
        task_labels=[task] if tasks is None else tasks,
    )


def grey(label, n):
    """Return a tensor (1, H, W) as ToTensor gives it."""
    return torch.full((1, 4, 5), (label * 10 + n) / 100)


def benchmark(make=grey, *, labels=LABELS, tasks=(0, 0), test=None):
    stream = [experience(g, make, task=t) for g, t in zip(labels, tasks, strict=True)]
    if test is None:
        test = [
            experience(g, make, task=t, each=2)
            for g, t in zip(labels, tasks, strict=True)
        ]
    return SimpleNamespace(train_stream=stream, test_stream=test)


def test_experiences_are_tasks_and_one_task_label_means_one_head():
    found = from_avalanche(benchmark(), "mine")

    assert (found.head, found.incremental) == ("single", True)
    assert found.data.name == "mine"
    assert found.data.class_names == ("0", "2", "5", "7")
    assert [task.train.tolist() for task in found.tasks] == [
        list(range(6)),
        list(range(6, 12)),
    ]
    assert [task.test.tolist() for task in found.tasks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found.data.train.y.tolist() == [3] * 3 + [1] * 3 + [0] * 3 + [2] * 3
    assert found.data.test.y.tolist() == [3, 3, 1, 1, 0, 0, 2, 2]
    assert isinstance(found.data, fcl.datasets.ImageDataset)
    assert found.data.train.x.shape == (12, 4, 5)
    values = [0.7, 0.71, 0.72, 0.2, 0.21, 0.22]
    assert found.data.train.x[:6, 0, 0].tolist() == pytest.approx(values)


def test_a_task_label_for_each_means_a_head_for_each_and_classes_of_its_own():
    found = from_avalanche(benchmark(labels=((1, 0), (0, 1)), tasks=(4, 9)))

    assert (found.head, found.incremental) == ("multi", False)
    assert found.data.class_names == ("4/0", "4/1", "9/0", "9/1")
    assert found.data.train.y.tolist() == [1] * 3 + [0] * 3 + [2] * 3 + [3] * 3


def test_one_test_experience_serves_all_tasks():
    test = [experience((0, 2, 5, 7), grey, each=1)]
    found = from_avalanche(benchmark(test=test))

    assert [task.test.tolist() for task in found.tasks] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("sample", "kind", "shape"),
    [
        (torch.full((3, 4, 5), 0.5), "ImageDataset", (4, 5, 3)),
        (Image.new("RGB", (5, 4), (9, 8, 7)), "ImageDataset", (4, 5, 3)),
        (Image.new("L", (5, 4), 9), "ImageDataset", (4, 5)),
        (torch.full((6,), -2.0), "TabularDataset", (6,)),
        (torch.full((2, 9), -2.0), "TimeSeriesDataset", (2, 9)),
    ],
)
def test_samples_of_every_form_are_read(sample, kind, shape):
    found = from_avalanche(benchmark(lambda label, n: sample)).data

    assert type(found).__name__ == kind
    assert found.train.x.shape == (12, *shape)


def test_channels_keep_their_colours():
    coloured = torch.tensor([0.2, 0.4, 0.6])[:, None, None].expand(3, 4, 5)
    found = from_avalanche(benchmark(lambda label, n: coloured)).data

    assert found.train.x[0, 2, 3].tolist() == pytest.approx([0.2, 0.4, 0.6])


def refusals():
    strange = experience((1, 2), grey, each=1)
    empty = experience((), grey)
    large = experience((0, 2, 5, 7), lambda label, n: torch.zeros(1, 6, 6))
    mixed = experience((0, 2), lambda label, n: torch.zeros(1, 4, 4 + n))
    both = experience((0, 2), grey, tasks=[0, 1])
    two_shapes = benchmark()
    two_shapes.train_stream[1] = large
    three = benchmark(labels=((0, 1), (2, 3), (4, 5)), tasks=(0, 1, 1))
    return [
        *(
            (
                benchmark(lambda label, n, value=value: torch.full((1, 4, 5), value)),
                rf"benchmark: got an image with values from {value} to {value}, exp",
            )
            for value in (-0.4, float("nan"))
        ),
        (benchmark(test=[strange] * 3), "mine: test experiences: got 3, expected 2 as"),
        (benchmark(test=[strange]), "mine: test label: got 1, expected one that the"),
        (three, "mine: task labels: got 2, expected one for all 3 experiences, or one"),
        (
            benchmark(test=[both]),
            r"mine: test experience 0: task labels: got \[0, 1\], expected one",
        ),
        (benchmark(test=[empty]), "mine: test experience 0: samples: got 0, expected"),
        (
            benchmark(test=[mixed]),
            r"mine: test experience 0: shapes: got \[\(4, 4\), \(4, 5\), \(4, 6\)\]",
        ),
        (
            benchmark(test=[large]),
            r"mine: got test samples of shape \(6, 6\), expected",
        ),
        (two_shapes, "mine: train shapes: got .*, expected one"),
    ]


@pytest.mark.parametrize(("given", "message"), refusals())
def test_what_is_no_such_benchmark_is_refused(given, message):
    with pytest.raises(fcl.ConfigError, match=f"^{message}"):
        from_avalanche(given, "mine")


@pytest.mark.run
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("task_labels", "head"), [(False, "single"), (True, "multi")])
def test_a_benchmark_of_the_library_is_learned(task_labels, head):
    benchmarks = pytest.importorskip(
        "avalanche.benchmarks", reason="of the extra avalanche"
    )
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 24)
    x = rng.uniform(0, 0.3, (len(y), 1, 8, 8)).astype(np.float32)
    x[np.arange(len(y)), 0, 2 * y] += 0.7
    rows = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    rows.targets = y.tolist()
    made = benchmarks.nc_benchmark(
        rows,
        rows,
        n_experiences=2,
        task_labels=task_labels,
        seed=3,
        class_ids_from_zero_in_each_exp=task_labels,
    )

    found = from_avalanche(made, "stripes")
    result = fcl.simulate(
        "icarl" if head == "single" else "fedavg",
        data=found,
        model={"name": "small"},
        clients=2,
        rounds=2,
        epochs=10,
        progress=False,
    )

    assert (found.head, len(found.data.class_names)) == (head, 4)
    if not task_labels:
        for task, one in zip(found.tasks, made.train_stream, strict=True):
            learned = found.data.train.y[task.train].tolist()
            assert learned == list(one.dataset.targets)
    assert result.average_accuracy > 0.8
