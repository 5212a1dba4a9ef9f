"""The units of docker/systemd/: systemd takes them, and fcl what they start."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from fcl_flower.cli.main import cli

FOLDER = Path(__file__).parents[2] / "docker" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
STAY = [path for path in UNITS if not path.name.startswith("fcl-predict")]
PROGRAM = "/usr/local/lib/fcl/bin/fcl"
HARDENED = {
    *("NoNewPrivileges=yes", "PrivateTmp=yes", "ProtectSystem=strict"),
    *("ProtectHome=yes", "CapabilityBoundingSet=", "RestrictNamespaces=yes"),
}


def test_there_is_a_unit_for_each_program_that_stays():
    assert list(map(name, STAY)) == [
        *("fcl-client@.service", "fcl-serve.service", "fcl-server.service"),
    ]


def name(path):
    return path.name


def settings(path):
    """Read the lines of a unit, those that go on as one."""
    text = path.read_text().replace("\\\n", " ")
    return [" ".join(line.split()) for line in text.splitlines() if "=" in line]


def value(path, key):
    (found,) = [s for s in settings(path) if s.startswith(f"{key}=")]
    return found.partition("=")[2]


@pytest.mark.parametrize("path", STAY, ids=name)
def test_what_it_starts_is_a_command_of_fcl(path):
    command = value(path, "ExecStart")
    command = command.replace("${FCL_SERVER}", "fl.example.org:9092")
    command = re.sub(r"\$\{\w+\}", "folder", command).replace(" $FCL_OPTIONS", "")
    program, called, *arguments = shlex.split(command.replace("%i", "7"))

    assert program == PROGRAM
    parsed = cli.get_command(None, called)
    with click.Context(parsed) as context:
        parsed.parse_args(context, arguments)
        assert context.params["certs"] == Path("/etc/fcl/certs")
        assert context.params.get("number", 7) == 7
    # The only place that it may write to.
    written = str(context.params.get("state") or context.params["output"])
    place = f"%S/{value(path, 'StateDirectory').replace('%i', '7')}"
    assert f"{written}/".startswith(f"{place}/")


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_it_is_hardened(path):
    assert set(settings(path)) >= HARDENED
    assert value(path, "User") == "fcl"
    assert "#MemoryMax=" in path.read_text()


@pytest.mark.parametrize("path", STAY, ids=name)
def test_it_comes_back_but_not_without_end(path):
    always = path.name == "fcl-serve.service"
    assert value(path, "Restart") == ("always" if always else "on-failure")
    assert int(value(path, "StartLimitBurst")) > 1
    # fcl ends so when it is stopped.
    assert value(path, "SuccessExitStatus") == "143"


def test_what_predicts_reads_the_state_that_the_client_writes():
    unit = FOLDER / "fcl-predict@.service"
    program, state, folder, _ = shlex.split(value(unit, "ExecStart"))

    assert (FOLDER / Path(program).name).stat().st_mode & 0o111
    client = value(FOLDER / "fcl-client@.service", "StateDirectory")
    assert state == f"%S/{client}"
    assert folder == f"%S/{value(unit, 'StateDirectory')}"


@pytest.mark.process
@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed"
)
def test_systemd_takes_them(tmp_path):
    for path in [*UNITS, *FOLDER.glob("*.timer")]:
        # It looks whether the program is there.
        text = re.sub(rf"{PROGRAM}\S*", sys.executable, path.read_text())
        (tmp_path / path.name.replace("@", "@0")).write_text(text)
    units = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line]

    assert said == []
    assert done.returncode == 0, done.stderr
