import shutil

import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.local.layout import checksum


@pytest.fixture
def folder(tmp_path):
    """Write two tasks, of which the first has a folder of images."""
    for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        image = tmp_path / "client" / "task-01" / "train" / name
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(name.encode())
    second = tmp_path / "client" / "task-02"
    second.mkdir()
    for name in ("train", "valid", "test"):
        (second / f"{name}.csv").write_text(f"x,label\n1,{name}\n")
    return tmp_path / "client"


def test_where_the_data_lie_does_not_count(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert checksum(tmp_path / "copy", 2) == checksum(folder, 2)


@pytest.mark.parametrize(
    "name", ["task-01/train/dog/1.png", "task-02/train.csv", "task-02/test.csv"]
)
def test_one_byte_of_any_file_counts(folder, name):
    before = checksum(folder, 2)
    with (folder / name).open("ab") as file:
        file.write(b"0")
    assert checksum(folder, 2) != before


def test_a_class_that_is_a_link_counts(folder, tmp_path):
    cats = folder / "task-01" / "train" / "cat"
    before = checksum(folder, 2)
    (cats).rename(tmp_path / "elsewhere")
    cats.symlink_to(tmp_path / "elsewhere")
    assert checksum(folder, 2) == before
    (tmp_path / "elsewhere" / "2.png").write_bytes(b"another")
    assert checksum(folder, 2) != before


def test_what_nobody_reads_does_not_count(folder):
    before = checksum(folder, 2)
    for name in ("cat/Thumbs.db", ".DS_Store"):
        (folder / "task-01" / "train" / name).write_bytes(b"of a window")
    assert checksum(folder, 2) == before


def test_class_and_split_of_a_file_count(folder):
    before = checksum(folder, 2)
    cat = folder / "task-01" / "train" / "cat"
    (cat / "2.png").rename(cat.parent / "dog" / "2.png")
    moved = checksum(folder, 2)
    (folder / "task-02" / "valid.csv").rename(folder / "task-02" / "valid.jsonl")
    assert len({before, moved, checksum(folder, 2)}) == 3


def test_labels_of_the_manifest_count(tmp_path):
    (tmp_path / "data.csv").write_text("x,label\n1,a\n")
    found = []
    for labels in ('["a", "b"]', '["b", "a"]'):
        (tmp_path / "tasks.toml").write_text(
            f'[[task]]\nname = "one"\ntrain = "data.csv"\nlabels = {labels}\n'
        )
        found.append(checksum(tmp_path, 1))
    assert found[0] != found[1]


def test_tasks_that_a_run_does_not_have_do_not_count(folder):
    first = checksum(folder, 1)
    (folder / "task-02" / "train.csv").write_text("x,label\n2,new\n")
    assert checksum(folder, 1) == first
    assert checksum(folder, 2) != first


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "task-02" / "train.csv").unlink()
    (folder / "task-02" / "train.csv").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"train\.csv: expected a file"):
        checksum(folder, 2)
