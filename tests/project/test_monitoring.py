"""Alerts and dashboard: Prometheus and Grafana take them, and find the metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from fakes import run_in_process, tiny

from fcl_flower.deploy.metrics import ServerMetrics
from fcl_flower.results.known_runs import noted

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "monitoring"
PAGE = ROOT / "docs" / "howto" / "monitor.md"
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
OWN_OF_PROMETHEUS = {"up"}


def exported(state):
    """Name the samples of a server, with the values of their labels."""
    metrics = ServerMetrics(state, None, lambda: {"client-0": 1.0}, lambda: True)
    return {
        sample.name: set(sample.labels)
        for family in metrics.collect()
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def with_run(tmp_path_factory):
    state = tmp_path_factory.mktemp("state")
    with noted(state / "runs", "run", state / "run"):
        run_in_process(tiny(state / "run", strategy="fedavg", tasks=1))
    return exported(state)


def names(expression):
    return set(re.findall(r"\b(fcl_\w+|up(?=[{ ]))", expression))


def expressions():
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])


@pytest.mark.run
@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_what_is_asked_for_is_exported_with_a_run_and_without(
    where, expression, with_run, tmp_path
):
    asked = names(expression)
    assert asked
    for found in (with_run, exported(tmp_path)):
        assert asked - OWN_OF_PROMETHEUS <= found.keys()


@pytest.mark.run
def test_the_page_explains_what_is_exported_and_nothing_else(with_run):
    text = PAGE.read_text()
    rows = re.findall(r"^- (`fcl_.*?): ", text, re.MULTILINE)
    explained = set(re.findall(r"`(fcl_\w+)", " ".join(rows)))

    assert explained == {name for name in with_run if not name.endswith("_created")}


@pytest.mark.run
def test_a_label_that_is_asked_for_is_exported(with_run):
    asked = re.compile(r"(fcl_\w+)\{(\w+)=")
    for _, expression in expressions():
        for name, label in asked.findall(expression):
            assert label in with_run[name]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            for name in names(target["expr"]) if labels else ():
                assert set(labels) <= with_run[name]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_where_it_is_explained(rule):
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    notes = rule["annotations"]
    assert notes["summary"].endswith(".")
    assert notes["description"].endswith(".")
    page, _, anchor = notes["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_the_page_has_no_alert_that_there_is_not():
    text = PAGE.read_text()
    explained = re.findall(r"^#+ (Fcl\w+)$", text, re.MULTILINE)

    assert sorted(explained) == sorted(rule["alert"] for rule in RULES)


def test_the_panels_of_the_dashboard_lie_side_by_side():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & taken
        assert at["x"] + at["w"] <= 24
        taken |= own
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_takes_its_files():
    subprocess.run(
        ["promtool", "check", "config", str(FOLDER / "prometheus.yml")], check=True
    )
