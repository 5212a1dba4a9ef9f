"""States of runs of 0.2.0 (`write_states.py`) are opened by today's code."""

import json
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from fakes import exact, rounds_of, summary_of
from write_states import LAST, RUNS, Tiny, arrays, run, unpack

import fcl_flower as fcl
from fcl_flower.config.run_config import RunConfig
from fcl_flower.config.run_spec import NodeConfig
from fcl_flower.core.errors import ConfigError, RunUnknownError
from fcl_flower.core.formats import FormatError
from fcl_flower.results import journal, record
from fcl_flower.results.report.run_page import write_report
from fcl_flower.results.result import Result
from fcl_flower.rounds.checkpoint import FolderStateStore
from fcl_flower.rounds.place import Place
from fcl_flower.setup.resolve import resolve

STATES = Path(__file__).parent / "states_0_2_0.json"
CLIENT = ".flower/clients/client-0"


@pytest.fixture
def states(tmp_path):
    """Folders of finished runs, and of some that ended in their second task."""
    kept = json.loads(STATES.read_text())
    assert kept["version"] == "0.2.0"
    unpack(kept["files"], tmp_path)
    return tmp_path


def of_client(folder):
    """Give the place of a client, for the folder of its state."""
    node = NodeConfig(partition_id=0, state_path=str(folder.parents[1]))
    return Place(folder.parent.name, node)


def resume(folder):
    """Go on with what `fcl simulate --resume` reads."""
    config = RunConfig.read(folder / "config.toml", "resume").replace(resume=True)
    given = {"data": arrays(), "model": Tiny, "progress": False}
    return fcl.simulate(config, output=folder, **given)


FORMER = {"threshold": 1e-3, "mask_rate": 30.0, "adapter_bits": 32, "follow": 0.0}
"""FedWeIT's defaults in 0.2.0, which a run has not named, as the changelog says."""


@pytest.mark.parametrize("strategy", RUNS)
def test_a_run_goes_on_and_ends_as_one_of_today(states, tmp_path, strategy):
    folder = states / "ended" / strategy
    before = rounds_of(folder)
    more = {}
    if strategy == "fedweit":
        more = {"strategy": {**RUNS[strategy]["strategy"], **FORMER}}
        lines = "".join(f"{name} = {value}\n" for name, value in FORMER.items())
        file = folder / "config.toml"
        file.write_text(
            file.read_text().replace("lambda1 = 0.0\n", f"lambda1 = 0.0\n{lines}")
        )
    run(strategy, tmp_path / "today", **more)

    resume(folder)

    assert rounds_of(folder)[:LAST] == before
    found, whole = summary_of(folder), summary_of(tmp_path / "today")
    np.testing.assert_array_equal(found["client_accuracy"], whole["client_accuracy"])
    assert found["model_bytes"] == whole["model_bytes"]
    losses = [
        [line["loss"] for line in rounds_of(place)]
        for place in (folder, tmp_path / "today")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    found, whole = (
        FolderStateStore(place / "checkpoint").load().state["base"]
        for place in (folder, tmp_path / "today")
    )
    for name, tensor in whole.items():
        np.testing.assert_allclose(found[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", RUNS)
def test_a_finished_run_is_read_and_its_page_made(states, strategy):
    folder = states / "finished" / strategy

    result = Result.load(folder)

    table = np.loadtxt(
        folder / "accuracy.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3, 5)
    )
    for learned, client, task, accuracy in table:
        at = tuple(map(int, (client, learned, task)))
        assert result.accuracy[at] == record.read(folder).accuracy[at] == accuracy
    assert f"<title>{strategy}" in write_report(folder).read_text()


def test_a_client_of_0_2_0_has_its_state_and_is_told_the_run(states):
    folder = states / "ended" / "fedweit" / CLIENT
    here = states / "a-run" / "client-0"
    here.parent.mkdir()
    folder = folder.rename(here)
    place = of_client(here)

    saved = FolderStateStore(folder).load()
    with pytest.raises(RunUnknownError):
        place.spec()
    spec = resolve(RunConfig.from_settings(dataset="digits", clients=2))
    place.keep_spec(spec)
    FolderStateStore(folder).save(saved.state, saved.round + 1, saved.beside)

    assert saved.round == LAST
    heads = saved.state["heads/0"]
    assert {t.shape for t in heads.values()} >= {(2, 3), (2,)}
    assert place.spec() == spec
    again = FolderStateStore(folder).load()
    assert again.round == LAST + 1
    assert exact(again.state) == exact(saved.state)


# ---- what is newer


def raised(text, number):
    """Give text with another number of its format."""
    changed, count = re.subn(r'(\bformat"?( =|:)) \d+', rf"\1 {number}", text)
    assert count == 1
    return changed


def newer(folder, kind, number):
    """Run, and say of one of the files that it has a format; return how it is read."""
    run("fedavg", folder)
    if kind == "config":
        path = folder / "config.toml"
        path.write_text(raised(path.read_text(), number))
        return path, lambda: RunConfig.read(path, "resume")
    if kind == "journal":
        path = folder / journal.FILE
        first, rest = path.read_bytes().split(b"\n", 1)
        line = b"," + raised(first.decode(), number).encode().split(b",", 1)[1]
        crc = zlib.crc32(line[2:])
        path.write_bytes(b'{"crc": "%08x"%s\n%s' % (crc, line, rest))
        return path, lambda: record.read(folder)
    if kind == "manifest":
        path = folder / "checkpoint" / "manifest-4"
        content = path.read_bytes()
        start = content.index(b'{"format"')
        text = raised(content[start:-12].decode(), number).encode()
        end = struct.pack("<QI", len(text), zlib.crc32(text))
        path.write_bytes(content[:start] + text + end)
        return path, lambda: FolderStateStore(folder / "checkpoint").load()
    place = of_client(folder / "client-0")
    place.keep_spec(resolve(RunConfig.from_settings(dataset="digits", clients=2)))
    path = folder / "client-0" / "run.json"
    path.write_text(raised(path.read_text(), number))
    return path, place.spec


@pytest.mark.parametrize("kind", ["config", "journal", "manifest", "told run"])
def test_a_file_of_a_newer_format_is_refused_by_name(tmp_path, kind):
    path, read = newer(tmp_path / "run", kind, 99)

    # A state falls back to no earlier one, which would be lost knowledge.
    with pytest.raises(FormatError) as caught:
        read()

    assert re.fullmatch(
        re.escape(f"{path}: got format 99, expected at most ")
        + rf"\d, the newest that fcl-flower {re.escape(fcl.__version__)} reads: "
        "install a newer fcl-flower",
        str(caught.value),
    )


@pytest.mark.parametrize("number", ["0", "true", '"2"'])
def test_a_number_that_is_none_is_refused(tmp_path, number):
    path = tmp_path / "config.toml"
    path.write_text(f"format = {number}\n")

    with pytest.raises(FormatError, match="expected a whole number of at least 1"):
        RunConfig.read(path, "config")


def test_settings_of_0_2_0_that_are_gone_are_taken_with_their_old_default(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("[federation]\nsecure_bits = 32\n")
    assert RunConfig.read(path, "config") == RunConfig()

    path.write_text("[federation]\nsecure_bits = 16\n")
    with pytest.raises(ConfigError, match=r"secure_bits: got 'secure_bits'"):
        RunConfig.read(path, "config")
    path.write_text("format = 2\n[federation]\nsecure_bits = 32\n")
    with pytest.raises(ConfigError, match=r"secure_bits: got 'secure_bits'"):
        RunConfig.read(path, "config")
