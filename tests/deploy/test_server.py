"""Which clients a server lets in, and what it says of a run that was killed."""

import os
import subprocess
import sys

import pytest

from fcl_flower.deploy import server
from fcl_flower.deploy.certificates import Certificates, make_certificates
from fcl_flower.deploy.node_auth import NodeKeys
from fcl_flower.deploy.server import _KeyFolder, _ServerApps


@pytest.fixture
def files(tmp_path):
    make_certificates(tmp_path, ["localhost"], 3, 1, overwrite=False)
    return Certificates(tmp_path)


@pytest.fixture
def watch(files):
    said, keys = [], NodeKeys()
    return _KeyFolder(files.clients, keys, said.append, files.folder), keys, said


def known(keys):
    return sorted(name for name, _ in keys._known.values())


APP = """
import sys, time
from pathlib import Path
from fcl_flower.results.known_runs import noted
with noted(Path(sys.argv[1]), "a/b", Path("/runs/a")):
    print("begun", flush=True)
    if sys.stdin.readline() == "leave\\n":
        sys.exit(3)
    time.sleep(600)
"""


@pytest.mark.process
@pytest.mark.parametrize("end", ["leave", "killed"])
def test_a_run_that_ends_without_a_word_is_named_with_its_status(
    tmp_path, monkeypatch, end
):
    monkeypatch.setattr(server, "APP_SECONDS", 0.0)
    said = []
    apps = _ServerApps(tmp_path, said.append)
    command = [sys.executable, "-c", APP, str(tmp_path / "runs")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as app:
        assert app.stdout.readline() == "begun\n"
        apps.look()
        if end == "leave":
            app.stdin.write("leave\n")
            app.stdin.flush()
        else:
            app.kill()
        os.waitid(os.P_PID, app.pid, os.WEXITED | os.WNOWAIT)
        apps.look()
        apps.look()
    name = f"the server app of run a/b, process {app.pid}, was ended from outside"
    assert said == ([f"{name}, by signal 9 (Killed)"] if end == "killed" else [])


def test_keys_are_let_in_as_they_come_and_go(files, watch):
    folder, keys, said = watch
    public = files.clients / "client-1.pub"
    text = public.read_bytes()
    public.unlink()

    assert [path.name for path in folder.look()] == ["client-0.pub", "client-2.pub"]
    assert known(keys) == ["client-0", "client-2"]
    assert folder.look() == []
    public.write_bytes(text)
    assert folder.look() == [public]
    assert known(keys) == ["client-0", "client-1", "client-2"]
    public.unlink()
    assert folder.look() == []
    assert known(keys) == ["client-0", "client-2"]
    assert said == ["client-1.pub is gone: its client is not let in any more"]


def test_a_key_that_is_replaced_is_registered_anew(files, watch):
    folder, keys, _ = watch
    folder.look()
    before = {name: sent for sent, (name, _) in keys._known.items()}
    make_certificates(files.folder, ["localhost"], 1, 1, overwrite=True)

    assert [path.name for path in folder.look()] == ["client-0.pub"]
    after = {name: sent for sent, (name, _) in keys._known.items()}
    assert {name for name in after if after[name] != before[name]} == {"client-0"}


def test_a_file_without_a_key_is_named_once_and_stops_nobody(files, watch):
    folder, keys, said = watch
    (files.clients / "client-1.pub").write_text("no key")

    assert len(folder.look()) == 2
    assert folder.look() == []
    assert known(keys) == ["client-0", "client-2"]
    (line,) = said
    assert line.startswith("could not register client-1.pub: ")
