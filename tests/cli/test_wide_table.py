"""A table that is wider than the terminal loses no number."""

import pytest
from rich.cells import cell_len
from rich.console import Console

from fcl_flower.cli.tables import print_sheet
from fcl_flower.results.tables import TextTable

HEAD = ("method", "seeds", "accuracy", "before aggregation", "up")
LINES = (
    ("FedAvg [red]", "1, 2", "0.922 ± 0.010", "0.933 ± 0.011", "1234.5 MB"),
    ("local", "1, 2", "0.989 ± 0.000", "", "0.0 MB"),
)


def printed(width, head=HEAD, lines=LINES):
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        print_sheet(console, TextTable(head, lines, "What [b]columns[/b] say."))
    return [line.rstrip() for line in shown.get().splitlines() if line.strip()]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 33])
def test_every_cell_is_whole_and_named(width):
    found = printed(width)
    assert all(len(line) <= width for line in found)
    text = "\n".join(found)
    for row in LINES:
        assert all(cell in text for cell in row if cell)
    # Each part says whose rows these are.
    parts = sum(line.split()[:1] == ["local"] for line in found)
    assert parts == sum("FedAvg [red]" in line for line in found)
    assert parts == sum("method" in line for line in found)
    assert parts == {200: 1, 80: 1, 60: 2, 40: 3, 33: 4}[width]
    assert " ".join(found).endswith("What [b]columns[/b] say.")


def test_a_part_is_as_wide_as_fits():
    # method, accuracy, up: 12 + 3 + 13 + 3 + 9
    head, lines = ("method", "accuracy", "up"), [(r[0], r[2], r[4]) for r in LINES]
    assert max(map(len, printed(43, head, lines)[:4])) <= 43
    count = {w: sum("local" in x for x in printed(w, head, lines)) for w in (39, 45)}
    assert count == {39: 2, 45: 1}


def test_characters_as_wide_as_two_keep_their_line_whole():
    lines = [("联邦持续学习方法", "1, 2", "0.989 ± 0.000")]
    found = printed(36, ("method", "seeds", "accuracy"), lines)
    assert [line.split()[0] for line in found].count("联邦持续学习方法") == 2
    assert all(cell_len(line) <= 36 for line in found)


def test_a_single_column_that_does_not_fit_is_broken():
    found = printed(20)
    assert all(len(line) <= 20 for line in found)
    letters = "".join("".join(found).split())
    assert all(number in letters for number in ("0.989", "0.922", "1234.5"))
