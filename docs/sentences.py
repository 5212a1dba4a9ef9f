"""Check how long the sentences of README and manual are.

python docs/sentences.py [PAGE ...]    # pages, their mean and longest sentence
python docs/sentences.py --check       # is no sentence longer than 25 words?

Code, tables and headings are left out; code within a sentence counts as one word.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONGEST = 25
_GENERATED = "<!-- Made by docs/generate.py"
_END = re.compile(r"(?<=[.!?:])[)\"*]*\s+(?=[\"(*]*[A-Z0-9\x00])")


def pages() -> list[Path]:
    """Return the pages that people write: README, manual, studies, contributing."""
    studies = (ROOT / "experiments").glob("*/README.md")
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docker" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted(studies),
    ]
    return [page for page in found if _GENERATED not in page.read_text()]


def sentences(text: str) -> Iterator[str]:
    r"""Yield the sentences of a page in Markdown.

    >>> list(sentences("# A title\n\nIt runs `fcl run`. See [this page](x.md).\n"))
    ['It runs CODE.', 'See this page.']
    """
    text = re.sub(r"^ *```.*?^ *```", "\n\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[^>]+>", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(\||#|:--|!!!).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]+`", "\x00", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in _END.split(" ".join(paragraph.split())):
            if sentence.strip(" *"):
                yield sentence.replace("\x00", "CODE")


def words(sentence: str) -> int:
    """Return how many words a sentence has."""
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def main() -> int:
    """Print a line a page, and what is too long; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--check", action="store_true", help="only what is too long")
    given = parser.parse_args()
    long = 0
    for page in given.pages or pages():
        found = list(sentences(page.read_text()))
        counts = [words(sentence) for sentence in found] or [0]
        if not given.check:
            mean = sum(counts) / len(counts)
            print(f"{mean:5.1f} {max(counts):4d} {sum(counts):6d} words  {page}")
        if given.check or given.pages:
            for sentence, count in zip(found, counts, strict=False):
                if count > LONGEST:
                    long += 1
                    print(f"{page}: {count} words, at most {LONGEST}: {sentence}")
    return int(given.check and long > 0)


if __name__ == "__main__":
    sys.exit(main())
