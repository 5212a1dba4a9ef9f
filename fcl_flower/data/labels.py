"""Class names that look alike, such as ``Cat`` and ``cat``."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""The characters that Unicode calls default-ignorable: fillers, joiners, selectors."""
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02b9\u02bc\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
    }
)
"""The hyphens and quotation marks of a typist, for those of a typesetter."""


def _seen(name: str) -> str:
    """Reduce a name to what people see: no invisible characters, simple signs."""
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", name.translate(_SIGNS)))
    return " ".join(_INVISIBLE.sub("", text.translate(_SIGNS)).split())


def plain(name: str) -> str:
    """Reduce a class name to a form that all names that look like it share.

    Letters become composed, of common width (NFKC) and lower case, and blanks single.
    Invisible characters go, and ``01`` and ``1.0`` become ``1``.

    >>> plain(" Big  CAT") == plain("big cat"), plain("02.00"), plain("2.5")
    (True, '2', '2.5')
    """
    folded = unicodedata.normalize("NFKC", _seen(name).casefold())
    whole = re.fullmatch(r"([+-]?)0*(\d+)(\.0*)?", folded)
    return whole[1] + whole[2] if whole else folded


def spelled_apart(names: Sequence[str]) -> list[str]:
    r"""Write names so that people see their difference.

    >>> spelled_apart(["Cat", "cat"]), spelled_apart(["1-2", "1\u20112"])
    (["'Cat'", "'cat'"], ["'1-2'", "'1\\u20112'"])
    """
    alike = len({*map(_seen, names)}) < len(names)
    return [ascii(name) if alike else repr(name) for name in names]


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
    first, second = spelled_apart([name, other])
    return (
        f"{first:.60}, which looks like {second:.60}, expected one spelling of each "
        "class; --set data.labels=merge takes them as one class, keep as two"
    )
