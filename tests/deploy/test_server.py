"""Which clients a server lets in: those whose public keys are in its folder."""

import pytest

from fcl_flower.deploy.certificates import Certificates, make_certificates
from fcl_flower.deploy.node_auth import NodeKeys
from fcl_flower.deploy.server import _KeyFolder


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
