"""Each of the project's own rules finds what breaks it."""

import pytest
import rules

SERVER = '''"""A server side."""
from fcl_flower.algorithms.base import ServerStrategy
LIMIT = 3
class Base(ServerStrategy[int]): ...
class Ours(Base): ...
'''


@pytest.fixture
def project(tmp_path):
    """Return a function that writes files to a small project that keeps the rules."""

    def write(**files):
        for path, text in files.items():
            place = tmp_path / path.replace("__", "/").replace("_py", ".py")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        return tmp_path

    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["numpy>=2", "flwr"]\n'
        '[project.optional-dependencies]\nmore = ["ray>=2"]\n'
    )
    (tmp_path / "constraints.txt").write_text(
        "# all of it\nnumpy==2.1\nray==2.50\nflwr==1\n"
    )
    write(strategies__ours_py=SERVER)
    write(clients__ours_py='"""A client."""\n')
    return write


def test_a_project_that_keeps_the_rules_breaks_none(project):
    allowed = (
        '"""A client."""\nfrom strategies.ours import LIMIT\nimport numpy.linalg\n'
    )
    note = "# TODO(#12): later\nfolder = 'runs/home/here'\n"

    assert rules.broken(project(clients__ours_py=allowed + note)) == []


@pytest.mark.parametrize(
    ("code", "line", "word"),
    [
        ('"""Of a client, its side."""\n', 1, "Of"),
        ('"""A."""\nLIMIT = 3\n"""In seconds."""\n', 3, "In"),
        ('"""A."""\nLIMIT: int = 3\n"""Where it ends."""\n', 3, "Where"),
        ('"""A."""\nclass A:\n    """What it keeps."""\n', 3, "What"),
        ('"""A."""\nclass A:\n    x: int = 1\n    """By name."""\n', 4, "By"),
        ('"""A."""\ndef f():\n    """With, or without."""\n', 3, "With"),
        ('"""A."""\nasync def f():\n    """If it may."""\n', 3, "If"),
        ('"""A."""\ndef f():\n    def g():\n        r"""As f."""\n', 4, "As"),
    ],
)
def test_a_docstring_that_begins_with_a_fragment_is_named(project, code, line, word):
    assert rules.broken(project(clients__new_py=code)) == [
        f"clients/new.py:{line}: the docstring begins with {word!r}, expected a verb, "
        "a noun with its article or a whole sentence"
    ]


@pytest.mark.parametrize(
    "code",
    [
        '"""Office hours of clients, by whose clock they train."""\n',
        '"""A."""\nx = 1\n"""The value of x."""\n',
        '"""A."""\ndef f():\n    """Whether it ends."""\n    x = 1\n    "Of x"\n',
        '"""A."""\nprint()\n"""Of no assignment."""\n',
        '""""""\n',
    ],
)
def test_other_strings_are_no_fragments(project, code):
    tree = rules.Project(project(clients__new_py=code))

    assert list(rules.fragments(tree)) == []


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"clients__new_py": "x = 1\n"}, "clients/new.py: has no docstring"),
        (
            {"tests__test_x_py": "\n# FIXME later\n"},
            "tests/test_x.py:2: write TODO(#issue)",
        ),
        (
            {"Makefile": "run:\n\tls /home/me\n"},
            "Makefile:2: names a place on somebody's machine",
        ),
        (
            {"constraints.txt": "numpy==1.9\nray==2.50\nflwr==1\n"},
            "constraints.txt: numpy>=2 is pinned to 1.9",
        ),
        (
            {"constraints.txt": "numpy==2.1\nflwr==1\n"},
            "constraints.txt: ray>=2 is pinned to None",
        ),
        (
            {"clients__new_py": '"""New."""\ndef f():\n    import scipy.linalg\n'},
            "clients/new.py: imports scipy, which is not declared",
        ),
        (
            {"strategies__new_py": '"""New."""\nfrom flwr.common.date import now\n'},
            "strategies/new.py: imports flwr.common.date, which only "
            "fcl_flower/deploy/speedups may",
        ),
        *(
            (
                {"clients__new_py": f'"""New."""\ndef f():\n    {line}\n'},
                f"clients/new.py: imports a server side, {what}",
            )
            for line, what in (
                ("from strategies.ours import Ours", "Ours"),
                ("from strategies import ours", "ours"),
                ("import strategies.ours", "strategies.ours"),
            )
        ),
    ],
)
def test_what_breaks_a_rule_is_named(project, files, sentence):
    assert rules.broken(project(**files)) == [sentence]
