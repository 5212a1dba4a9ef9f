"""How many finished tasks a client has, and of how many samples."""

import gzip
import json

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.local.client import finished_tasks
from fcl_flower.data.local.layout import DONE, find_tasks


def write(folder, number, rows, name="train.csv"):
    task = folder / f"task-{number:02}"
    task.mkdir(exist_ok=True)
    (task / name).write_text("x,label\n" + "1,a\n2,b\n" * (rows // 2))
    return task


def counted(folder, *, marked=False):
    """Return the samples by task, and what is reported."""
    errors = []
    found = finished_tasks(folder, marked=marked, report=errors.append)
    return found, [str(error) for error in errors]


def test_training_samples_are_counted_in_every_format(tmp_path):
    write(tmp_path, 1, 6)
    write(tmp_path, 1, 40, "test.csv")
    lines = "".join(json.dumps({"text": t, "label": t}) + "\n" for t in "abc")
    for number, name in ((2, "train.jsonl"), (3, "train.jsonl.gz"), (4, "train.npz")):
        (tmp_path / f"task-{number:02}").mkdir()
        path = tmp_path / f"task-{number:02}" / name
        match number:
            case 2:
                path.write_text(lines)
            case 3:
                path.write_bytes(gzip.compress(lines.encode()))
            case 4:
                np.savez(path, x=np.zeros((7, 2)), y=np.zeros(7, int))
    for label, images in (("cat", 2), ("dog", 3)):
        place = tmp_path / "task-05" / "train" / label
        place.mkdir(parents=True)
        for image in range(images):
            (place / f"{image}.png").write_bytes(b"")
        (place / ".hidden").write_bytes(b"")

    assert counted(tmp_path) == ([6, 3, 3, 7, 5], [])


def test_a_task_that_grows_is_counted_anew(tmp_path):
    write(tmp_path, 1, 2)
    assert counted(tmp_path)[0] == [2]
    write(tmp_path, 1, 8)
    assert counted(tmp_path)[0] == [8]


def test_a_task_counts_when_it_has_its_own_name(tmp_path):
    write(tmp_path, 1, 4)
    task = write(tmp_path, 2, 4)
    hidden = task.rename(tmp_path / ".task-02")
    assert counted(tmp_path)[0] == [4]
    hidden.rename(task)
    assert counted(tmp_path)[0] == [4, 4]


def test_a_marked_task_counts_with_its_mark_and_after_those_before(tmp_path):
    for number in (1, 2, 3):
        write(tmp_path, number, 4)
    assert counted(tmp_path, marked=True) == ([], [])
    (tmp_path / "task-01" / DONE).touch()
    (tmp_path / "task-03" / DONE).touch()
    assert counted(tmp_path, marked=True) == ([4], [])
    (tmp_path / "task-02" / "half.written").touch()
    assert [task.name for task in find_tasks(tmp_path, marked=True)] == ["task-01"]
    (tmp_path / "task-02" / "half.written").unlink()
    (tmp_path / "task-02" / DONE).touch()
    assert counted(tmp_path, marked=True) == ([4, 4, 4], [])
    # Nobody is in the way of the mark where it is not asked for.
    assert counted(tmp_path) == ([4, 4, 4], [])


def test_a_task_that_cannot_be_read_ends_the_list_and_is_reported(tmp_path):
    for number in (1, 2, 3):
        write(tmp_path, number, 4)
    path = tmp_path / "task-02" / "train.csv"
    path.write_text("")
    found, errors = counted(tmp_path)
    assert found == [4]
    assert len(errors) == 1
    assert str(path) in errors[0]
    assert counted(tmp_path / "missing")[0] == []


def test_a_client_trains_on_no_task_without_its_mark(tmp_path):
    from fcl_flower.data.arrays import TabularDataset
    from fcl_flower.data.local.client import LocalData, LocalDataSpec

    spec = LocalDataSpec(TabularDataset, (1,), 0, 2, (), 0.2, 0)
    write(tmp_path, 1, 10)
    LocalData(tmp_path, spec, 1, None)
    with pytest.raises(ConfigError, match="task 0 is not there yet: the client has 0"):
        LocalData(tmp_path, spec, 1, None, marked=True)
    (tmp_path / "task-01" / DONE).touch()
    LocalData(tmp_path, spec, 1, None, marked=True)
