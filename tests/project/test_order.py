"""In which order the tests begin."""

from itertools import groupby
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_those_that_start_processes_begin_first(request):
    paths = [item.path.relative_to(TESTS).parts[0] for item in request.session.items]

    begun = [folder for folder, _ in groupby(paths)]

    chosen = [folder for folder in ("runtime", "project") if folder in begun]
    assert begun[: len(chosen)] == chosen
    assert len(set(begun)) == len(begun)
