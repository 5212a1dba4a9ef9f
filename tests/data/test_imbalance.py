"""Which test sets have unbalanced classes."""

import numpy as np
import pytest
from plans import draw, write_images

from fcl_flower.data.imbalance import unbalanced


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({0: 9, 1: 3}, True),
        ({0: 8, 1: 3}, False),
        ({4: 1, 7: 3, 9: 2}, True),
        ({5: 100}, False),
        ({}, False),
    ],
)
def test_the_largest_class_is_held_against_the_smallest(counts, expected):
    labels = np.repeat([*counts], [*counts.values()]).astype(np.int64)
    assert unbalanced(labels) is expected


@pytest.mark.parametrize(("common", "expected"), [(40, True), (20, False)])
def test_a_scenario_is_unbalanced_if_one_test_set_is(tmp_path, common, expected):
    write_images(tmp_path, "skewed", [0] * common + [1] * 10 + [2] * 10 + [3] * 10)
    given = {"datasets": ["skewed"], "tasks": 2, "classes_per_task": 2, "clients": 1}
    assert draw(root=tmp_path, **given).unbalanced is expected
