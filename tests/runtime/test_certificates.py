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
from fcl_flower.runtime.certificates import Certificates, make_certificates


def make(folder, hosts=("localhost",), clients=0, overwrite=False):
    return make_certificates(folder, hosts, clients, 30, overwrite=overwrite)


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
        ([], "", ["other.example"], r"got 'other.example', expected none.*--overwrite"),
        (
            ["server.crt", "ca.key"],
            *("", ["localhost"]),
            r"certs: got .*ca\.key and .*ca\.crt', expected the key",
        ),
        ([], "ca.crt/x", ["a"], r"certs: got .*ca.crt/x', expected a folder that can"),
    ],
    ids=["another host", "an authority without its key", "no folder"],
)
def test_what_cannot_be_done_is_refused(tmp_path, without, place, hosts, message):
    make(tmp_path)
    for name in without:
        (tmp_path / name).unlink()
    before = contents(tmp_path)

    with pytest.raises(ConfigError, match=message):
        make(tmp_path / place, hosts)

    assert contents(tmp_path) == before
