"""The sets of the papers' tables, made of the files of a git repository."""

import gzip
import importlib.util
import io
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PROGRAM = Path(__file__).parents[2] / "experiments" / "reproduce" / "data.py"


@pytest.fixture(scope="module")
def data():
    spec = importlib.util.spec_from_file_location("reproduced_data", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(data, folder, files):
    """Commit files to a new repository; return its clone."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "files"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return data.Clone(folder, "HEAD")


def png(level, size=4):
    file = io.BytesIO()
    Image.fromarray(np.full((size, size), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_pixels_and_labels_of_folders(data, tmp_path):
    levels = {"train/0/b": 3, "train/0/a": 250, "train/1/a": 7, "test/1/c": 9}
    files = {f"{path}.png": png(level) for path, level in levels.items()}
    arrays = data.mnist(committed(data, tmp_path, files))["mnist"]
    assert arrays["x_train"].shape == (3, 4, 4)
    assert arrays["x_train"][:, 0, 0].tolist() == [250, 3, 7]
    assert arrays["y_train"].tolist() == [0, 0, 1]
    assert arrays["y_test"].tolist() == [1]


def test_scaled_pixels_are_those_of_before(data, tmp_path):
    y = np.repeat(np.arange(100), 6)
    pixels = np.arange(len(y) * 3 * 4).reshape(len(y), 3, 2, 2) % 256
    scaled = ((pixels / 255 - 0.5) / 0.5).astype(np.float32)
    file = npz(data=np.array({"x": scaled, "y": y}, object))
    ten = npz(data=np.array({"x": scaled[:60], "y": y[:60]}, object))
    files = {
        "dataset/Cifar100/train/0.npz": file,
        "dataset/Cifar100/config.json": b"",
        "dataset/Cifar10/train/0.npz": ten,
        data.NOT_EVERYWHERE: b"not read",
    }
    sets = data.cifar(committed(data, tmp_path, files))
    assert np.bincount(sets["cifar10"]["y_train"]).tolist() == [5] * 10
    arrays = sets["cifar100"]
    assert np.bincount(arrays["y_train"]).tolist() == [5] * 100
    assert np.bincount(arrays["y_test"]).tolist() == [1] * 100
    images = np.concatenate([arrays["x_train"], arrays["x_test"]])
    whole = pixels.transpose(0, 2, 3, 1).astype(np.uint8)
    assert sorted(map(bytes, images)) == sorted(map(bytes, whole))
    assert arrays["class_names"][0] == "apple"


def test_each_letter_is_there_once(data, tmp_path):
    images = np.arange(40, dtype=np.uint8).repeat(28 * 28).reshape(40, 28, 28)
    images, labels = np.concatenate([images, images[:8]]), np.arange(48) % 4
    files = {
        "t10k-images-idx3-ubyte.gz": gzip.compress(bytes(16) + images.tobytes()),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(
            bytes(8) + labels.astype(np.uint8).tobytes()
        ),
    }
    arrays = data.notmnist(committed(data, tmp_path, files))["notmnist"]
    levels = [*arrays["x_train"][:, 0, 0], *arrays["x_test"][:, 0, 0]]
    assert sorted(levels) == list(range(40))
    assert (arrays["y_train"] == arrays["x_train"][:, 0, 0] % 4).all()
    assert len(arrays["y_test"]) == 8


def test_no_track_of_a_sign_is_in_both_splits(data, tmp_path):
    files = {
        f"gtsrb/{kind}/{track:05}_{frame:05}.ppm": png(track, 40)
        for kind in range(43)
        for track in range(5)
        for frame in range(2)
    }
    files["gtsrb/0/00009_00000.ppm"] = b""
    arrays = data.traffic_signs(committed(data, tmp_path, files))["traffic_signs"]
    assert arrays["x_train"].shape == (43 * 8, 32, 32, 3)
    assert arrays["x_test"].shape == (43 * 2, 32, 32, 3)
    tracks = [
        {*zip(arrays[f"y_{split}"], arrays[f"x_{split}"][:, 0, 0, 0], strict=True)}
        for split in ("train", "test")
    ]
    assert not tracks[0] & tracks[1]


def test_a_pickle_of_anything_else_is_refused(data):
    file = npz(data=np.array({"x": print}, object))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins.print: expected array"):
        data._pickled_arrays(file)


def test_patients_with_missing_values_are_left_out(data, tmp_path):
    row = "63,1,4,140,260,?,1,112,1,3,?,?,?,{}"
    rows = [row.format(ill) for ill in (0, 2, 0, 1, 0, 3, 0, 1, 0, 1)]
    text = "\n".join(["age, sex, num", *rows, row.format(1).replace("140", "?")])
    folder, names = "heart+disease", ("cleveland", "hungarian", "switzerland", "va")
    files = {f"{folder}/processed.{name}.data": text.encode() for name in names}
    with np.errstate(invalid="ignore"):  # each column here has one value
        sets = data.heart(committed(data, tmp_path, files))
    assert {name.removeprefix("heart_") for name in sets} == set(names)
    arrays = sets["heart_va"]
    assert arrays["x_train"].shape == (8, 12)
    assert arrays["y_train"].tolist().count(1) == 4
    assert sorted(arrays["y_test"]) == [0, 1]


def test_a_digest_tells_arrays_apart(data):
    one = {"x": np.zeros((2, 3)), "y": np.zeros(2, np.int64)}
    assert data.digest(one) == data.digest(dict(reversed(one.items())))
    others = [
        {**one, "x": np.zeros((3, 2))},
        {**one, "y": np.ones(2, np.int64)},
        {**one, "y": np.zeros(2, np.int32)},
    ]
    assert len({data.digest(each) for each in [one, *others]}) == 4
