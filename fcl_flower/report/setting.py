"""The sections on what was run: who has what, and every setting."""

from collections.abc import Iterator, Mapping
from typing import Any

from fcl_flower.report import numbers, page
from fcl_flower.report.markup import Markup, join, tag
from fcl_flower.report.records import Scenario, Summary, Task

_OPEN = 10
"""Clients up to which the table of tasks is shown without a click."""


def scenario_section(scenario: Scenario) -> Markup:
    """Return who learns which classes in which order, with counts of examples."""
    tasks = [task for stream in scenario.clients for task in stream]
    longest = max(map(len, scenario.clients))
    each = " each" if len(scenario.clients) > 1 else ""
    up_to = "up to " if min(map(len, scenario.clients)) < longest else ""
    classes = len({name for task in tasks for name in task.class_names})
    whole = page.table(
        ["client", *(f"task {t}" for t in range(longest))],
        (
            [str(client), *map(_cell, stream), *[""] * (longest - len(stream))]
            for client, stream in enumerate(scenario.clients)
        ),
        "scenario",
        words=longest + 1,
    )
    if len(scenario.clients) > _OPEN:
        scrolled = tag("div", whole, class_="tall")
        whole = page.folded("Show every client's tasks", scrolled)
    return page.section(
        f"{numbers.plural(len(scenario.clients), 'client')} with {up_to}"
        f"{numbers.plural(longest, 'task')}{each}, "
        f"{numbers.plural(classes, 'different class').replace('classs', 'classes')}",
        f"Scenario {scenario.name}, drawn with seed {scenario.seed} from "
        f"{', '.join(scenario.datasets)}: "
        f"{sum(t.train for t in tasks):,} training, {sum(t.valid for t in tasks):,} "
        f"validation and {sum(t.test for t in tasks):,} test examples. Under each "
        "task: its class group, its classes, and these three counts.",
        whole,
    )


def _cell(task: Task) -> Markup:
    group = "" if task.group is None else f"group {task.group}"
    counts = f"{task.train:,} / {task.valid:,} / {task.test:,}"
    lines = [group, ", ".join(task.class_names), counts]
    return join([task.name, *(tag("small", line) for line in lines if line)])


def settings_section(summary: Summary) -> Markup:
    """Return every setting of the run, and the command that repeats it if known."""
    command = []
    if summary.command is not None:
        command = [
            tag("p", "This command runs the same again:", class_="note"),
            tag("pre", summary.command),
        ]
    rows = [
        ("strategy", summary.strategy),
        ("isolated", _shown(summary.isolated)),
        ("scenario", summary.scenario),
        ("dataset", summary.dataset),
        ("model", summary.model),
        ("clients", str(summary.clients)),
        ("tasks", str(summary.tasks)),
        ("seed", str(summary.seed)),
        ("rounds", f"{summary.total_rounds} ({summary.rounds} per task)"),
        *_flat(summary.training),
        *_flat(summary.params),
        *summary.notes.items(),
    ]
    return page.section(
        "Settings",
        "What summary.json says of how the run was made.",
        *command,
        page.table(["setting", "value"], rows, "settings", words=2),
    )


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested settings as dotted names, in the order of the file."""
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _shown(value)


def _shown(value: object) -> str:
    """Return a value as JSON and TOML write it: ``true``, not ``True``."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
