"""What a client says of its errors names no file."""

import pytest

from fcl_flower.core.errors import unforeseen, without_paths

SAID = {
    "no path": "batch_size: got 0, expected at least 1",
    "a tensor's name": "base/body.w: expected float32 of shape (3, 4), got 1/2",
    "a sign": "got 3 / 4 and/or 5",
    "a mark": "no <b>room</b>",
}
HIDDEN = {
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
}


@pytest.mark.parametrize("text", SAID.values(), ids=SAID.keys())
def test_a_sentence_without_a_path_stays(text):
    assert without_paths(text) == text


@pytest.mark.parametrize(("text", "wanted"), HIDDEN.items())
def test_a_path_is_hidden(text, wanted):
    assert without_paths(text) == wanted


def test_an_error_of_the_operating_system_tells_its_kind_alone(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "of ann" / "patients.csv").read_text()

    found = unforeseen(caught.value)

    assert found == "FileNotFoundError: No such file or directory"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (
            ValueError("could not read /data/b.csv"),
            "ValueError: could not read (a path)",
        ),
        (KeyError("w"), "KeyError: 'w'"),
        (RuntimeError(), "RuntimeError: without a reason"),
        (OSError("of no number"), "OSError: without a reason"),
    ],
)
def test_another_error_tells_its_text(error, wanted):
    assert unforeseen(error) == wanted
