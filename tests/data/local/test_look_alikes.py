"""Labels that differ in case, blanks, Unicode form or ``.0``: one class, or two."""

import unicodedata

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.arrays import TabularDataset
from fcl_flower.data.local.client import LocalData, LocalDataSpec, load_task
from fcl_flower.data.local.layout import find_tasks

COMPOSED = unicodedata.normalize("NFC", "café")
DECOMPOSED = unicodedata.normalize("NFD", "café")


def spec(rule, **more):
    given = {"input_shape": (1,), "width": 0, "classes": 9, "labels": (), "seed": 0}
    usual = {"valid_fraction": 0.25, "look_alikes": rule}
    return LocalDataSpec(TabularDataset, **{**given, **usual, **more})


@pytest.fixture
def folder(tmp_path):
    """Write the splits of a task: labels in the order of the rows."""

    def write(**splits):
        place = tmp_path / "data" / "task-01"
        place.mkdir(parents=True, exist_ok=True)
        for split, labels in splits.items():
            rows = "".join(f"{n},{label}\n" for n, label in enumerate(labels))
            (place / f"{split}.csv").write_text(f"a,label\n{rows}")
        return tmp_path / "data"

    return write


def load(folder, rule, **more):
    return load_task(find_tasks(folder)[0], 0, spec(rule, **more))


@pytest.mark.parametrize(
    ("often", "seldom", "named"),
    [
        ("cat", "Cat", "'Cat', which looks like 'cat'"),
        ("big cat", " big  cat", "' big  cat', which looks like 'big cat'"),
        ("1", "1.0", "'1.0', which looks like '1'"),
        ("straße", "STRASSE", "'STRASSE', which looks like 'straße'"),
        ("1", "01", "'01', which looks like '1'"),
        ("type-1", "type\u20111", r"'type\u20111', which looks like 'type-1'"),
        ("cat", "c\uff41t", r"'c\uff41t', which looks like 'cat'"),
        ("it's", "it\u2019s", "'it\\u2019s', which looks like \"it's\""),
        (COMPOSED, DECOMPOSED, r"'cafe\u0301', which looks like 'caf\xe9'"),
    ],
)
def test_look_alikes_are_refused_merged_or_kept(folder, often, seldom, named):
    place = folder(train=[often] * 5 + [seldom] * 3 + ["dog"] * 4)
    with pytest.raises(ConfigError) as refused:
        load(place, "refuse")
    sentence = str(refused.value)
    assert "train.csv: line 7: label is " + named in sentence
    assert "--set data.labels=merge" in sentence
    merged = load(place, "merge")
    assert merged.classes == tuple(sorted([often, "dog"]))
    parts = (merged.data.train, merged.valid, merged.data.test)
    y = np.concatenate([part.y for part in parts])
    assert np.bincount(y)[merged.classes.index(often)] == 8
    assert {*load(place, "keep").classes} == {often, seldom, "dog"}


def test_other_labels_are_no_look_alikes(folder):
    labels = ["1", "10", "1.5", "0.1", "cat", "cats", "cat-", "c at"]
    place = folder(train=labels * 3)
    for rule in ("refuse", "merge", "keep"):
        assert load(place, rule).classes == tuple(sorted(labels))


def test_the_labels_of_a_test_file_are_those_to_train(folder):
    place = folder(train=["cat"] * 4 + ["dog"] * 4, test=["Cat", "DOG"])
    with pytest.raises(ConfigError, match=r"test\.csv: line 2: .*'Cat', which looks"):
        load(place, "refuse")
    merged = load(place, "merge")
    assert merged.data.test.y.tolist() == [0, 1]
    with pytest.raises(ConfigError, match="label is 'Cat', expected one of those in"):
        load(place, "keep")


def test_what_the_run_or_the_manifest_names_is_how_it_is_spelled(folder):
    place = folder(train=["Cat"] * 4 + ["dog"] * 4)
    labels = {"labels": ("cat", "dog", "emu")}
    with pytest.raises(ConfigError, match="'Cat', which looks like 'cat'"):
        load(place, "refuse", **labels)
    merged = load(place, "merge", **labels)
    assert (merged.data.class_names, merged.classes) == (
        labels["labels"],
        ("cat", "dog"),
    )
    both = load(place, "refuse", labels=("cat", "Cat", "dog"))
    assert both.classes == ("Cat", "dog")  # who names both means both
    (place / "tasks.toml").write_text(
        '[[task]]\nname = "one"\ntrain = "task-01/train.csv"\nlabels = ["DOG", "Cat"]\n'
    )
    assert load(place, "merge").classes == ("DOG", "Cat")
    assert load(place, "merge", **labels).classes == ("cat", "dog")
    client = LocalData(place, spec("merge", **labels, places=9), 1, None)
    assert client.class_names(0) == ("dog", "cat")


def test_a_client_names_its_classes_as_it_learns_them(folder):
    place = folder(train=["Cat"] * 2 + ["cat "] * 4 + ["dog"] * 4)
    client = LocalData(place, spec("merge", places=9), 1, None)
    assert client.class_names(0) == ("cat", "dog")
    with pytest.raises(ConfigError) as refused:
        LocalData(place, spec("refuse", places=9), 1, None).class_names(0)
    assert "cat" not in str(refused.value)  # it travels to the server
    assert "'Cat', which looks like 'cat '" in str(refused.value.__cause__)
