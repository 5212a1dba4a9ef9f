"""What an error of a client may tell the server: nothing of where its files are."""

import re

_PATH = re.compile(
    r"""(?P<quote>['"])(?:~|/).*?(?P=quote)  # quoted, which may hold blanks
    |(?<![\w/.~<])(?:~/|/(?=\w|\.))[^\s'",;:()]*  # from a root, up to a blank
    """,
    re.VERBOSE,
)


def without_paths(text: str) -> str:
    """Return a sentence with ``(a path)`` for each absolute path in it."""
    return _PATH.sub("(a path)", text)


def unforeseen(error: BaseException) -> str:
    """Return what may be told of an error that nobody has foreseen.

    Of one of the operating system that is its kind: its text names files, which may
    lie anywhere and have blanks in their names.
    """
    text = error.strerror if isinstance(error, OSError) else str(error)
    return without_paths(f"{type(error).__name__}: {text or 'without a reason'}")
