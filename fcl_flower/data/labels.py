"""Class names that look alike, such as ``Cat`` and ``cat``: one class, or two."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence


def plain(name: str) -> str:
    """Reduce a class name to what it has in common with those that look alike.

    Letters are composed (NFC) and lower case, blanks single, and ``1.0`` is ``1``.

    >>> plain(" Big  CAT") == plain("big cat"), plain("2.00"), plain("2.5")
    (True, '2', '2.5')
    """
    folded = unicodedata.normalize("NFC", name).casefold()
    text = " ".join(unicodedata.normalize("NFC", folded).split())
    whole = re.fullmatch(r"([+-]?\d+)\.0*", text)
    return whole[1] if whole else text


def tidy(name: str) -> str:
    """Compose letters (NFC), and leave out blanks around a name or second in a row."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def look_alikes(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Group the different names that look alike, sorted.

    >>> look_alikes(["cat", "dog", "Cat", "1", "1.0"])
    [('1', '1.0'), ('Cat', 'cat')]
    """
    groups = defaultdict(set)
    for name in names:
        groups[plain(name)].add(name)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def spellings(counts: Mapping[str, int], known: Sequence[str]) -> dict[str, str]:
    """Choose how each name is spelled, where some look alike.

    As one of ``known``, which themselves stay; else as the most frequent of those that
    look alike, by ``counts``.

    >>> spellings({"Cat": 1, "cat": 5, "DOG": 2, "emu": 1}, known=["Dog"])
    {'Cat': 'cat', 'cat': 'cat', 'DOG': 'Dog', 'emu': 'emu'}
    """
    chosen = {plain(name): name for name in reversed(known)}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        chosen.setdefault(plain(name), name)
    return {name: name if name in known else chosen[plain(name)] for name in counts}


def refusal(name: str, other: str) -> str:
    """Say of a class name that it looks like another one, and what to do."""
    # Composed and decomposed letters differ in nothing that can be seen.
    alike = unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", other)
    this, that = (ascii(n) if alike else repr(n) for n in (name, other))
    return (
        f"{this:.60}, which looks like {that:.60}, expected one spelling of each class;"
        " --set data.labels=merge takes them as one class, keep as two"
    )
