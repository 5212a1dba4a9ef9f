"""When two names of classes are meant to be the same."""

import re
from unicodedata import normalize

_WHOLE = re.compile(r"([+-]?[0-9]+)\.0*")


def folded_name(name: str) -> str:
    """Fold what a spelling leaves open: names that look alike become equal.

    That is case, white space, how Unicode composes a letter (NFC), and whether a whole
    number has decimals: ``1.0`` is ``1``.
    """
    text = " ".join(normalize("NFC", normalize("NFC", name).casefold()).split())
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text
