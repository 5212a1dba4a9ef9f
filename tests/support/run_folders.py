"""Believable run folders, generated: what a report is made of."""

import csv
import json
import math
import os
from collections import Counter
from itertools import chain

import numpy as np
from records import trained
from sklearn.metrics import adjusted_rand_score

from fcl_flower.core.types import Evaluation
from fcl_flower.results import journal, measures
from fcl_flower.results.events import (
    About,
    Begun,
    Evaluated,
    Finished,
    Summary,
    Traffic,
)

KINDS = ("base", "adapters", "heads", "masks", "meta")


def synthetic_accuracy(seed, local_only, clients, tasks, lost, gain):
    """Make a believable ``a[c, t, i]``: clients differ more than two runs."""
    level = 0.5 + 0.06 * np.random.default_rng(seed).standard_normal(
        (clients, 1, tasks)
    )
    rng = np.random.default_rng([seed, local_only])
    level = level + gain + 0.015 * rng.standard_normal((clients, 1, tasks))
    age = np.arange(tasks)[:, None] - np.arange(tasks)[None, :]
    noise = 0.008 * rng.standard_normal((clients, tasks, tasks))
    accuracy = level - lost * np.sqrt(np.maximum(age, 0)) + noise
    accuracy[:, age < 0] = np.nan
    return np.clip(np.round(accuracy, 4), 0, 1)


def synthetic_rounds(rng, clients, tasks, rounds_per_task, local_only):
    for number in range(1, tasks * rounds_per_task + 1):
        task, step = divmod(number - 1, rounds_per_task)
        failed = [int(rng.integers(clients))] if number % 37 == 0 else []
        replied = [c for c in range(clients) if c not in failed]
        up = {"base": 700_000, "heads": 0, "masks": 5_000, "meta": 4_100}
        down = {"base": 1_100_000, "meta": 3_200}
        if step == rounds_per_task - 1:
            up["adapters"] = 240_000 + int(rng.integers(60_000))
        if step == 0 and task:
            down["adapters"] = 900_000 + int(rng.integers(200_000))
        up = {k: n * len(replied) for k, n in up.items()}
        down = {k: n * clients for k, n in down.items()}
        if local_only:
            up, down = {}, {}
        learned = 1 - math.exp(-(step + 1) / 5)
        yield {
            "round": number,
            "task": task,
            "clients": replied,
            "failed": failed,
            "loss": 1.6 - 1.1 * learned + 0.03 * rng.standard_normal(),
            "valid_accuracy": 0.2 + 0.34 * learned + 0.01 * rng.standard_normal()
            if replied
            else None,
            "bytes_up": up,
            "bytes_down": down,
            "nominal_bytes_up": int(0.8 * sum(up.values())),
            "nominal_bytes_down": int(0.7 * sum(down.values())),
            "seconds": 2.5,
        }


def synthetic_scenario(clients, tasks, classes=5):
    groups = ("fish", "flowers", "insects", "people", "trees", "vehicles")

    def task(c, t):
        group = groups[(c + t) % 6]
        names = [f"{group}_{k}" for k in range(classes)]
        counts = {"train": 350, "valid": 50, "test": 100}
        return {"name": f"{group} {t}", "group": group, "class_names": names} | counts

    return {
        "name": "overlapped-cifar100",
        "seed": 7,
        "datasets": ["cifar100"],
        "classes_per_task": classes,
        "clients": [[task(c, t) for t in range(tasks)] for c in range(clients)],
    }


def matrix(values, title, rows, columns, note, **marked):
    kind = {"kind": "matrix", "title": title, "rows": rows, "columns": columns}
    return kind | {"note": note, "values": values} | marked


def later_tasks(scenario):
    """List each task but the first of each client, as (client, task)."""
    streams = scenario["clients"]
    return [(c, t) for c, tasks in enumerate(streams) for t in range(1, len(tasks))]


def same_group(scenario, row, column):
    """Tell whether two tasks, each named client/task, have classes of one group."""
    places = (map(int, name.split("/")) for name in (row, column))
    first, second = (scenario["clients"][c][t]["group"] for c, t in places)
    return first == second


def synthetic_attention(rng, scenario):
    clients = len(scenario["clients"])
    values = {
        f"{c}/{t}": {f"{k}/{t - 1}": 0.0 for k in range(clients) if k != c}
        for c, t in later_tasks(scenario)
    }
    for row, weights in values.items():
        for column in weights:
            more = 0.15 * same_group(scenario, row, column)
            weights[column] = float(rng.uniform(0.1, 0.3) + more)
    return matrix(
        values,
        "Weight of each foreign adapter for each client and task",
        "who attends (client/task)",
        "whose adapter (client/task)",
        "Mean |alpha| over the layers.",
    )


def synthetic_overlap(rng, scenario, best=2):
    clients, values, chosen = len(scenario["clients"]), {}, {}
    for c, t in later_tasks(scenario):
        names = [f"{k}/{s}" for k in range(clients) if k != c for s in range(t)]
        scores = {name: float(rng.uniform(0.2, 0.7)) for name in names}
        values[f"{c}/{t}"] = scores
        chosen[f"{c}/{t}"] = sorted(names, key=scores.get)[-best:]
    return matrix(
        values,
        "Overlap of each new task with the finished tasks of other clients",
        "new task (client/task)",
        "finished task (client/task)",
        "A mark: chosen, that is, the client used its adapter.",
        marked=chosen,
    )


def nulled(accuracy):
    if isinstance(accuracy, list):
        return [nulled(entry) for entry in accuracy]
    return None if math.isnan(accuracy) else accuracy


def synthetic_concept_accuracy(rng, rounds, clients, concepts, gain):
    """Make believable accuracies, shape (evaluations, clients, concepts)."""
    level = 0.7 + gain + 0.08 * rng.standard_normal((1, clients, concepts))
    learned = 1 - 0.8 * np.exp(-np.array(rounds) / 6)[:, None, None]
    noise = 0.02 * rng.standard_normal((len(rounds), clients, concepts))
    return np.clip(np.round(level * learned + noise, 4), 0, 1)


def synthetic_concepts(clients, concepts):
    """Make ``scenario.json`` of hidden concepts: every client has a chunk of each."""
    chunk = [
        {"name": f"digits/{k}", "group": k, "class_names": [f"{2 * k}", f"{2 * k + 1}"]}
        | {"train": 30 + k, "valid": 5, "test": 12}
        for k in range(concepts)
    ]
    return {
        "name": "concepts",
        "seed": 7,
        "datasets": ["digits"],
        "classes_per_task": 2,
        "clients": [chunk] * clients,
    }


def synthetic_clusterings(rng, rounds, clients, concepts, mistakes):
    """Yield the rounds of a map: concept k has cluster K - 1 - k and model k + 1.

    With probability ``mistakes`` a client is put into another cluster, or into none.
    """
    for number in rounds:
        truth = rng.integers(concepts, size=clients)
        wrong = rng.random(clients) < mistakes
        cluster = np.where(
            wrong, rng.integers(-1, concepts, clients), concepts - 1 - truth
        )
        reached = np.where(cluster < 0, -1, concepts - cluster)
        origin = truth + 1
        angle = 2 * np.pi * truth / concepts
        places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        places += 0.05 * rng.standard_normal(places.shape)
        yield {
            "round": number,
            "clients": [*range(clients)],
            "concept": truth.tolist(),
            "cluster": cluster.tolist(),
            "origin": origin.tolist(),
            "reached": reached.tolist(),
            "map": places.tolist(),
            "ari": float(adjusted_rand_score(truth, cluster)),
            "effectiveness": float((origin == reached).mean()),
        }


def summarized(label, strategy, local_only, trained, accuracy, **values):
    """Make a summary of accuracies ``a`` and of what all rounds took."""
    ways = {
        way: {k: sum(r[f"bytes_{way}"].get(k, 0) for r in trained) for k in KINDS}
        for way in ("up", "down")
    }
    label = label or strategy
    return {
        "label": label + (" local-only" if local_only else ""),
        "strategy": strategy,
        "local_only": local_only,
        "counterpart": None if local_only else f"{label} local-only",
        "clients": len(accuracy),
        "tasks": accuracy.shape[1],
        "accuracy_matrix": nulled(measures.mean_measured(accuracy, axis=0).tolist()),
        "client_accuracy": nulled(accuracy.tolist()),
        "total_rounds": len(trained),
        "bytes_up": sum(ways["up"].values()),
        "bytes_down": sum(ways["down"].values()),
        "nominal_bytes_up": sum(r["nominal_bytes_up"] for r in trained),
        "nominal_bytes_down": sum(r["nominal_bytes_down"] for r in trained),
        "bytes_by_kind": ways,
        "model_bytes": 17_482_904,
        "seconds": 2.5 * len(trained),
        **values,
    }


def make_run(
    folder,
    clients=3,
    tasks=3,
    rounds_per_task=4,
    strategy="fedweit",
    local_only=False,
    seed=1,
    lost=0.01,
    gain=0.0,
    label=None,
    gone=(),
    attention=True,
    overlap=False,
):
    """Write a believable run folder; clients in ``gone`` vanished before the end."""
    rng = np.random.default_rng(seed)
    accuracy = synthetic_accuracy(seed, local_only, clients, tasks, lost, gain)
    accuracy[list(gone), -1] = np.nan
    rounds = [*synthetic_rounds(rng, clients, tasks, rounds_per_task, local_only)]
    names = ("average_accuracy", "forgetting", "backward_transfer", "learning_accuracy")
    summary = summarized(
        *(label, strategy, local_only, rounds, accuracy),
        scenario="overlapped-cifar100",
        dataset="cifar100",
        model="lenet",
        seed=seed,
        rounds=rounds_per_task,
        **{name: nulled(getattr(measures, name)(accuracy)) for name in names},
        params={"kappa": 0.3, "lambda1": 1e-3, "training": {"epochs": 1, "lr": None}},
        command="fcl run studies/overlapped.toml --seed 1",
    )
    scenario, diagnostics = synthetic_scenario(clients, tasks), {}
    if attention:
        diagnostics["attention"] = synthetic_attention(rng, scenario)
    if overlap:
        diagnostics["overlap"] = synthetic_overlap(rng, scenario)
    write_run(
        folder,
        summary,
        scenario,
        rounds,
        (
            ((t + 1) * rounds_per_task, t, c, i, accuracy[c, t, i])
            for c, t, i in np.argwhere(~np.isnan(accuracy)).tolist()
        ),
        diagnostics,
    )
    return folder


def make_concept_run(
    folder,
    clients=6,
    concepts=3,
    rounds=8,
    every=2,
    strategy="concept-matching",
    local_only=False,
    seed=1,
    gain=0.0,
    label=None,
    mistakes=0.0,
    clustered=True,
    mean_duration=1,
    reveal_ids=False,
):
    """Write a believable run folder with hidden concepts."""
    rng = np.random.default_rng([seed, local_only])
    evaluated = [*range(every, rounds + 1, every)]
    accuracy = synthetic_concept_accuracy(rng, evaluated, clients, concepts, gain)
    final = np.full((clients, concepts, concepts), np.nan)
    final[:, -1] = accuracy[-1]
    trained = [*synthetic_rounds(rng, clients, 1, rounds, local_only)]
    found = [
        *synthetic_clusterings(rng, range(1, rounds + 1), clients, concepts, mistakes)
    ]
    ari = [one["ari"] for one in found]
    told = {
        "ari": float(np.mean(ari)),
        "ari_least": min(ari),
        "perfect_rounds": float(np.mean([value == 1 for value in ari])),
        "effectiveness": float(np.mean([one["effectiveness"] for one in found])),
        "models": concepts,
    }
    hidden = {"window": 20, "mean_duration": mean_duration, "reveal_ids": reveal_ids}
    summary = summarized(
        *(label, strategy, local_only, trained, final),
        scenario="concepts",
        dataset="digits",
        model="small",
        seed=seed,
        rounds=rounds,
        average_accuracy=measures.average_accuracy(final),
        forgetting=measures.forgetting_of_concepts(accuracy.mean(axis=1)),
        backward_transfer=None,
        learning_accuracy=None,
        params={},
        hidden=hidden,
        concepts=told if clustered else {},
    )
    scenario = synthetic_concepts(clients, concepts)
    write_run(
        folder,
        summary,
        scenario,
        trained,
        (
            (evaluated[e], concepts - 1, c, k, accuracy[e, c, k])
            for e, c, k in np.ndindex(accuracy.shape)
        ),
        {"map": points(found)} if clustered else {},
    )
    return folder


def points(frames):
    return {"kind": "points", "title": "Map of the client models", "frames": frames}


def write_run(folder, summary, scenario, rounds, measured, diagnostics):
    """Write the files of a run.

    ``measured`` is (round, task learned, client, task, accuracy).
    """
    folder.mkdir(parents=True)
    write(folder / "summary.json", summary)
    write(folder / "scenario.json", scenario)
    write(folder / "diagnostics.json", diagnostics)
    lines = "".join(json.dumps(entry) + "\n" for entry in rounds)
    (folder / "rounds.jsonl").write_text(lines, encoding="utf-8")
    with (folder / "accuracy.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["round", "task_learned", "client", "task", "task_name", "accuracy"]
        )
        for number, learned, client, task, value in measured:
            name = scenario["clients"][client][task]["name"]
            table.writerow([number, learned, client, task, name, value])
    write_journal(folder)


def write_journal(folder, rounds=None):
    """Write the journal from which the other files of a folder follow.

    The run has not finished where ``rounds`` says how many of its rounds it has.
    """
    summary = Summary(**summary_of(folder))
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    diagnostics = diagnostics_of(folder)
    tests = tests_in(folder / "accuracy.csv")
    made = journal.Journal(folder / journal.FILE)
    made.begin(Begun(about=About(**summary.model_dump())))
    for number, line in enumerate(lines[:rounds], 1):
        last = diagnostics if number == len(lines) else {}
        made.add(trained_of(json.loads(line), last))
        for test in tests.pop(number, []):
            made.add(test)
    if rounds is None:
        for test in chain(*tests.values()):
            made.add(test)
        made.add(Finished(summary=summary))


def trained_of(line, diagnostics):
    """Undo `Trained.line`: each client has the means."""
    names = ("loss", "valid_loss", "valid_accuracy")
    means = {name: line[name] for name in names if line.get(name) is not None}
    reasons = line.get("reasons", {})
    ways = Counter(line["bytes_up"]), Counter(line["bytes_down"])
    nominal = line["nominal_bytes_up"], line["nominal_bytes_down"]
    return trained(
        line["round"],
        line["task"],
        replies=dict.fromkeys(line["clients"], means),
        failed={client: reasons.get(str(client), "") for client in line["failed"]},
        traffic=Traffic(*ways, *nominal),
        diagnostics=diagnostics,
        seconds=line["seconds"],
    )


def tests_in(path):
    """Read the evaluations in ``accuracy.csv``, by round."""
    found = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = int(row["round"]), int(row["task_learned"])
            values = found.setdefault(place, {}).setdefault(int(row["client"]), [])
            values += [math.nan] * (int(row["task"]) + 1 - len(values))
            values[int(row["task"])] = float(row["accuracy"])
    tests = {}
    for (number, task), by_client in found.items():
        scores = {c: Evaluation(values, 0) for c, values in by_client.items()}
        one = Evaluated(round=number, task=task, scores=scores)
        tests.setdefault(number, []).append(one)
    return tests


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")


def edit(folder, name, **changes):
    """Change a file, and the journal with it."""
    path = folder / name
    write(path, json.loads(path.read_text(encoding="utf-8")) | changes)
    if name != "progress.json":
        write_journal(folder)


def rewrite_rounds(folder, lines):
    """Change the rounds, and the journal with them."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "rounds.jsonl").write_text(text, encoding="utf-8")
    write_journal(folder)


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def diagnostics_of(folder):
    return json.loads((folder / "diagnostics.json").read_text(encoding="utf-8"))


def make_under_way(folder, finished=5, **size):
    """Write a run folder after some of its rounds, with half a line of another."""
    run = make_run(folder, **size)
    summary = summary_of(run)
    write_journal(run, finished)
    with (run / journal.FILE).open("ab") as file:
        file.write(b'{"crc": "0')
    for name in ("summary.json", "diagnostics.json"):
        (run / name).unlink()
    tasks, rounds = summary["tasks"], summary["total_rounds"]
    progress = {"state": "training", "round": finished + 1, "rounds": rounds}
    progress |= {"task": finished * tasks // rounds, "tasks": tasks}
    progress |= {"clients_done": 1, "clients": summary["clients"], "working": [1, 2]}
    progress |= {"seconds": 12.5, "left": 83.0}
    write(run / "progress.json", progress)
    os.utime(run / "progress.json", (1_790_000_000, 1_790_000_000))
    return run
