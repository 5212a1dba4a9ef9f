"""FedWeIT's defaults: how strong sparsity is, and each setting beside others.

Run from the root; a finished run is not repeated, and ``--jobs N`` do it side by side::

    python experiments/fedweit_defaults/study.py grid --data-root DIR      # hours
    python experiments/fedweit_defaults/study.py gradients --data-root DIR
    python experiments/fedweit_defaults/study.py settings --data-root DIR  # prints
    python experiments/fedweit_defaults/study.py --page   # the pages' tables and chart

``grid`` runs half decades of ``lambda1`` on data that had no part in the choice, with
seeds 1 to 3. ``settings`` runs what was chosen by, with seeds 7 and 8.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fcl_flower as fcl
from fcl_flower.data.examples import task_data
from fcl_flower.setup.build import Built
from fcl_flower.setup.resolve import resolve
from fcl_flower.training.tensors import snapshot
from strategies.fedweit.maths import decomposed

HERE = Path(__file__).parent
PAGES = {"grid": HERE / "README.md", "size": HERE / "HISTORY.md"}
"""Where each table stands."""
Row = dict[str, Any]
Settings = Mapping[str, Any]

LENET = {"model": "lenet", "model.width": 0.4, "scenario": "overlapped"}
WORDS = {"model": "kim-cnn", "word_vectors": "googlenews_word2vec_300d_subset.txt.gz"}


def federation(
    dataset: str,
    classes: int,
    rounds: int,
    train: int,
    *,
    clients: int = 3,
    tasks: int = 3,
    test: int = 60,
) -> dict[str, Any]:
    """Describe who learns what, with ``train`` samples of each class of a client."""
    return {
        "datasets": dataset,
        "scenario": "overlapped",
        "clients": clients,
        "tasks": tasks,
        "classes_per_task": classes,
        "rounds": rounds,
        "max_train_per_class": train,
        "max_test_per_class": test,
    }


HELD_OUT: Mapping[str, Settings] = {
    "letters, 20 a class": LENET | federation("notmnist", 2, 8, 20, clients=4, tasks=4),
    "letters, 200, 20 rounds": LENET | federation("notmnist", 3, 20, 200, tasks=2),
    "objects, 60": LENET | federation("tinyimagenet32_100c", 5, 8, 60),
    "ResNet-18 on objects, 60": {"model": "resnet18"}
    | federation("tinyimagenet32_100c", 5, 8, 60, clients=2, tasks=2),
    "topics, 60": WORDS | federation("dbpedia", 3, 5, 60),
    "questions, 20": WORDS | federation("trec", 2, 8, 20),
    "activities, 60, 3 rounds": {"model": "har-cnn"}
    | federation("uci_har_raw9", 2, 3, 60),
    "a table of activities, 60": {"model": "mlp"} | federation("", 2, 8, 60),
}
CHOSEN_BY: Mapping[str, Settings] = {
    "clothes, 60": LENET | federation("fashion_mnist", 2, 8, 60, clients=4, tasks=4),
    "signs, 20": LENET | federation("gtsrb", 5, 8, 20, clients=4, tasks=4),
    "CIFAR-100, 60": LENET | federation("cifar100", 5, 8, 60),
    "news, 60": {**WORDS, **federation("agnews", 2, 5, 60), "scenario": "text"},
    "news, all classes": {
        **WORDS,
        **federation("agnews", 4, 5, 60, test=100),
        "scenario": "text",
    },
    "digits, 3 rounds": {"model": "small"}
    | federation("digits", 2, 3, 500, clients=4, tasks=4, test=500),
    "ResNet-18 on CIFAR-10, 60": {"model": "resnet18"}
    | federation("cifar10", 3, 8, 60, clients=2, tasks=2),
}
GRID = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ALONE = {"local_only": True}
ROWS: Mapping[str, Settings] = {
    "defaults": {},
    "defaults, alone": ALONE,
    "a network a task": {"strategy": "stl"},
    **{f"lambda1 {value:g}": {"strategy.lambda1": value} for value in reversed(GRID)},
}
VARIANTS: Mapping[str, Settings] = {
    **ROWS,
    "adapter_bits 32": {"strategy.adapter_bits": 32},
    "mask_rate 30": {"strategy.mask_rate": 30.0},
    **{f"adapter_bits {n}": {"strategy.adapter_bits": n} for n in (3, 4, 6, 8)},
    "mask_rate 0": {"strategy.mask_rate": 0.0},
    "follow 0": {"strategy.follow": 0.0},
    "follow 1": {"strategy.follow": 1.0},
    "sigmoid": {"strategy.gate": "sigmoid", "strategy.initial_gate": 2.0},
    "attention_rate 1": {"strategy.attention_rate": 1.0},
    "without others' adapters": {"strategy.knowledge": "none"},
    "lambda2 0": {"strategy.lambda2": 0.0},
    "kappa 1": {"strategy.kappa": 1.0},
    "solver unbraked": {"strategy.solver": "unbraked"},
    "solver gradient": {"strategy.solver": "gradient"},
    "the former defaults": {
        "strategy.lambda1": 1e-3,
        "strategy.adapter_bits": 32,
        "strategy.mask_rate": 30.0,
        "strategy.threshold": 1e-3,
        "strategy.follow": 0.0,
    },
}
PARTS = {
    "grid": (HELD_OUT, ROWS, (1, 2, 3)),
    "settings": (CHOSEN_BY, VARIANTS, (7, 8)),
}


def table_of_activities(root: Path) -> tuple[Any, ...]:
    """Describe each window of UCI HAR by four numbers a channel: 36 columns."""
    with np.load(root / "har" / "uci_har_raw9.npz") as file:
        arrays = [
            np.concatenate([f(file[x].astype(np.float32), 2) for f in _COLUMNS], 1)
            if x.startswith("x")
            else file[x]
            for x in ("x_train", "y_train", "x_test", "y_test")
        ]
    return tuple(arrays)


_COLUMNS = (np.mean, np.std, np.min, np.max)


def run(job: tuple[str, Settings, str, Settings, int, Path]) -> Row:
    """Run one federation of a setting."""
    setting, about, row, more, seed, root = job
    settings = {"strategy": "fedweit", "seed": seed, "data_root": str(root)}
    settings |= {**about, **more, "threads": 1}
    data = None
    if not settings["datasets"]:
        data = table_of_activities(root)
        del settings["datasets"]
    began = time.monotonic()
    strategy = settings.pop("strategy")
    result = fcl.simulate(strategy, data=data, progress=False, **settings)
    summary = result.summary
    found = Path(result.folder) / "diagnostics.json"
    adapters = json.loads(found.read_text()).get("adapters") if found.exists() else None
    densities = [cells[0] for cells in adapters["values"].values()] if adapters else []
    return {
        "setting": setting,
        "row": row,
        "seed": seed,
        "accuracy": summary["average_accuracy"],
        "forgetting": summary["forgetting"],
        "density": statistics.mean(densities) if densities else None,
        "model_bytes": summary["model_bytes"],
        "bytes_up": summary["bytes_up"],
        "seconds": round(time.monotonic() - began, 1),
    }


def finished(part: str) -> list[Row]:
    """Read the runs that are there."""
    path = HERE / f"{part}.jsonl"
    return [json.loads(line) for line in path.open()] if path.exists() else []


def do(part: str, root: Path, jobs: int) -> None:
    """Do what is missing, seed by seed, and write each run as it ends."""
    settings, rows, seeds = PARTS[part]
    done = {(row["setting"], row["row"], row["seed"]) for row in finished(part)}
    missing = [
        (setting, about, row, more, seed, root)
        for seed, (row, more), (setting, about) in product(
            seeds, rows.items(), settings.items()
        )
        if (setting, row, seed) not in done
    ]
    missing.sort(key=lambda job: job[1]["model"] == "resnet18")  # those last: minutes
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(run, missing):
            with (HERE / f"{part}.jsonl").open("a") as file:
                file.write(json.dumps(found) + "\n")
            print(found, flush=True)


def gradients(root: Path) -> None:
    """Count the entries whose gradient is above ``lambda1`` when training begins.

    Of all samples of a client's first task, at the weights from which all start.
    Others stay at zero, or go back to it: that is where equation 2 has its minimum.
    """
    lines = []
    for setting, about in HELD_OUT.items():
        if not about["datasets"]:
            continue
        config = fcl.RunConfig.from_settings(
            **{"strategy": "fedweit", "seed": 1, "data_root": str(root), **about}
        )
        run = Built(resolve(config))
        data = task_data(run.scenario, 0, 0, run.inputs).train
        model = run.model(run.word_vectors)
        loss = torch.nn.functional.cross_entropy(model(data.x, 0), data.y)
        loss.backward()
        weights = decomposed(snapshot(model, model.shared_names()))
        found = torch.cat(
            [model.get_parameter(name).grad.flatten() for name in weights]
        )
        shares = {
            f"{value:g}": float((found.abs() > value).float().mean()) for value in GRID
        }
        lines.append(json.dumps({"setting": setting, "shares": shares}))
    (HERE / "gradients.jsonl").write_text("\n".join(lines) + "\n")


# ---- what the page shows


def by_cell(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Collect the runs of each setting and row, by ascending seed."""
    cells = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["seed"]):
        cells[row["setting"], row["row"]].append(row)
    return dict(cells)


def mean(rows: Sequence[Row], key: str) -> float:
    """Average a number over the seeds."""
    return statistics.mean(row[key] for row in rows)


def shown(rows: Sequence[Row]) -> str:
    """Show the mean accuracy and its standard deviation over the seeds."""
    found = [row["accuracy"] for row in rows]
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.3f} ± {spread:.3f}"


def grid_table() -> Iterator[str]:
    """Hold the default against the best of the grid, itself alone and its rival."""
    yield "| setting | default | alone | network per task | best of the grid | 1e-3 |"
    yield "| --- | --- | --- | --- | --- | --- |"
    cells = by_cell(finished("grid"))
    for setting in HELD_OUT:
        grid = {
            value: cells[setting, f"lambda1 {value:g}"]
            for value in GRID
            if (setting, f"lambda1 {value:g}") in cells
        }
        if (setting, "defaults") not in cells or not grid:
            continue
        best = max(grid, key=lambda value: mean(grid[value], "accuracy"))
        parts = ("defaults", "defaults, alone", "a network a task")
        numbers = [shown(cells[setting, part]) for part in parts]
        numbers += [f"{shown(grid[best])} ({best:g})", shown(grid[1e-3])]
        yield f"| {' | '.join([setting, *numbers])} |"


def size_table() -> Iterator[str]:
    """Show what a finished task takes, as a share of a network, and what was sent."""
    yield (
        "| setting | density | a finished task | sent up | density, 1e-3 | forgetting |"
    )
    yield "| --- | --- | --- | --- | --- | --- |"
    cells = by_cell(finished("grid"))
    for setting, about in HELD_OUT.items():
        parts = ("defaults", "a network a task", "lambda1 0.001")
        if any((setting, part) not in cells for part in parts):
            continue
        ours, each, strong = (cells[setting, part] for part in parts)
        # One a task, and that from which each starts.
        network = mean(each, "model_bytes") / (about["tasks"] + 1)
        # The base stays twice: as it is, and as it was when a task last ended.
        task = (mean(ours, "model_bytes") - 2 * network) / about["tasks"] / network
        yield (
            f"| {setting} | {mean(ours, 'density'):.0%} | {task:.2f} of a network | "
            f"{mean(ours, 'bytes_up') / 1e6:.1f} MB | {mean(strong, 'density'):.0%} | "
            f"{mean(ours, 'forgetting'):+.3f} |"
        )


def settings_table() -> Iterator[str]:
    """Show each variant's accuracy minus the default's, in points, by setting."""
    cells = by_cell(finished("settings"))
    yield f"| | {' | '.join(CHOSEN_BY)} |"
    yield f"| --- |{' --- |' * len(CHOSEN_BY)}"
    for row in VARIANTS:
        numbers = []
        for setting in CHOSEN_BY:
            found = cells.get((setting, row), [])
            if row == "defaults" and found:
                numbers.append(shown(found))
            elif found:
                seeds = {one["seed"]: one["accuracy"] for one in found}
                base = {
                    one["seed"]: one["accuracy"] for one in cells[setting, "defaults"]
                }
                gains = [100 * (seeds[s] - base[s]) for s in seeds.keys() & base.keys()]
                numbers.append(f"{statistics.mean(gains):+.1f}")
            else:
                numbers.append("")
        yield f"| {' | '.join([row, *numbers])} |"


def draw() -> None:
    """Draw accuracy and density over ``lambda1``, a line a setting."""
    from matplotlib.figure import Figure

    cells = by_cell(finished("grid"))
    lines = (HERE / "gradients.jsonl").read_text().splitlines()
    shares = {one["setting"]: one["shares"] for one in map(json.loads, lines)}
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, setting in enumerate(HELD_OUT):
        grid = [value for value in GRID if (setting, f"lambda1 {value:g}") in cells]
        if len(grid) < len(GRID):
            continue
        runs = [cells[setting, f"lambda1 {value:g}"] for value in grid]
        found = np.array([mean(one, "accuracy") for one in runs])
        look = {"marker": ".", "color": f"C{number}"}
        left.plot(grid, 100 * (found - found.max()), **look)
        densities = [100 * mean(one, "density") for one in runs]
        right.plot(grid, densities, label=setting, **look)
        if setting in shares:
            above = [100 * shares[setting][f"{value:g}"] for value in grid]
            right.plot(grid, above, color=f"C{number}", linestyle="--", alpha=0.5)
    for axes, title in (
        (left, "accuracy, points below the best of the grid"),
        (right, "entries left; dashed: gradient above lambda1 (%)"),
    ):
        axes.axvline(1e-5, color="0.6", linestyle=":")
        axes.set(xscale="log", xlabel="lambda1 (dotted: the default)", title=title)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    figure.savefig(HERE / "lambda1.svg", metadata={"Date": None})


def page() -> None:
    """Write the tables of the pages, and the chart."""
    tables = {"grid": grid_table, "size": size_table}
    for name, lines in tables.items():
        text = PAGES[name].read_text()
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        table = "\n".join(lines())
        after = rest.partition(end)[2]
        PAGES[name].write_text(f"{before}{begin}{table}\n{end}{after}")
    draw()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=(*PARTS, "gradients"))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    if args.page:
        page()
        print("\n".join(settings_table()))
    elif args.part == "gradients":
        gradients(args.data_root)
    else:
        do(args.part, args.data_root, args.jobs)
