"""Concepts that share their labels: what differs is how a class looks or is called."""

import numpy as np
import pytest

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.examples import InputSpec, concept_data, task_examples
from fcl_flower.data.registry import load_dataset
from fcl_flower.data.scenarios.concepts import ConceptsParams
from fcl_flower.data.scenarios.registry import draw_scenario

NAMES = ("digits", "rotated-90:digits", "relabelled-3:digits")
ALL = "=".join(NAMES)


def plan(tmp_path, names=NAMES, merged=ALL):
    return draw_scenario(
        "concepts",
        datasets=names,
        data_root=tmp_path,
        clients=2,
        tasks=3,
        classes_per_task=None,
        valid_fraction=0.2,
        seed=3,
        params=ConceptsParams(merge_labels=merged),
    )


def test_one_head_has_each_label_once(tmp_path):
    assert plan(tmp_path, merged="").num_labels == 30
    shared = plan(tmp_path)
    assert shared.labels == tuple(("digits", label) for label in range(10))
    assert {len(task.classes) for task in shared.clients[0]} == {10}


def test_the_same_image_has_another_label_where_classes_have_other_names(tmp_path):
    shared, form = plan(tmp_path), InputSpec((1, 8, 8), single_head=True)
    for concept, moved in ((0, 0), (1, 0), (2, 3)):
        task = shared.clients[1][concept]
        found = task_examples(shared, 1, concept, "test", form)
        y = load_dataset(NAMES[concept], tmp_path).test.y[task.test]
        np.testing.assert_array_equal(found.y, (y + moved) % 10)


def test_a_window_has_the_labels_of_its_concept(tmp_path):
    shared, form = plan(tmp_path), InputSpec((1, 8, 8), single_head=True)
    for number in range(1, 9):
        (concept,) = shared.stream.concepts_at(0, number)
        task = shared.clients[0][concept]
        window = shared.stream.samples(0, number, concept, task.train)
        y = load_dataset(NAMES[concept], tmp_path).train.y[window]
        found = concept_data(shared, 0, number, form)
        np.testing.assert_array_equal(found.train.y, (y + 3 * (concept == 2)) % 10)


def test_sets_that_are_not_of_the_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"merge_labels: .*not 'mnist': digits, rot"):
        plan(tmp_path, merged="digits=mnist")


def test_held_out_samples_have_the_labels_that_the_sets_share(tmp_path):
    """A row's candidates run on held-out samples of the sets that the row names."""
    held = [f"held-out:{name}" for name in NAMES]
    chosen, shown = plan(tmp_path, held), plan(tmp_path)

    assert chosen.num_labels == shown.num_labels == 10
    for name, other in zip(NAMES, held, strict=True):
        for label in range(10):
            same = chosen.label_index(other, label), shown.label_index(name, label)
            assert same[0] == same[1]
