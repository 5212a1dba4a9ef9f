"""Files of another format are refused by name, and stay as they are."""

import json
import re
import shutil
import struct
import zlib

import pytest

import fcl_flower as fcl
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.formats import FormatError
from fcl_flower.results import journal, record
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.place import Place
from fcl_flower.setup.resolve import resolve

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "ended"
    size = {"clients": 2, "tasks": 1, "classes_per_task": 2, "rounds": 2}
    fcl.simulate("fedavg", **size, seed=7, progress=False, output=folder)
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def renumbered(text, number):
    """Give text another number as its format, or none at all."""
    new = "" if number is None else rf"\g<1>{number}\g<3>"
    changed, count = re.subn(r'("?format"?(?: =|:) )(\d+)(, |\n)', new, text)
    assert count == 1
    return changed


def config(folder, number):
    path = folder / "config.toml"
    path.write_text(renumbered(path.read_text(), number))
    return path, lambda: RunConfig.read(path, "resume")


def events(folder, number):
    path = folder / journal.FILE
    first, rest = path.read_bytes().split(b"\n", 1)
    # The format is the last entry of the line.
    content = json.loads(first)
    content.pop("crc")
    del content["format"]
    if number is not None:
        content["format"] = json.loads(number)
    line = json.dumps(content).encode()[1:]
    path.write_bytes(b'{"crc": "%08x", %s\n%s' % (zlib.crc32(line), line, rest))
    return path, lambda: record.read(folder)


def state(folder, number):
    path = sorted((folder / "checkpoint").glob("manifest-*"))[-1]
    content = path.read_bytes()
    start = content.index(b'{"format"')
    text = renumbered(content[start:-12].decode(), number).encode()
    end = struct.pack("<QI", len(text), zlib.crc32(text))
    path.write_bytes(content[:start] + text + end)
    return path, lambda: FolderStateStore(folder / "checkpoint").load()


def told_run(folder, number):
    node = NodeConfig(partition_id=0, state_path=str(folder))
    place = Place("run", node)
    place.keep_spec(resolve(RunConfig.from_settings(dataset="digits", clients=2)))
    path = place.folder / "run.json"
    path.write_text(renumbered(path.read_text(), number))
    return path, place.spec


@pytest.mark.parametrize("number", ["99", "1.5", None])
@pytest.mark.parametrize("change", [config, events, state, told_run])
def test_a_file_of_another_format_is_refused_by_name(ended, tmp_path, change, number):
    folder = shutil.copytree(ended, tmp_path / "run")
    path, read = change(folder, number)
    before = contents(folder)

    # A state falls back to no earlier one, which would be lost knowledge.
    with pytest.raises(FormatError) as caught:
        read()

    got = "no format" if number is None else f"format {number}"
    assert re.fullmatch(
        re.escape(f"{path}: got {got}, expected format ")
        + rf"\d of fcl-flower {re.escape(fcl.__version__)}; the file is left as it is: "
        "open it with the version of fcl-flower that wrote it, or begin anew in "
        "another folder",
        str(caught.value),
    )
    assert contents(folder) == before


def test_a_run_of_another_format_does_not_go_on(ended, tmp_path):
    folder = shutil.copytree(ended, tmp_path / "run")
    config(folder, None)
    before = contents(folder)

    with pytest.raises(FormatError, match=r"config\.toml: got no format"):
        fcl.simulate("fedavg", resume=folder, progress=False)

    assert contents(folder) == before
