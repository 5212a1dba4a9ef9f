"""The picture of the accuracy over all classes seen."""

import pytest
from pages import headings, hints, parsed, pictures, require_layout
from run_folders import edit, make_run

from fcl_flower.core.errors import ConfigError
from fcl_flower.results.report import write_report

PICTURE = "Accuracy over all classes seen, after each task"
HEADING = "Over all classes seen, accuracy goes from"


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", tasks=3)


def shown(run, **changes):
    edit(run, "summary.json", **{"scenario": "class-incremental", **changes})
    return parsed(write_report(run))


def test_a_line_shows_the_accuracy_over_all_classes_seen(run):
    page = shown(run, sample_accuracy=[0.9, 0.6, 0.45])
    require_layout(page)
    assert f"{HEADING} 0.900 to 0.450; mean over tasks 0.650" in headings(page)
    assert [*hints(pictures(page)[PICTURE])] == [
        "all classes seen, after task 0: 0.900",
        "all classes seen, after task 1: 0.600",
        "all classes seen, after task 2: 0.450",
    ]


def test_what_was_not_measured_leaves_a_gap(run):
    page = shown(run, sample_accuracy=[0.9, None, 0.45])
    require_layout(page)
    assert len(hints(pictures(page)[PICTURE])) == 2


@pytest.mark.parametrize("values", [[], [None, None, None]])
def test_nothing_measured_is_said_in_words(run, values):
    page = shown(run, sample_accuracy=values)
    assert "The accuracy over all classes seen is not known" in headings(page)
    assert PICTURE not in pictures(page)


def test_other_scenarios_have_no_such_picture(run):
    page = shown(run, scenario="overlapped", sample_accuracy=[0.9, 0.6, 0.45])
    assert PICTURE not in pictures(page)


def test_what_is_no_fraction_is_refused(run):
    with pytest.raises(ConfigError, match=r"sample_accuracy\.1: got 1\.5"):
        shown(run, sample_accuracy=[0.9, 1.5, 0.45])
