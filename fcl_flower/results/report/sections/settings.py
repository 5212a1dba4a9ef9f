"""The sections on what was run: the tasks of every client, and every setting."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fcl_flower.results.report.html import numbers
from fcl_flower.results.report.html.content import Cell, Section, Table, Text
from fcl_flower.results.report.schema import (
    Environment,
    Hidden,
    Privacy,
    Scenario,
    Summary,
    Task,
)

_OPEN = 10
"""Clients up to which the table of tasks is shown without a click."""

ELSEWHERE = {"head": "model", "client_fraction": "federation"}
"""Sections of those keys of a summary's ``training`` that are of another one."""

_SPLITS = ("train", "valid", "test")


def scenario_section(scenario: Scenario) -> Section:
    """Return who learns which classes in which order, with counts of examples."""
    if not scenario.datasets:
        return _local_data_section(scenario)
    tasks = [task for stream in scenario.clients for task in stream]
    longest = max(map(len, scenario.clients))
    each = " each" if len(scenario.clients) > 1 else ""
    up_to = "up to " if min(map(len, scenario.clients)) < longest else ""
    whole = Table(
        ["client", *(f"task {t}" for t in range(longest))],
        [
            [str(client), *map(_cell, stream), *[""] * (longest - len(stream))]
            for client, stream in enumerate(scenario.clients)
        ],
        "scenario",
        longest + 1,
        "Show every client's tasks" if len(scenario.clients) > _OPEN else "",
    )
    return Section(
        f"{numbers.plural(len(scenario.clients), 'client')} with {up_to}"
        f"{numbers.plural(longest, 'task')}{each}, "
        f"{_classes(tasks)}",
        f"{_drawn(scenario, tasks)} Under each task: its class group, its classes, and "
        "these three counts.",
        whole,
    )


def _local_data_section(scenario: Scenario) -> Section:
    """Return what is known of clients' local data."""
    count = numbers.plural(len(scenario.clients[0]), "task")
    most = numbers.plural(scenario.classes_per_task or 0, "class")
    return Section(
        f"{numbers.plural(len(scenario.clients), 'client')} with {count} of local data",
        f"A task has up to {most}. What is in the tasks, and how many examples, is "
        "known to the client only.",
    )


def concepts_section(scenario: Scenario, hidden: Hidden) -> Section:
    """Return what the hidden concepts are and when clients have their data."""
    tasks = [task for chunks in scenario.clients for task in chunks]
    rows = []
    for number, chunks in enumerate(zip(*scenario.clients, strict=True)):
        counts = [sum(getattr(t, split) for t in chunks) for split in _SPLITS]
        name, classes = chunks[0].name, ", ".join(chunks[0].class_names)
        rows.append([str(number), name, classes, *(f"{count:,}" for count in counts)])
    count = numbers.plural(len(rows), "hidden concept")
    return Section(
        f"{numbers.plural(len(scenario.clients), 'client')} with {count}, "
        f"{_classes(tasks)}",
        f"{_stream(hidden)} {_drawn(scenario, tasks)} The counts are totals over "
        "clients; no two clients have an example in common.",
        Table(["concept", "name", "classes", *_SPLITS], rows, "concepts", 3),
    )


def _stream(hidden: Hidden) -> str:
    """Return in words which data a client has in a round."""
    if not hidden.mean_duration:
        return "Each round a client has all concepts at once, with all its examples."
    drawn = (
        "drawn anew each round"
        if hidden.mean_duration == 1
        else f"drawn anew every {hidden.mean_duration} rounds on average"
    )
    ids = (
        "Client and server know which."
        if hidden.reveal_ids
        else "Neither client nor server knows which."
    )
    return (
        f"Each round a client has one concept, {drawn}, with up to {hidden.window:,} "
        f"of its training examples of it. {ids}"
    )


def _classes(tasks: Sequence[Task]) -> str:
    count = len({name for task in tasks for name in task.class_names})
    return numbers.plural(count, "different class")


def _drawn(scenario: Scenario, tasks: Sequence[Task]) -> str:
    return (
        f"Scenario {scenario.name}, drawn with seed {scenario.seed} from "
        f"{', '.join(scenario.datasets)}: "
        f"{sum(t.train for t in tasks):,} training, {sum(t.valid for t in tasks):,} "
        f"validation and {sum(t.test for t in tasks):,} test examples."
    )


def _cell(task: Task) -> Cell:
    group = "" if task.group is None else f"group {task.group}"
    counts = f"{task.train:,} / {task.valid:,} / {task.test:,}"
    lines = (group, ", ".join(task.class_names), counts)
    return Cell(task.name, lines=tuple(line for line in lines if line))


def settings_section(summary: Summary) -> Section:
    """Return every setting of the run, and the command that repeats it if known."""
    command = []
    if summary.command is not None:
        command = [
            Text("This command runs the same again:"),
            Text(summary.command, verbatim=True),
        ]
    rows = [
        ("strategy.name", summary.strategy),
        ("strategy.local_only", _shown(summary.local_only)),
        *_flat(summary.params, "strategy."),
        ("scenario.name", summary.scenario),
        ("scenario.clients", str(summary.clients)),
        *_extent(summary),
        ("data.datasets", summary.dataset),
        ("model.name", summary.model),
        *_sorted_into_sections(summary.training),
        *_privacy(summary.privacy),
        ("run.seed", str(summary.seed)),
        *summary.remarks.items(),
        *_environment(summary.environment),
    ]
    return Section(
        "Settings",
        "How the run was made, by the names of the configuration.",
        *command,
        Table(["setting", "value"], rows, "settings", words=2),
    )


def _sorted_into_sections(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the summary's ``training``, each setting with its section."""
    for section in ("model", "training", "federation"):
        for key, value in training.items():
            if ELSEWHERE.get(key, "training") == section:
                yield from _flat({key: value}, f"{section}.")


def _privacy(privacy: Privacy | None) -> Iterator[tuple[str, str]]:
    """Yield the settings of differential privacy, where there is any."""
    if privacy is not None:
        for key in ("unit", "noise_multiplier", "clip", "delta", "observer"):
            yield f"privacy.{key}", _shown(getattr(privacy, key))
        yield "privacy.epsilon", _shown(privacy.budget)


def _extent(summary: Summary) -> list[tuple[str, str]]:
    """Return how much there is to learn and how long the run is."""
    if summary.hidden is None:
        return [
            ("scenario.tasks", str(summary.tasks)),
            ("federation.rounds_per_task", str(summary.rounds)),
            ("rounds in all", str(summary.total_rounds)),
        ]
    return [
        ("hidden concepts", str(summary.tasks)),
        ("rounds in all", str(summary.total_rounds)),
        ("scenario.window", str(summary.hidden.window)),
        ("scenario.mean_duration", str(summary.hidden.mean_duration)),
        ("scenario.reveal_ids", _shown(summary.hidden.reveal_ids)),
    ]


def _environment(environment: Environment) -> list[tuple[str, str]]:
    """Return when, of what and on what the run was made, where that is known."""
    keys = ("date", "commit", "machine")
    found = [(key, getattr(environment, key)) for key in keys]
    return [(key, value) for key, value in found if value is not None] + [
        (f"version of {name}", _shown(version))
        for name, version in environment.versions.items()
    ]


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
