"""Draw the charts of README and manual from the tables of the studies.

python docs/images/make.py [FOLDER]    # after a table has changed; here by default

Each chart is an SVG with a transparent background: NAME.svg for light pages,
NAME-dark.svg for dark ones. A table stands between ``<!-- name -->`` and
``<!-- /name -->`` in README.md or HISTORY.md of its study.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STUDIES = Path(__file__).parents[2] / "experiments"
LOOKS = {
    "": {"text": "#1f2933", "faint": "#697480", "gain": "#0f766e", "loss": "#b45309"},
    "-dark": {
        **{"text": "#e6e9ee", "faint": "#9aa5b1"},
        **{"gain": "#2dd4bf", "loss": "#fbbf24"},
    },
}


class Pair(NamedTuple):
    """Two cells of a table: accuracy with the other clients, and alone."""

    study: str
    table: str
    federated: str
    """Row."""
    alone: str
    """Row."""
    columns: tuple[str, str] = ("accuracy", "accuracy")


def five(federated: str, alone: str) -> Pair:
    """Name two rows of Overlapped-CIFAR-100 with five seeds."""
    return Pair("overlapped_cifar100", "five", federated, alone)


EXACT = "exact heads on fixed filters"
EXACT_ALONE = f"{EXACT}, alone"
RESTRICTED = "FedAvg with restricted softmax"
RESTRICTED_ALONE = "one network alone with restricted softmax"
GAINS = {
    ("Images, classes shared", EXACT): five(EXACT, EXACT_ALONE),
    ("Texts, classes shared", "FedAvg, restricted softmax"): Pair(
        "fedseit_table2", "chosen", RESTRICTED, RESTRICTED_ALONE
    ),
    ("Images, hidden concepts", "Concept Matching"): Pair(
        *("concept_matching", "relabelled"),
        *("concept-matching", "concept-matching, alone"),
    ),
    ("Texts, new classes", "exact heads on frozen MiniLM"): Pair(
        "analytic", "orders", "4", "4", ("`analytic`", "alone")
    ),
    ("Images, no class shared", EXACT): Pair(
        "overlapped_cifar100", "networks", EXACT, EXACT_ALONE
    ),
}
"""By setting and method."""
SENT = {
    "exact heads": five(EXACT, EXACT_ALONE),
    "linear head, restricted softmax": five(
        "FedAvg of a linear head with restricted softmax", "linear heads, alone"
    ),
    "matched ensemble, int8": five(
        "matched ensemble with int8", "matched ensemble, alone"
    ),
    "FedWeIT": five("FedWeIT", "FedWeIT, alone"),
    "FedAvg, restricted softmax": five(RESTRICTED, RESTRICTED_ALONE),
    "FedProx": five("FedProx", "one network alone"),
    "FedAvg": five("FedAvg", "one network alone"),
}


def cell(study: str, table: str, row: str, column: str) -> float:
    """Return the first number of a cell of a study's table.

    Raises:
        LookupError: if no page of the study has such a cell.
    """
    for page in ("README.md", "HISTORY.md"):
        path = STUDIES / study / page
        text = path.read_text() if path.exists() else ""
        shown = text.partition(f"<!-- {table} -->")[2].partition("<!-- /")[0]
        lines = [line for line in shown.splitlines() if line.startswith("|")]
        rows = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
        for cells in rows:
            if cells[0] == row and column in rows[0]:
                return float(cells[rows[0].index(column)].split()[0])
    raise LookupError(f"{study}: table {table!r} has no row {row!r} with {column!r}")


def percent(study: str, table: str, row: str, column: str) -> float:
    """Return an accuracy of a table, in percent to one decimal.

    Tables that scripts write have shares up to 1, others have percent above 1.

    Raises:
        ValueError: if it is neither.
    """
    found = cell(study, table, row, column)
    if not 0 <= found <= 100:
        raise ValueError(f"{study}, {row!r}: got {found}, expected between 0 and 100")
    return round(100 * found if found <= 1 else found, 1)


def accuracies(pair: Pair) -> tuple[float, float]:
    """Return the accuracies with the other clients and alone, in percent."""
    study, table, *rows, columns = pair
    federated, alone = (
        percent(study, table, row, column)
        for row, column in zip(rows, columns, strict=True)
    )
    return federated, alone


def plain(axes: Axes, look: dict[str, str]) -> None:
    """Leave what a reader needs: no frame, no ticks, quiet labels."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelcolor=look["faint"])
    axes.xaxis.label.set_color(look["faint"])
    axes.yaxis.label.set_color(look["faint"])


def gain(axes: Axes, look: dict[str, str]) -> None:
    """Draw accuracy with others against alone, two bars a setting."""
    middle, small = {"va": "center"}, {"va": "center", "fontsize": 9}
    for number, ((title, method), pair) in enumerate(GAINS.items()):
        at = -number
        federated, alone = accuracies(pair)
        axes.barh(at + 0.19, federated, 0.34, color=look["gain"])
        axes.barh(at - 0.19, alone, 0.34, color=look["faint"], alpha=0.6)
        axes.text(federated + 1, at + 0.19, f"{federated:.1f}", **small)
        axes.text(alone + 1, at - 0.19, f"{alone:.1f}", **small)
        axes.text(-1.5, at + 0.19, title, ha="right", **middle)
        axes.text(-1.5, at - 0.2, method, ha="right", color=look["faint"], **small)
        points = f"{federated - alone:+.1f}".replace("+0.0", "0.0")
        color = look["faint" if points == "0.0" else "gain"]
        axes.text(116, at, points, ha="right", color=color, weight="bold", **middle)
    for x, text, color in (
        (0, "with the other clients", "gain"),
        (52, "alone", "faint"),
    ):
        axes.text(x, 0.6, text, color=look[color], fontsize=9)
    axes.text(116, 0.6, "points", color=look["faint"], ha="right", fontsize=9)
    axes.set(xlim=(-60, 116), ylim=(-4.5, 0.9), yticks=[], xticks=[])
    axes.set_xlabel("accuracy in percent, mean over clients, tasks and seeds")


def sent(axes: Axes, look: dict[str, str]) -> None:
    """Draw accuracy against megabytes sent up on Overlapped-CIFAR-100."""
    line = percent("overlapped_cifar100", "five", "single-task, alone", "accuracy")
    faint = {"color": look["faint"], "fontsize": 9, "va": "top"}
    axes.axhline(line, color=look["faint"], linestyle=(0, (4, 3)), linewidth=1)
    axes.text(11, line - 0.6, f"one network per task, alone {line:.1f}", **faint)
    for title, pair in SENT.items():
        federated, alone = accuracies(pair)
        up = cell(pair.study, pair.table, pair.federated, "up")
        color = look["gain" if federated > alone else "loss"]
        axes.plot(up, federated, "o", color=color, markersize=7)
        left = up > 300
        below = abs(federated - line) < 1
        axes.text(
            *(up * (0.9 if left else 1.11), federated - 1.1 * below),
            f"{title} {federated:.1f} (alone {alone:.1f})",
            **{"va": "center", "ha": "right" if left else "left", "fontsize": 9},
        )
    ticks = [10, 20, 50, 100, 200, 500]
    axes.set(xscale="log", xlim=(10, 700), ylim=(30, 64))
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("megabytes sent up by all clients in the whole run")
    axes.set_ylabel("accuracy in percent")
    axes.grid(color=look["faint"], alpha=0.2)


CHARTS = {"gain": gain, "bytes": sent}


def make(folder: Path) -> None:
    """Draw every chart for light and for dark pages."""
    for name, draw in CHARTS.items():
        for variant, look in LOOKS.items():
            style = {
                "svg.fonttype": "none",  # text stays text: a small file, and readable
                "svg.hashsalt": name,
                "text.color": look["text"],
                "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
                "axes.axisbelow": True,
            }
            with mpl.rc_context(style):
                figure = Figure(figsize=(5.9, 4.1), layout="constrained")
                axes = figure.add_subplot()
                draw(axes, look)
                plain(axes, look)
                path = folder / f"{name}{variant}.svg"
                nothing = {"Date": None, "Creator": None}
                figure.savefig(path, transparent=True, metadata=nothing)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
