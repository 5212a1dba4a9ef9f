"""A page must be drawn by a real browser, in both forms, and load nothing."""

import json
import re

import pytest
from browser import CHROMIUM, look
from pages import parsed, pictures
from run_folders import (
    diagnostics_of,
    edit,
    make_concept_run,
    make_run,
    rewrite_rounds,
    synthetic_scenario,
    write,
)

from fcl_flower.results.report.comparison import write_comparison
from fcl_flower.results.report.run_page import write_report

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

EVIL = "</script><img src=https://example.org/x onerror=alert(1)><b>%{x}\u2028"

HARMLESS = {"Download plot", "Zoom", "Pan", "Zoom in", "Zoom out"}
HARMLESS |= {"Autoscale", "Reset axes"}
"""The buttons above a chart: none of them sends anything."""


def brightness(colour):
    """Return the mean of red, green and blue of ``rgb(...)``."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def require_drawn(page, seen):
    names = [*pictures(parsed(page))]
    assert names
    assert not seen.complaints
    assert seen.shown["asked"] == seen.shown["refused"] == []
    assert seen.shown["drawn"] == len(names)
    assert [one["what"] for one in seen.shown["charts"]] == names
    for chart in seen.shown["charts"]:
        assert {*chart["buttons"]} == HARMLESS
        assert chart["bar"] == "rgba(0, 0, 0, 0)"
        assert chart["marks"] > 0, chart["what"]
        assert chart["room"] >= 0, chart["what"]
    assert seen.shown["scrolled"] <= seen.shown["width"]


@pytest.mark.parametrize("kind", ["tasks", "concepts", "comparison"])
def test_every_chart_is_drawn_in_both_forms_and_fits_a_phone(tmp_path, kind):
    if kind == "tasks":
        run = make_run(tmp_path / "run", overlap=True, clients=4, tasks=4)
        page = write_report(run)
    elif kind == "concepts":
        page = write_report(make_concept_run(tmp_path / "run", mistakes=0.3))
    else:
        runs = [
            make_run(tmp_path / f"{seed}{alone}", seed=seed, local_only=alone)
            for seed in (1, 2)
            for alone in (False, True)
        ]
        page = write_comparison(tmp_path, runs)
    light = look(page, tmp_path / "light")
    dark = look(page, tmp_path / "dark", width=375, dark=True)
    for seen, width in ((light, 1000), (dark, 375)):
        require_drawn(page, seen)
        assert seen.shown["width"] == width
    assert brightness(light.shown["paper"]) > 200 > 60 > brightness(dark.shown["paper"])
    inks = [
        [brightness(one["ink"]) for one in s.shown["charts"]] for s in (light, dark)
    ]
    assert max(inks[0]) < 60 < 200 < min(inks[1])


def test_hostile_names_are_shown_as_text(tmp_path):
    run = make_run(tmp_path / "run", label=EVIL)
    attention = diagnostics_of(run)["attention"]
    edit(run, "diagnostics.json", attention=attention | {"rows": EVIL})
    scenario = synthetic_scenario(3, 3)
    scenario["clients"][0][0] |= {"name": EVIL, "class_names": [EVIL]}
    write(run / "scenario.json", scenario)
    text = (run / "rounds.jsonl").read_text(encoding="utf-8")
    lines = map(json.loads, text.splitlines())
    hostile = {"bytes_up": {EVIL[9:30]: 1_000_000}}
    rewrite_rounds(run, [one | hostile for one in lines])

    page = write_report(run)
    seen = look(page, tmp_path / "look")

    require_drawn(page, seen)
    assert not {"img", "b"} & {*seen.shown["elements"]} - {"image"}

    comparison = write_comparison(tmp_path, [run])
    seen = look(comparison, tmp_path / "look-again")
    require_drawn(comparison, seen)
    assert "img" not in seen.shown["elements"]
    told = [text for one in seen.shown["charts"] for text in one["texts"]]
    assert any(text.startswith(EVIL[:29]) for text in told)
