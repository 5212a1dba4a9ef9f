"""Data sets by name: what is accepted, what is refused, and in which words."""

import importlib
from importlib.util import find_spec

import numpy as np
import pytest
from sklearn.datasets import load_digits
from text_sets import write_text_set

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import ImageDataset
from fcl_flower.data.datasets import Split
from fcl_flower.data.partition import split_stratified, train_valid_split
from fcl_flower.data.registry import known_datasets, load_dataset
from fcl_flower.data.scenarios.groups import (
    CIFAR100_SUPERCLASSES,
    superclass_groups,
)


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
    real = np.rint(images / 16 * 255).astype(np.int64)
    ours, real = np.column_stack([ours, labels]), np.column_stack([real, targets])
    np.testing.assert_array_equal(ours[np.lexsort(ours.T)], real[np.lexsort(real.T)])
    assert digits.class_names == tuple("0123456789")
    train, test = np.bincount(digits.train.y), np.bincount(digits.test.y)
    np.testing.assert_allclose(test, (train + test) / 4, atol=0.5)


@pytest.mark.parametrize("folder", ["", "images"])
def test_a_file_is_found_in_the_root_and_in_its_folders(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    given = arrays()
    np.savez_compressed(tmp_path / folder / "pets.npz", **given)
    pets = load_dataset("pets", tmp_path)
    assert load_dataset("pets", tmp_path) is pets
    np.testing.assert_array_equal(pets.train.x, given["x_train"])
    np.testing.assert_array_equal(pets.test.y, given["y_test"])
    assert pets.class_names == ("ant", "bee", "cat")
    with pytest.raises(ValueError, match="read-only"):
        pets.train.x[0] = 0


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_test": None}, "no array x_test"),
        ({"y_train": np.zeros(9)}, "y_train: got dtype float64"),
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


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["arrays", "texts"])
def test_a_damaged_file_is_refused_whatever_is_damaged(tmp_path, kind):
    if kind == "arrays":
        path = tmp_path / "pets.npz"
        np.savez_compressed(path, **arrays())
    else:
        rows = [("pet", "The cat sat."), ("insect", "Bees?")] * 40
        write_text_set(tmp_path, rows, rows[:2], "pets")
        path = tmp_path / "pets" / "train.jsonl.gz"
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
    write_text_set(tmp_path / "images", [("a", "b")], [("a", "b")], "news")
    with pytest.raises(ConfigError) as caught:
        load_dataset("mnist", tmp_path)
    assert str(caught.value) == (
        "dataset: got 'mnist', expected one of news, digits, stdlib-docs, cars, pets; "
        "or hub:NAME, or a file mnist.npz with the arrays x_train, y_train, x_test, "
        f"y_test, or a folder mnist with train.jsonl.gz, in {tmp_path} or a folder "
        "directly in it (set --data-root or $FCL_DATA)"
    )


def test_what_is_listed_is_what_can_be_loaded(tmp_path):
    np.savez(tmp_path / "pets.npz", **arrays())
    (tmp_path / "more").mkdir()
    np.savez(tmp_path / "more" / "cars.npz", **arrays())
    for name in known_datasets(tmp_path).keys() & {"digits", "pets", "cars"}:
        assert load_dataset(name, tmp_path).name == name
    assert known_datasets(tmp_path)["cars"] == str(tmp_path / "more" / "cars.npz")


@pytest.mark.parametrize("name", ["../pets", "a\\b", "/etc", "", "..", "\0"])
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
    if find_spec("flwr_datasets") is None:  # an import would read the environment
        pytest.skip("needs the extra hub")
    image = pytest.importorskip("PIL.Image")
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


def test_the_hub_does_not_tell_flower_which_data_are_loaded(folder, tmp_path):
    load_dataset(folder("RGB"), tmp_path)
    telemetry = importlib.import_module("flwr_datasets.common.telemetry")
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"


def test_the_hub_takes_a_validation_split_for_testing(folder, tmp_path):
    name = folder("L", splits=("train", "validation"))
    assert load_dataset(name, tmp_path).test.y.tolist() == [0, 0, 1, 1]


def test_the_hub_scales_images_of_several_sizes_to_the_median(folder, tmp_path):
    pictures = load_dataset(folder("L", size=lambda at: (7 + at, 9)), tmp_path)
    assert pictures.train.x.shape == (6, 9, 8)
    assert pictures.test.x.shape == (4, 9, 8)
    assert pictures.train.x[:, 4, 4].tolist() == [0, 1, 2, 100, 101, 102]


def test_the_hub_scales_large_images_of_several_sizes_down(folder, tmp_path):
    pictures = load_dataset(folder("L", size=lambda at: (700 + at, 20)), tmp_path)
    assert pictures.train.x.shape == (6, 20, 256)


def test_the_hub_keeps_16_bits(folder, tmp_path):
    pictures = load_dataset(folder("I;16"), tmp_path)
    wanted = np.array([0, 1, 2, 100, 101, 102]) / 65535
    np.testing.assert_allclose(pictures.train.x[:, 0, 0], wanted, rtol=1e-6)


def test_the_hub_refuses_a_set_without_test_images(folder, tmp_path):
    name = folder("L", splits=("train",))
    with pytest.raises(ConfigError, match="called test or validation or valid"):
        load_dataset(name, tmp_path)
    with pytest.raises(ConfigError, match="reachable set with a split called train"):
        load_dataset(f"hub:{tmp_path / 'nothing'}", tmp_path)


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
