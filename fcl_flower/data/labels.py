"""Class names that look alike, such as ``Cat`` and ``cat``."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence


def plain(name: str) -> str:
    """Reduce a class name to a form that all names that look like it share.

    Letters become composed (NFC) and lower case, blanks single, and ``1.0`` becomes
    ``1``.

    >>> plain(" Big  CAT") == plain("big cat"), plain("2.00"), plain("2.5")
    (True, '2', '2.5')
    """
    folded = unicodedata.normalize("NFC", name).casefold()
    text = " ".join(unicodedata.normalize("NFC", folded).split())
    whole = re.fullmatch(r"([+-]?\d+)\.0*", text)
    return whole[1] if whole else text


def tidy(name: str) -> str:
    """Compose letters (NFC), strip blanks around a name, and make inner ones single."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def look_alikes(names: Iterable[str]) -> list[tuple[str, ...]]:
    """List the groups of different names that look alike, sorted.

    >>> look_alikes(["cat", "dog", "Cat", "1", "1.0"])
    [('1', '1.0'), ('Cat', 'cat')]
    """
    groups = defaultdict(set)
    for name in names:
        groups[plain(name)].add(name)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)


def spellings(counts: Mapping[str, int], known: Sequence[str]) -> dict[str, str]:
    """Choose one spelling for names that look alike.

    A name of ``known`` stays, and names like it take its spelling. Other names take the
    spelling that is most frequent by ``counts``.

    >>> spellings({"Cat": 1, "cat": 5, "DOG": 2, "emu": 1}, known=["Dog"])
    {'Cat': 'cat', 'cat': 'cat', 'DOG': 'Dog', 'emu': 'emu'}
    """
    chosen = {plain(name): name for name in reversed(known)}
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        chosen.setdefault(plain(name), name)
    return {name: name if name in known else chosen[plain(name)] for name in counts}


def refusal(name: str, other: str) -> str:
    """Write that a class name looks like another one, and how to choose."""
    # People cannot see the difference of composed and decomposed letters.
    alike = unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", other)
    first, second = (ascii(n) if alike else repr(n) for n in (name, other))
    return (
        f"{first:.60}, which looks like {second:.60}, expected one spelling of each "
        "class; --set data.labels=merge takes them as one class, keep as two"
    )
