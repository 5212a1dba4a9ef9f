"""Data sets by name: what is accepted, what is refused, and in which words."""

import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset
from fcl_flower.data.datasets import Split
from fcl_flower.data.partition import split_stratified, train_valid_split
from fcl_flower.data.registry import known_datasets, load_dataset
from fcl_flower.data.scenarios.groups import (
    CIFAR100_SUPERCLASSES,
    superclass_groups,
)


@pytest.fixture(autouse=True)
def fresh_cache():
    load_dataset.cache_clear()


def arrays(**changes):
    """Return a valid file's arrays: 3 classes, 9 training and 6 test images."""
    rng = np.random.default_rng(0)
    good = {
        "x_train": rng.integers(0, 256, (9, 5, 4), np.uint8),
        "y_train": np.arange(9) % 3,
        "x_test": rng.integers(0, 256, (6, 5, 4), np.uint8),
        "y_test": np.arange(6) % 3,
        "class_names": np.array(["ant", "bee", "cat"]),
    }
    merged = {**good, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def test_digits_are_the_real_images_each_exactly_once(tmp_path):
    digits = load_dataset("digits", tmp_path)
    ours = np.concatenate([digits.train.x, digits.test.x]).reshape(-1, 64)
    labels = np.concatenate([digits.train.y, digits.test.y])
    images, targets = load_digits(return_X_y=True)
    real = np.rint(images / 16 * 255).astype(np.uint8)
    ours = np.column_stack([ours, labels])
    real = np.column_stack([real, targets])
    np.testing.assert_array_equal(
        ours[np.lexsort(ours.T)], real[np.lexsort(real.T)].astype(np.int64)
    )
    assert digits.class_names == tuple("0123456789")


def test_a_quarter_of_each_digit_is_for_testing(tmp_path):
    digits = load_dataset("digits", tmp_path)
    train, test = np.bincount(digits.train.y), np.bincount(digits.test.y)
    np.testing.assert_allclose(test, (train + test) / 4, atol=0.5)


def test_digits_are_split_the_same_way_each_time(tmp_path):
    first = load_dataset("digits", tmp_path)
    load_dataset.cache_clear()
    again = load_dataset("digits", tmp_path)
    assert first is not again
    np.testing.assert_array_equal(first.test.x, again.test.x)


def test_a_set_is_read_once_and_cannot_be_changed(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays())
    pets = load_dataset("pets", tmp_path)
    assert load_dataset("pets", tmp_path) is pets
    with pytest.raises(ValueError, match="read-only"):
        pets.train.x[0] = 0


@pytest.mark.parametrize("folder", ["", "images", "other"])
def test_a_file_is_found_in_the_root_and_in_its_folders(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    given = arrays()
    np.savez_compressed(tmp_path / folder / "pets.npz", **given)
    pets = load_dataset("pets", tmp_path)
    np.testing.assert_array_equal(pets.train.x, given["x_train"])
    np.testing.assert_array_equal(pets.test.y, given["y_test"])
    assert pets.class_names == ("ant", "bee", "cat")


def test_a_file_deeper_down_is_not_found(tmp_path):
    (tmp_path / "one" / "two").mkdir(parents=True)
    np.savez(tmp_path / "one" / "two" / "pets.npz", **arrays())
    with pytest.raises(ConfigError, match=r"one of digits, stdlib-docs; or hub"):
        load_dataset("pets", tmp_path)


@pytest.mark.parametrize("other", ["images/pets.npz", "text/pets/train.jsonl.gz"])
def test_two_sets_of_one_name_are_both_named(tmp_path, other):
    for path in (tmp_path / "har" / "pets.npz", tmp_path / other):
        path.parent.mkdir(parents=True)
        path.touch()
    with pytest.raises(ConfigError, match="dataset: got 'pets'") as caught:
        load_dataset("pets", tmp_path)
    second = tmp_path / other.removesuffix("/train.jsonl.gz")
    for place in (tmp_path / "har" / "pets.npz", second):
        assert str(place) in str(caught.value)
        assert str(place) in known_datasets(tmp_path)["pets"]


def test_classes_without_names_are_numbered(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays(class_names=None))
    assert load_dataset("pets", tmp_path).class_names == ("0", "1", "2")


def test_floating_point_images_are_scaled_to_bytes(tmp_path):
    x = np.zeros((9, 1, 3))
    x[:, 0] = [0.0, 0.5, 1.0]
    test = np.ones((6, 1, 3), np.float32)
    np.savez(tmp_path / "pets.npz", **arrays(x_train=x, x_test=test))
    pets = load_dataset("pets", tmp_path)
    assert pets.train.x[0, 0].tolist() == [0, 128, 255]
    assert pets.train.x.dtype == np.uint8
    assert pets.test.x.min() == 255


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_test": None}, "no array x_test"),
        ({"x_train": np.zeros((9, 20), np.uint8)}, r"x_train: got shape \(9, 20\)"),
        ({"x_train": np.zeros((9, 5, 4, 2), np.uint8)}, "x_train: got shape"),
        ({"x_train": np.zeros((0, 5, 4), np.uint8)}, "x_train: got shape"),
        ({"x_train": np.zeros((9, 5, 4), np.int32)}, "x_train: got dtype int32"),
        ({"x_train": np.full((9, 5, 4), 1.5)}, "x_train: got values from 1.5 to 1.5"),
        ({"x_train": np.full((9, 5, 4), -0.1)}, "x_train: got values from -0.1"),
        ({"x_train": np.full((9, 5, 4), np.nan)}, "x_train: got values from nan"),
        ({"y_train": np.zeros(9)}, "y_train: got dtype float64"),
        ({"y_train": np.arange(8) % 3}, r"y_train: got shape \(8,\)"),
        ({"y_train": np.zeros((9, 1), int)}, r"y_train: got shape \(9, 1\)"),
        ({"y_train": np.arange(9) % 3 + 1}, r"y_train: got labels 1\.\.3"),
        ({"y_train": np.arange(9) % 3 - 1}, r"y_train: got labels -1\.\.1"),
        ({"y_train": np.arange(9) % 2}, "y_train: got no sample of label 2"),
        ({"y_test": np.arange(6) % 2}, "y_test: got no sample of label 2"),
        (
            {"y_train": np.arange(9) * 2**40, "class_names": None},
            "y_train: got no sample of label 1",
        ),
        (
            {"x_test": np.zeros((6, 4, 4), np.uint8)},
            r"test samples of shape \(4, 4\), expected",
        ),
        ({"class_names": np.arange(3)}, "class_names has shape"),
        ({"class_names": np.array(["ant", "bee"])}, r"expected 0\.\.1"),
        ({"y_train": np.array([None] * 9)}, "cannot be read"),
    ],
)
def test_a_wrong_array_is_refused_by_file_and_key(tmp_path, change, words):
    np.savez(tmp_path / "pets.npz", **arrays(**change))
    with pytest.raises(ConfigError, match=words) as caught:
        load_dataset("pets", tmp_path)
    assert str(tmp_path / "pets.npz") in str(caught.value)


def test_a_damaged_file_is_refused_whatever_is_damaged(tmp_path):
    path = tmp_path / "pets.npz"
    np.savez_compressed(path, **arrays())
    sound = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(200):
        damaged = sound.copy()
        damaged[rng.integers(len(damaged), size=3)] = rng.integers(256, size=3)
        path.write_bytes(damaged[: rng.integers(1, len(damaged) * 4)].tobytes())
        load_dataset.cache_clear()
        try:
            load_dataset("pets", tmp_path)
        except ConfigError:
            refused += 1
    assert refused > 100


def test_a_missing_set_says_where_it_looked_and_what_there_is(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays())
    (tmp_path / "images").mkdir()
    np.savez(tmp_path / "images" / "cars.npz", **arrays())
    with pytest.raises(ConfigError) as caught:
        load_dataset("mnist", tmp_path)
    message = str(caught.value)
    for words in (
        "dataset: got 'mnist'",
        f"in {tmp_path} or a folder directly in it",
        "mnist.npz",
        "x_train, y_train, x_test, y_test",
        "--data-root or $FCL_DATA",
        "digits",
        "hub:NAME",
        "expected one of digits, stdlib-docs, cars, pets; or",
    ):
        assert words in message


def test_a_missing_data_root_is_no_crash(tmp_path):
    with pytest.raises(ConfigError, match=r"one of digits, stdlib-docs; or hub"):
        load_dataset("mnist", tmp_path / "nowhere")


def test_what_is_listed_is_what_can_be_loaded(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays())
    (tmp_path / "more").mkdir()
    np.savez(tmp_path / "more" / "cars.npz", **arrays())
    for name in known_datasets(tmp_path).keys() & {"digits", "pets", "cars"}:
        assert load_dataset(name, tmp_path).name == name
    assert known_datasets(tmp_path)["cars"] == str(tmp_path / "more" / "cars.npz")


@pytest.mark.parametrize(
    "name", ["../pets", "a/b", "a\\b", "/etc", "", ".", "..", "\0"]
)
def test_a_name_that_is_a_path_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="dataset: got"):
        load_dataset(name, tmp_path)


def test_the_hub_without_its_extra_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match=r'pip install "fcl-flower\[hub\]"'):
        load_dataset("hub:somebody/something", tmp_path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Write images, 3 training and 2 test of each class, each of its own colour."""
    pytest.importorskip("flwr_datasets", reason="needs the extra hub")
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))

    def write(mode, size=lambda at: (7, 9), splits=("train", "test")):
        for split, number in zip(splits, (3, 2), strict=False):
            for label, name in enumerate(("ape", "bee")):
                place = tmp_path / "pictures" / split / name
                place.mkdir(parents=True)
                for at in range(number):
                    colour = 100 * label + at
                    if mode == "RGB":
                        colour = (colour, 0, 255)
                    image.new(mode, size(at), colour).save(place / f"{at}.png")
        return f"hub:{tmp_path / 'pictures'}"

    return write


@pytest.mark.parametrize(
    ("mode", "shape", "pixel"),
    [("L", (9, 7), 101), ("RGB", (9, 7, 3), [101, 0, 255])],
)
def test_the_hub_loads_a_folder_of_images(folder, tmp_path, mode, shape, pixel):
    name = folder(mode)
    pictures = load_dataset(name, tmp_path)
    assert pictures.name == name
    assert pictures.class_names == ("ape", "bee")
    assert pictures.train.x.shape == (6, *shape)
    assert pictures.test.x.shape == (4, *shape)
    assert pictures.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert pictures.train.x[4, 0, 0].tolist() == pixel


def test_the_hub_takes_a_validation_split_for_testing(folder, tmp_path):
    name = folder("L", splits=("train", "validation"))
    assert load_dataset(name, tmp_path).test.y.tolist() == [0, 0, 1, 1]


def test_the_hub_refuses_images_of_several_sizes(folder, tmp_path):
    name = folder("L", size=lambda at: (7 + at, 9))
    with pytest.raises(ConfigError, match="3 different sizes"):
        load_dataset(name, tmp_path)


def test_the_hub_refuses_a_set_without_test_images(folder, tmp_path):
    name = folder("L", splits=("train",))
    with pytest.raises(ConfigError, match="called test or validation or valid"):
        load_dataset(name, tmp_path)


def test_the_hub_refuses_a_folder_without_images(folder, tmp_path):
    with pytest.raises(ConfigError, match="reachable set with a split called train"):
        load_dataset(f"hub:{tmp_path / 'nothing'}", tmp_path)


def test_the_superclasses_are_20_times_5_different_classes():
    classes = [name for five in CIFAR100_SUPERCLASSES.values() for name in five]
    assert len(CIFAR100_SUPERCLASSES) == 20
    assert {len(five) for five in CIFAR100_SUPERCLASSES.values()} == {5}
    assert len(set(classes)) == 100


def hundred(name, names):
    split = Split(np.zeros((100, 2, 2), np.uint8), np.arange(100))
    return ImageDataset(name, split, split, tuple(names))


def test_superclasses_follow_the_names_whatever_their_order():
    names = sorted(name for five in CIFAR100_SUPERCLASSES.values() for name in five)
    backwards = hundred("mine", names[::-1])
    for group in superclass_groups(backwards):
        found = {backwards.class_names[label] for label in group.labels}
        assert found == set(CIFAR100_SUPERCLASSES[group.name.removeprefix("mine/")])
        assert list(group.labels) == sorted(group.labels)


def test_an_unnamed_cifar100_has_the_official_order_and_others_have_no_groups():
    numbers = [str(label) for label in range(100)]
    groups = superclass_groups(hundred("cifar100", numbers))
    labels = {group.name: group.labels for group in groups}
    # The official coarse label 1: aquarium_fish, flatfish, ray, shark, trout.
    assert labels["cifar100/fish"] == (1, 32, 67, 73, 91)
    assert superclass_groups(hundred("tiny", numbers)) == []


def test_the_stored_cifar100_has_20_superclasses():
    root = os.environ.get("FCL_DATA")
    if not root or not (Path(root) / "images" / "cifar100.npz").is_file():
        pytest.skip("needs images/cifar100.npz under FCL_DATA")
    source = load_dataset("cifar100", Path(root))
    groups = superclass_groups(source)
    assert len(groups) == 20
    for group in groups:
        found = {source.class_names[label] for label in group.labels}
        assert found == set(CIFAR100_SUPERCLASSES[group.name.split("/")[1]])


def test_deal_is_disjoint_complete_and_even_in_every_class():
    labels = np.repeat([7, 3, 5], [11, 4, 20])
    parts = split_stratified(labels, 4, np.random.default_rng(0))
    assert all(np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(35))
    for label in (3, 5, 7):
        counts = [np.count_nonzero(labels[part] == label) for part in parts]
        assert max(counts) - min(counts) <= 1


def test_what_does_not_divide_goes_to_another_part_for_each_class():
    # Three classes of 4 samples, three parts: one sample too many in each class.
    parts = split_stratified(np.repeat([0, 1, 2], 4), 3, np.random.default_rng(0))
    assert [len(part) for part in parts] == [4, 4, 4]


def test_hold_out_takes_its_share_of_each_class_but_never_all():
    labels = np.repeat([0, 1, 2, 3], [100, 20, 2, 1])
    kept, held = train_valid_split(labels, 0.15, np.random.default_rng(0))
    assert np.bincount(labels[held], minlength=4).tolist() == [15, 3, 1, 0]
    assert np.bincount(labels[kept], minlength=4).tolist() == [85, 17, 1, 1]
    assert not np.intersect1d(kept, held).size
    _, most = train_valid_split(labels, 0.99, np.random.default_rng(0))
    assert np.bincount(labels[most], minlength=4).tolist() == [99, 19, 1, 0]


@pytest.mark.parametrize(
    "cut",
    [
        lambda rng: split_stratified(np.zeros(50), 2, rng),
        lambda rng: train_valid_split(np.zeros(50), 0.5, rng),
    ],
    ids=["deal", "hold_out"],
)
def test_chance_decides_which_samples_go_where(cut):
    one, other = (cut(np.random.default_rng(seed))[0].tolist() for seed in (0, 1))
    assert one != other
    assert one == cut(np.random.default_rng(0))[0].tolist()
