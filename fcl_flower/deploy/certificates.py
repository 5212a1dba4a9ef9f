"""Identities of a federation: an authority, the server's certificate, clients' keys.

Clients know the server by a certificate of the federation's own authority (TLS). The
server knows a client by its public key (Flower's SuperNode authentication), which the
authority does not sign.
"""

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fcl_flower.core.errors import config_error
from fcl_flower.core.files import replace_file

HERE = ("localhost", "127.0.0.1")
AUTHORITY_DAYS = 3650

_DNS_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


@final
class Certificates:
    """The files of one federation, all in one folder; keys are secrets.

    Clients know the server by the authority's certificate. Only another certificate
    needs the authority's key.
    """

    def __init__(self, folder: Path) -> None:
        """Name the files in a folder."""
        self.folder = folder
        self.authority, self.authority_key = folder / "ca.crt", folder / "ca.key"
        self.server, self.server_key = folder / "server.crt", folder / "server.key"
        self.clients = folder / "clients"

    def client_key(self, number: int) -> Path:
        """Key of a client; its public key lies beside it."""
        return self.clients / f"client-{number}.key"

    def ends(self) -> datetime.datetime:
        """Read when the server's certificate ends, in UTC.

        Raises:
            ConfigError: there is none.
        """
        return _read_certificate(self.server).not_valid_after_utc

    def require(self, *files: Path) -> None:
        """Check that files of the folder are there.

        Raises:
            ConfigError: one is missing.
        """
        for path in files:
            if not path.is_file():
                name = path.relative_to(self.folder)
                expected = f"a folder with {name}, as fcl certs makes it"
                raise config_error("certs", str(self.folder), expected)


def make_certificates(
    folder: Path,
    hosts: Sequence[str],
    clients: int,
    days: int,
    *,
    overwrite: bool,
    renew: bool = False,
) -> list[Path]:
    """Make the missing files, or all anew; return the new files.

    A client with a public key in the folder gets no other key. The server's certificate
    is for ``hosts`` and this machine's own names, for so many days. An existing
    certificate takes no hosts unless it is renewed. Renewal without hosts keeps the
    names of the old certificate, and replaces no other file.

    Raises:
        ConfigError: a host is no name or address, hosts are missing or too many, or a
            file is elsewhere that another one needs.
    """
    files = Certificates(folder)
    if overwrite and renew:
        raise config_error("renew", renew, "false with --overwrite, which replaces all")
    there = files.server.exists()
    certified = there and not (overwrite or renew)
    if certified and hosts:
        expected = f"none, as {files.server} is there (--renew replaces it)"
        raise config_error("host", ", ".join(hosts), expected)
    if there and renew and not hosts:
        hosts = _hosts(files.server)
    if not certified and not hosts:
        expected = "the name or the address by which clients reach the server"
        raise config_error("host", "", expected)
    made: list[Path] = []
    try:
        files.clients.mkdir(parents=True, exist_ok=True)
        if not certified:
            names = [_general_name(host) for host in dict.fromkeys((*hosts, *HERE))]
            if overwrite or not _has_authority(files):
                made += _make_authority(files)
            made += _certify_server(files, hosts[0], names, days, new_key=overwrite)
        for number in range(clients):
            key = files.client_key(number)
            if overwrite or not (key.exists() or key.with_suffix(".pub").exists()):
                made += _make_client_key(key)
    except OSError as error:
        expected = f"a folder that can be written ({error.strerror})"
        raise config_error("certs", str(folder), expected) from error
    return made


def _has_authority(files: Certificates) -> bool:
    """Return whether there is an authority; refuse one with a missing part."""
    pair = files.authority, files.authority_key
    missing = [path.name for path in pair if not path.exists()]
    others = *pair, files.server, files.server_key
    if missing and any(path.exists() for path in others):
        raise config_error(
            "certs",
            str(files.folder),
            f"a folder with {' and '.join(missing)}, which certify the server: copy "
            "back here what was moved away (--overwrite replaces all, and locks out "
            "each client until it has the new ca.crt and its new key)",
        )
    return not missing


def _hosts(server: Path) -> list[str]:
    """Read the names that a server's certificate is for."""
    found = _read_certificate(server).extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        expected = f"a certificate, as fcl certs makes it ({error})"
        raise config_error("certs", str(path), expected) from error


def _make_authority(files: Certificates) -> list[Path]:
    key, name = ec.generate_private_key(ec.SECP384R1()), "fcl-flower authority"
    builder = _builder(name, key.public_key(), AUTHORITY_DAYS, signs=True)
    certificate = builder.issuer_name(_title(name)).sign(key, hashes.SHA384())
    _write_secret(files.authority_key, _pem(key))
    files.authority.write_bytes(certificate.public_bytes(Encoding.PEM))
    return [files.authority_key, files.authority]


def _certify_server(
    files: Certificates,
    title: str,
    names: Iterable[x509.GeneralName],
    days: int,
    *,
    new_key: bool,
) -> list[Path]:
    authority, signer = _read_certificate(files.authority), _key(files.authority_key)
    made = [files.server]
    if new_key or not files.server_key.exists():
        _write_secret(files.server_key, _pem(ec.generate_private_key(ec.SECP256R1())))
        made.insert(0, files.server_key)
    public = _key(files.server_key).public_key()
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    certificate = (
        _builder(title, public, days, signs=False)
        .issuer_name(authority.subject)
        .add_extension(usage, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signed_by, critical=False)
        .sign(signer, hashes.SHA384())
    )
    # A server that starts meanwhile reads the old or the new certificate, whole.
    replace_file(files.server, certificate.public_bytes(Encoding.PEM))
    return made


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key of the authority or of the server."""
    expected = "a key on an elliptic curve, as fcl certs makes it"
    try:
        found = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise config_error("certs", str(path), f"{expected} ({error})") from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise config_error("certs", str(path), expected)
    return found


def _builder(
    title: str, key: ec.EllipticCurvePublicKey, days: int, *, signs: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    constraints = x509.BasicConstraints(ca=signs, path_length=0 if signs else None)
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_title(title))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def _title(text: str) -> x509.Name:
    # X.509 allows 64 characters; clients look at the alternative names alone.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        expected = "a name such as fl.example.org or an IP address, without a port"
        raise config_error("host", host, expected)
    return x509.DNSName(host)


def _make_client_key(path: Path) -> list[Path]:
    """Write a pair of keys for SuperNode authentication: P-384, OpenSSH."""
    key, public_path = ec.generate_private_key(ec.SECP384R1()), path.with_suffix(".pub")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_secret(
        path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    )
    public_path.write_bytes(public + f" {path.stem}\n".encode())
    return [path, public_path]


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that other users can read at no moment."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
