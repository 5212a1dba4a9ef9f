"""Small runs over clients' local tables, and runs that are extended."""

import numpy as np
from fakes import asked_in, exact, rounds_of, run_in_process, summary_of
from resuming import PulledPlugError

from fcl_flower.config.run_config import RunConfig
from fcl_flower.results.run_folder import CHECKPOINT, CLIENTS
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.service.changes import extend

NODES = [71, 23, 40]


def table(classes, seed, each=8):
    """Return a table of clouds around far corners, one a class."""
    rng = np.random.default_rng(seed)
    lines = ["x,label,y,z"]
    for name in classes:
        number = int(name[1:])
        corner = 6 * np.array([number, -number, 1])
        for x, y, z in corner + rng.normal(size=(each, 3)):
            lines.append(f"{x:.3f},{name},{y:.3f},{z:.3f}")
    return "\n".join(lines) + "\n"


def add_task(folder, number, seed, classes):
    """Give a client's folder its task of that number, counted from 1."""
    task = folder / f"task-{number:02}"
    task.mkdir(parents=True)
    (task / "train.csv").write_text(table(classes, seed))


def config(folder, **values):
    settings = {
        "scenario": "local-data",
        "model": "mlp",
        "num_features": 3,
        "classes_per_task": 2,
        "clients": 2,
        "tasks": 2,
        "rounds": 2,
        "output": str(folder),
        "client_state": str(folder / CLIENTS),
    }
    return RunConfig.from_settings(**{**settings, **values})


def run(config, places):
    count = config.scenario.clients
    return run_in_process(config, NODES[:count], places=places[:count])


def outcome(folder):
    """All that a run leaves, but for time and the beginning of its journal.

    And but for the bytes of scores: at the end of a run clients tell more of them, and
    a run that is extended has ended before.
    """
    state = FolderStateStore(folder / CHECKPOINT).load()
    table = (folder / "accuracy.csv").read_text()
    summary, rounds = summary_of(folder), rounds_of(folder)
    del summary["bytes_up"], summary["bytes_by_kind"]["up"]["meta"]
    for one in rounds:
        del one["bytes_up"]["meta"]
    return summary, rounds, table, exact(state.state)


def check_extended(tmp_path, places, before, after, **settings):
    """Let a run be planned for ``after``, and one for ``before`` be extended to it."""
    run(config(tmp_path / "long", **settings, **after), places)
    run(config(tmp_path / "short", **settings, **before), places)
    lines = (tmp_path / "short" / "journal.jsonl").read_text().splitlines()
    more = {key: after[key] for key in ("tasks", "rounds") if key in after}
    resumed = extend(tmp_path / "short", **more)
    assert not (tmp_path / "short" / "summary.json").exists()
    run(resumed, places)
    assert outcome(tmp_path / "short") == outcome(tmp_path / "long")
    kept = (tmp_path / "short" / "journal.jsonl").read_text().splitlines()
    assert kept[: len(lines) - 1] == lines[:-1], "no line is written anew but the end"
    return resumed


def pulled_in(number, who=1):
    def pull(client, request, reply):
        if client == who and asked_in(request, number):
            raise PulledPlugError
        return reply

    return pull
