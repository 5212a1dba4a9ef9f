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


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs")
    hosts = ["fl.example.org", "10.1.2.3", "2001:db8::1"]
    make_certificates(folder, hosts, 2, 30, overwrite=False)
    return Certificates(folder)


def test_a_folder_holds_what_everybody_needs_and_nothing_else(files):
    names = {str(path.relative_to(files.folder)) for path in contents(files.folder)}

    assert names == {
        *("ca.crt", "ca.key", "server.crt", "server.key"),
        *("clients/client-0.key", "clients/client-0.pub"),
        *("clients/client-1.key", "clients/client-1.pub"),
    }


def test_secrets_are_readable_by_their_owner_alone(files):
    modes = {
        path.suffix: stat.S_IMODE(path.stat().st_mode) & 0o077
        for path in contents(files.folder)
    }

    assert modes[".key"] == 0


def test_the_servers_names_are_those_given_and_this_machines(files):
    names = certificate(files.server).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )

    assert names.value.get_values_for_type(x509.DNSName) == [
        "fl.example.org",
        "localhost",
    ]
    assert names.value.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address("10.1.2.3"),
        ipaddress.ip_address("2001:db8::1"),
        ipaddress.ip_address("127.0.0.1"),
    ]


def test_the_authority_signed_for_as_long_as_asked(files):
    server, authority = map(certificate, (files.server, files.authority))
    server.verify_directly_issued_by(authority)
    now = datetime.datetime.now(datetime.UTC)
    left = server.not_valid_after_utc - now

    assert datetime.timedelta(29) < left <= datetime.timedelta(30)
    assert authority.not_valid_after_utc > server.not_valid_after_utc


def test_a_server_cannot_certify_others(files):
    found = certificate(files.server).extensions
    basic = found.get_extension_for_class(x509.BasicConstraints)
    usage = found.get_extension_for_class(x509.KeyUsage)

    assert not basic.value.ca
    assert not usage.value.key_cert_sign


def test_a_clients_keys_are_a_pair_of_the_kind_that_flower_wants(files):
    for number in (0, 1):
        path = files.client_key(number)
        key = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert isinstance(key.curve, ec.SECP384R1)
        assert key.public_key() == public


def test_more_clients_get_keys_and_all_else_stays(tmp_path):
    make_certificates(tmp_path, ["localhost"], 1, 30, overwrite=False)
    before = contents(tmp_path)

    made = make_certificates(tmp_path, [], 3, 30, overwrite=False)

    assert [path.name for path in made] == [
        *("client-1.key", "client-1.pub", "client-2.key", "client-2.pub"),
    ]
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before


def test_an_expired_certificate_is_made_again_by_the_same_authority(tmp_path):
    files = Certificates(tmp_path)
    make_certificates(tmp_path, ["localhost"], 0, 30, overwrite=False)
    authority = files.authority.read_bytes()
    files.server.unlink()

    make_certificates(tmp_path, ["other.example"], 0, 30, overwrite=False)

    assert files.authority.read_bytes() == authority
    certificate(files.server).verify_directly_issued_by(certificate(files.authority))


def test_everything_is_made_anew_where_that_is_asked_for(tmp_path):
    make_certificates(tmp_path, ["localhost"], 1, 30, overwrite=False)
    before = contents(tmp_path)

    make_certificates(tmp_path, ["localhost"], 1, 30, overwrite=True)

    after = contents(tmp_path)
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values())
    Certificates(tmp_path).client_key(0)
    assert stat.S_IMODE((tmp_path / "server.key").stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["a b", "", "fl.example.org:9092", "-x", "ü.example"])
def test_a_host_that_is_no_name_is_refused(tmp_path, host):
    with pytest.raises(ConfigError, match=r"host: got .*, expected a name"):
        make_certificates(tmp_path, [host], 0, 30, overwrite=False)

    assert contents(tmp_path) == {}


def test_a_certificate_without_a_host_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="host: got '', expected the name"):
        make_certificates(tmp_path, [], 2, 30, overwrite=False)

    assert contents(tmp_path) == {}


def test_another_host_for_a_certificate_that_is_there_is_refused(tmp_path):
    make_certificates(tmp_path, ["localhost"], 0, 30, overwrite=False)
    before = contents(tmp_path)

    with pytest.raises(
        ConfigError, match=r"got 'other.example', expected none.*--overwrite"
    ):
        make_certificates(tmp_path, ["other.example"], 0, 30, overwrite=False)

    assert contents(tmp_path) == before


def test_an_authority_without_its_key_certifies_no_server(tmp_path):
    make_certificates(tmp_path, ["localhost"], 0, 30, overwrite=False)
    files = Certificates(tmp_path)
    files.server.unlink()
    files.authority_key.unlink()

    with pytest.raises(
        ConfigError, match=r"certs: got .*ca\.key and .*ca\.crt', expected the key"
    ):
        make_certificates(tmp_path, ["localhost"], 0, 30, overwrite=False)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "taken").write_text("")

    with pytest.raises(
        ConfigError, match=r"certs: got .*taken/x', expected a folder that can be"
    ):
        make_certificates(tmp_path / "taken" / "x", ["a"], 0, 30, overwrite=False)
