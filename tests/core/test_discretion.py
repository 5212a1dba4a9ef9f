"""What a client says of its errors names no file."""

import pytest

from fcl_flower.core.errors import unforeseen, without_paths


@pytest.mark.parametrize(
    ("text", "wanted"),
    {
        "batch_size: got 0, expected at least 1": None,
        "base/body.w: expected float32 of shape (3, 4), got 1/2": None,
        "got 3 / 4 and/or 5": None,
        "no <b>room</b>": None,
        "/data/ann/b.csv is damaged": "(a path) is damaged",
        "state: /data/ann/3/base is missing": "state: (a path) is missing",
        "at (/data/b.csv), line 3": "at ((a path)), line 3",
        "file:/data/b.csv": "file:(a path)",
        "'/data/of ann/b.csv': no": "(a path): no",
        '"~/of ann/b.csv": no': "(a path): no",
        "in ~/b.csv": "in (a path)",
        "/a, /b/c; /d": "(a path), (a path); (a path)",
        "[PosixPath('/data/x y'), 3]": "[PosixPath((a path)), 3]",
        "under /.cache/x": "under (a path)",
    }.items(),
)
def test_paths_alone_are_hidden(text, wanted):
    assert without_paths(text) == (wanted or text)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ValueError("no /data/b.csv"), "ValueError: no (a path)"),
        (KeyError("w"), "KeyError: 'w'"),
        (RuntimeError(), "RuntimeError: without a reason"),
        (OSError("of no number"), "OSError: without a reason"),
        (
            FileNotFoundError(2, "No such file or directory", "/of ann/patients.csv"),
            "FileNotFoundError: No such file or directory",
        ),
    ],
)
def test_an_error_tells_its_text_and_that_of_a_system_its_kind_alone(error, wanted):
    assert unforeseen(error) == wanted
