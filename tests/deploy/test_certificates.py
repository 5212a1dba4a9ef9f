import datetime
import ipaddress
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

from fcl_flower.core.errors import ConfigError
from fcl_flower.deploy.certificates import Certificates, make_certificates


def make(folder, hosts=("localhost",), clients=0, overwrite=False, renew=False):
    given = folder, hosts, clients, 30
    return make_certificates(*given, overwrite=overwrite, renew=renew)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    make(folder, ["fl.example.org", "10.1.2.3", "2001:db8::1"], clients=2)
    return Certificates(folder)


def test_a_folder_holds_what_everybody_needs_and_secrets_are_their_owners(files):
    modes = {
        str(path.relative_to(files.folder)): stat.S_IMODE(path.stat().st_mode)
        for path in contents(files.folder)
    }

    assert modes.keys() == {
        *("ca.crt", "ca.key", "server.crt", "server.key"),
        *("clients/client-0.key", "clients/client-0.pub"),
        *("clients/client-1.key", "clients/client-1.pub"),
    }
    assert {mode for name, mode in modes.items() if name.endswith("key")} == {0o600}


def test_a_certificate_is_the_servers_alone_and_lasts_as_long_as_asked(files):
    server, authority = map(certificate, (files.server, files.authority))
    found = server.extensions.get_extension_for_class
    names = found(x509.SubjectAlternativeName).value
    left = server.not_valid_after_utc - datetime.datetime.now(datetime.UTC)

    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(one) for one in ("10.1.2.3", "2001:db8::1", "127.0.0.1")
    ]
    server.verify_directly_issued_by(authority)
    assert datetime.timedelta(29) < left <= datetime.timedelta(30)
    assert authority.not_valid_after_utc > server.not_valid_after_utc
    assert not found(x509.BasicConstraints).value.ca
    assert not found(x509.KeyUsage).value.key_cert_sign


def test_a_clients_keys_are_a_pair_of_the_kind_that_flower_wants(files):
    for number in (0, 1):
        path = files.client_key(number)
        key = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert isinstance(key.curve, ec.SECP384R1)
        assert key.public_key() == public


def test_more_clients_get_keys_and_all_else_stays(tmp_path):
    make(tmp_path, clients=1)
    before = contents(tmp_path)

    made = make(tmp_path, [], clients=3)

    assert [path.name for path in made] == [
        *("client-1.key", "client-1.pub", "client-2.key", "client-2.pub"),
    ]
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before


def test_an_expired_certificate_is_made_again_by_the_same_authority(tmp_path):
    files = Certificates(tmp_path)
    make(tmp_path)
    authority = files.authority.read_bytes()
    files.server.unlink()

    make(tmp_path, ["other.example"])

    assert files.authority.read_bytes() == authority
    certificate(files.server).verify_directly_issued_by(certificate(files.authority))


@pytest.mark.parametrize("kept", ["pub", "key"])
def test_a_client_that_has_half_of_its_keys_here_gets_no_others(tmp_path, kept):
    make(tmp_path, clients=2)
    for path in (tmp_path / "clients").iterdir():
        if path.suffix != f".{kept}":
            path.unlink()
    before = contents(tmp_path)

    made = make(tmp_path, [], clients=3)

    assert [path.name for path in made] == ["client-2.key", "client-2.pub"]
    assert {path: contents(tmp_path)[path] for path in before} == before


def test_a_public_key_names_its_client(files):
    public = files.client_key(1).with_suffix(".pub").read_text()

    assert public.split()[2:] == ["client-1"]


def test_a_certificate_is_renewed_for_its_names_and_nothing_else_changes(tmp_path):
    files = Certificates(tmp_path)
    make(tmp_path, ["fl.example.org", "10.1.2.3"], clients=1)
    files.client_key(0).unlink()
    before, old = contents(tmp_path), certificate(files.server)
    kind = x509.SubjectAlternativeName

    made = make(tmp_path, [], renew=True)

    after, new = contents(tmp_path), certificate(files.server)
    assert made == [files.server]
    assert {path for path in after if after[path] != before.get(path)} == {files.server}
    assert after.keys() == before.keys()
    assert new.serial_number != old.serial_number
    new.verify_directly_issued_by(certificate(files.authority))
    found = new.extensions.get_extension_for_class(kind).value
    assert set(found) == set(old.extensions.get_extension_for_class(kind).value)
    assert new.subject == old.subject
    assert files.ends() == new.not_valid_after_utc

    make(tmp_path, ["other.example"], renew=True)

    found = certificate(files.server).extensions.get_extension_for_class(kind).value
    names = found.get_values_for_type(x509.DNSName)
    assert names == ["other.example", "localhost"]


def test_everything_is_made_anew_where_that_is_asked_for(tmp_path):
    make(tmp_path, clients=1)
    before = contents(tmp_path)

    make(tmp_path, clients=1, overwrite=True)

    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((one, "a name such") for one in ("a b", "", "a.org:9092", "-x", "ü.example")),
        (None, "the name or the address"),
    ],
)
def test_without_a_name_nothing_is_made(tmp_path, host, expected):
    with pytest.raises(ConfigError, match=rf"host: got .*, expected {expected}"):
        make(tmp_path, [] if host is None else [host], clients=2)

    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("without", "place", "hosts", "message"),
    [
        ([], "", ["other.example"], r"got 'other.example', expected none.*--renew"),
        *(
            (names, "", ["localhost"], f"expected a folder with {said}, which certify")
            for names, said in (
                (["server.crt", "ca.key"], r"ca\.key"),
                (["server.crt", "ca.crt"], r"ca\.crt"),
                (["server.crt", "ca.key", "ca.crt"], r"ca\.crt and ca\.key"),
            )
        ),
        ([], "ca.crt/x", ["a"], r"certs: got .*ca.crt/x', expected a folder that can"),
    ],
    ids=["another host", "no ca.key", "no ca.crt", "no authority", "no folder"],
)
def test_what_cannot_be_done_is_refused(tmp_path, without, place, hosts, message):
    make(tmp_path)
    for name in without:
        (tmp_path / name).unlink()
    before = contents(tmp_path)

    with pytest.raises(ConfigError, match=message):
        make(tmp_path / place, hosts)

    assert contents(tmp_path) == before


def test_a_certificate_is_not_renewed_without_the_authoritys_key(tmp_path):
    make(tmp_path)
    (tmp_path / "ca.key").unlink()
    before = contents(tmp_path)

    with pytest.raises(ConfigError, match=r"a folder with ca\.key, which certify the"):
        make(tmp_path, [], renew=True)
    with pytest.raises(ConfigError, match="renew: got true, expected false with --ov"):
        make(tmp_path, ["localhost"], renew=True, overwrite=True)

    assert contents(tmp_path) == before
