"""Real texts without a download: the docstrings of Python's standard library."""

import ast
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from fcl_flower.core.errors import ConfigError
from fcl_flower.data.datasets.text import (
    TextDataset,
    text_dataset,
    text_split,
    words,
)
from fcl_flower.data.partition import train_valid_split

# In every CPython from 3.11 on, also where the interpreter was packaged in parts:
# nothing that needs a display, is deprecated, or is a file only in some versions.
_MODULES = (
    "_pydecimal",
    "asyncio",
    "email",
    "http",
    "importlib",
    "inspect",
    "ipaddress",
    "logging",
    "mailbox",
    "multiprocessing",
    "pathlib",
    "tarfile",
    "typing",
    "unittest",
    "urllib",
    "xml",
)
_TESTS = {"test", "tests", "idle_test"}
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FEWEST_WORDS = 4
_FEWEST_TEXTS = 40


def load_stdlib_docs() -> TextDataset:
    """Return docstrings labelled by the module or package they stand in.

    16 classes of about 70 to 330 docstrings of at least 4 words, a quarter of each
    class as test documents. No two documents have the same words, and words that
    occur under two labels are in none. The numbers differ a little from one version
    of Python to the next, so a result belongs to a version.

    Raises:
        ConfigError: the standard library is installed without its source files.
    """
    return _documents(Path(sysconfig.get_path("stdlib")))


# To parse all these files takes seconds, and nothing that a caller sets changes them.
@lru_cache(maxsize=1)
def _documents(folder: Path) -> TextDataset:
    homes: dict[tuple[str, ...], set[int]] = {}
    texts: dict[tuple[str, ...], str] = {}
    for label, module in enumerate(_MODULES):
        for text in _docstrings(folder, module):
            found = words(text)
            if len(found) >= _FEWEST_WORDS:
                homes.setdefault(found, set()).add(label)
                texts.setdefault(found, text)
    kept = [found for found, labels in homes.items() if len(labels) == 1]
    y = np.array([label for found in kept for label in homes[found]], np.int64)
    counts = np.bincount(y, minlength=len(_MODULES))
    if counts.min() < _FEWEST_TEXTS:
        raise ConfigError(
            f"dataset: got stdlib-docs with {counts.min()} docstrings of "
            f"{_MODULES[counts.argmin()]} in {folder}, expected at least "
            f"{_FEWEST_TEXTS}: a standard library with its .py files, not zipped or "
            "stripped"
        )
    # The split is part of the data set: the same whatever the run's seed.
    train, test = (
        text_split((texts[kept[at]] for at in chosen), y[chosen].tolist())
        for chosen in train_valid_split(y, 0.25, np.random.default_rng(0))
    )
    return text_dataset("stdlib-docs", "stdlib-docs", train, test, _MODULES)


def _docstrings(folder: Path, module: str) -> Iterator[str]:
    """Yield the docstrings of a module or package without importing it."""
    files = [folder / f"{module}.py"]
    if not files[0].is_file():
        files = sorted((folder / module).rglob("*.py"))
    for file in files:
        if _TESTS.isdisjoint(file.relative_to(folder).parts):
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, _DEFINITIONS):
                    yield ast.get_docstring(node) or ""
