"""Values that a study leaves open, chosen where its table does not look."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from fcl_flower.config.parsing import Scalar, toml
from fcl_flower.config.run_config import RunConfig
from fcl_flower.core.errors import RoundError, refuse
from fcl_flower.data.datasets.derived.held_out import PREFIX
from fcl_flower.results.tables import Summary
from fcl_flower.runtime.studies.plan import Choice, Row, Study
from fcl_flower.runtime.studies.runs import RunAll, checked, run_study
from fcl_flower.setup.resolve import resolve

FOLDER = "choice"
"""Where the candidates' runs are, below the folder of the study."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Values that a row may get.

    Attributes:
        row: the title of the row.
        values: by ``section.key``.
        config: a run with them on held-out samples, at seed 0.
    """

    row: str
    values: Mapping[str, Scalar]
    config: RunConfig


def settle(
    study: Study,
    folder: Path,
    run_all: RunAll,
    wanted: Collection[str],
) -> Study:
    """Return the study with the best candidates of each row.

    Every candidate runs once with each of the choice's seeds, on training samples
    alone: the clients learn four fifths of each class and are tested on the rest
    (`held_out`), so that neither a test sample nor a seed of the table has a part in
    the choice. The best has the highest mean of the average accuracy after the last
    round; of equals the first in the file. Runs are kept, so that a choice goes on
    where it was stopped; ``chosen.json`` and ``chosen.md`` in ``folder`` tell of all.

    Args:
        study: with or without anything open.
        folder: of the study.
        run_all: does runs.
        wanted: titles of the table's rows that are to be had: candidates of others are
            not run, and rows whose candidates were not all run are left out.

    Raises:
        ConfigError: a configuration is refused, or asks for no accuracies, or a
            finished run in ``folder`` was made with other settings.
        RoundError: some runs failed, or had no accuracy at their end, so that nothing
            can be chosen.
    """
    choice = study.choice
    if choice is None:
        return study
    candidates = [found for row in choice.rows for found in _candidates(row)]
    # Now, as nobody wants to hear of a wrong row when all candidates have run.
    checked(study)
    for found in candidates:
        if not found.config.privacy.scores:
            expected = "true, as candidates are compared by their accuracy"
            raise refuse("privacy.scores", False, expected)
    needed = {
        found.config.title
        for row in choice.rows
        if any(one.title in wanted for one in choice.of(row))
        for found in candidates
        if found.row == row.config.title
    }
    summaries = run_study(
        candidate_study(choice),
        folder / FOLDER,
        run_all,
        lambda config: config.title in needed,
    )
    chosen = _chosen(choice, candidates, summaries, folder)
    return replace(study, variants=choice.settled(chosen), choice=None)


def candidate_study(choice: Choice) -> Study:
    """Return the runs of all candidates."""
    every = (found.config for row in choice.rows for found in _candidates(row))
    return Study(tuple(every), choice.seeds)


def _candidates(row: Row) -> list[_Candidate]:
    """Return what a row may get, each with a run on samples of its own."""
    found = []
    for values in row.candidates:
        # All that is left open is decided by the set that the table has.
        config = resolve(row.config.replace(**values)).config
        if not config.data.names:
            expected = "data sets, of which training samples can be held out"
            raise refuse("data.datasets", config.data.datasets, expected)
        said = " ".join(f"{key.partition('.')[2]}={values[key]}" for key in values)
        title = f"{row.config.run.title or row.config.strategy.name} {said}"
        held_out = ",".join(f"{PREFIX}{name}" for name in config.data.names)
        config = config.replace(**{"run.title": title, "data.datasets": held_out})
        found.append(_Candidate(row.config.title, values, config))
    return found


def _chosen(
    choice: Choice,
    candidates: list[_Candidate],
    summaries: list[Summary],
    folder: Path,
) -> dict[str, Mapping[str, Scalar]]:
    """Return the best values of each row whose candidates all ran; write them down.

    Where there is no such row nothing is written.
    """
    found: dict[str, list[float]] = {}
    for summary in summaries:
        label, accuracy = summary["label"], summary["average_accuracy"]
        if accuracy is None:
            raise RoundError(
                f"{label} seed {summary['seed']} ended without an accuracy, so that "
                "nothing can be chosen"
            )
        found.setdefault(label, []).append(accuracy)
    chosen: dict[str, Mapping[str, Scalar]] = {}
    told, lines = [], []
    for row in choice.rows:
        own = [one for one in candidates if one.row == row.config.title]
        scores = [found.get(one.config.title, []) for one in own]
        if not own or any(len(score) < len(choice.seeds) for score in scores):
            continue
        best = max(range(len(own)), key=lambda at: fmean(scores[at]))
        chosen[row.config.title] = own[best].values
        for at, one in enumerate(own):
            said = {"row": one.row, "values": dict(one.values), "accuracy": scores[at]}
            told.append({**said, "chosen": at == best})
            values = ", ".join(f"`{k} = {toml(v)}`" for k, v in one.values.items())
            mark = "chosen" if at == best else ""
            mean = fmean(scores[at])
            lines.append(f"| {one.row} | {values} | {mean:.3f} | {mark} |")
    head = [
        "Mean accuracy after the last round on training samples that were held out, "
        f"seeds {', '.join(map(str, choice.seeds))}.",
        "",
        "| method | values | accuracy | |",
        "| --- | --- | --- | --- |",
    ]
    if not chosen:
        return {}
    (folder / "chosen.md").write_text("\n".join([*head, *lines]) + "\n")
    (folder / "chosen.json").write_text(json.dumps(told, indent=1) + "\n")
    return chosen
