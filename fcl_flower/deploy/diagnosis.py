"""The reasons why a server cannot be used from here, and their remedies."""

import base64
import datetime
import http.client
import os
import socket
import ssl
import urllib.request
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from fcl_flower.deploy import commands
from fcl_flower.deploy.logs import as_local, now
from fcl_flower.flower_app.environment import no_proxy

if TYPE_CHECKING:
    from cryptography import x509

PROBE_SECONDS = 5.0
DATE_ERROR = 0.5
"""Seconds by which a server's clock may differ from its ``Date``, which is cut to whole
seconds."""

_NOT_FOR_THIS_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
_NOT_YET_VALID, _EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID, _HAS_EXPIRED


class Obstacle(NamedTuple):
    """An obstacle between this machine and a server, and its remedy."""

    cause: str
    remedy: str
    passes: bool
    """Whether the obstacle may go by itself, so that trying again makes sense."""

    @property
    def sentence(self) -> str:
        """The cause and the remedy in one sentence."""
        return f"{self.cause}: {self.remedy}"


class _Server(NamedTuple):
    """The address of a server, and the authority of its certificate."""

    name: str
    host: str
    port: int
    authority: Path | None
    proxy: SplitResult | None


class _Answer(NamedTuple):
    status: int
    ahead: float | None
    """Seconds by which this machine's clock is ahead; None without a ``Date``."""


def diagnose_server(
    server: str, authority: Path | None, place: str = ""
) -> Obstacle | None:
    """Find out why a server, HOST:PORT, cannot be used from here; None if it can.

    The ``authority`` checks the server's certificate; it is None without TLS. The
    question goes through the HTTP proxy of the environment, as Flower's calls do. A
    ``place`` is the path of a call that the server has to answer. Without one the
    server lets clients in, whose clocks have to agree with the server's.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    found = _Server(
        server, host, int(port), authority, proxy_of(host, int(port), authority)
    )
    context = None
    if authority is not None:
        try:
            context = ssl.create_default_context(cafile=authority)
        except ssl.SSLError:
            return Obstacle(
                f"{authority} is no certificate", "copy the server's", False
            )
    try:
        answer = _get(found, context, "/health")
        # A path that exists refuses another method, and does nothing.
        ready = answer.status == 200
        missing = ready and place and _get(found, context, place).status == 404
    except (OSError, http.client.HTTPException) as error:
        return _obstacle(error, found)
    if missing:
        return Obstacle(
            f"at {server} clients come in, and no runs",
            "give --server the --control-port of fcl server",
            False,
        )
    if ready:
        return None if place or answer.ahead is None else _clocks(server, answer.ahead)
    if answer.status >= 500:
        return Obstacle(
            f"the server at {server} is there, but not ready (HTTP status "
            f"{answer.status})",
            "its own log says why, if it stays so",
            True,
        )
    return Obstacle(
        f"what listens at {server} is no fcl server (HTTP status {answer.status})",
        "correct --server",
        False,
    )


def proxy_of(host: str, port: int, authority: Path | None) -> SplitResult | None:
    """Find the HTTP proxy by which Flower reaches a server with or without TLS."""
    scheme = "http" if authority is None else "https"
    named = urllib.request.getproxies_environment()
    address = named.get(scheme) or named.get("all")
    names = (n.strip() for n in no_proxy(os.environ).lower().split(","))
    known = [f".{name.lstrip('.')}" for name in names if name]
    places = f".{host.lower()}", f".{host.lower()}:{port}"
    if not address or any(
        one == ".*" or p.endswith(one) for one in known for p in places
    ):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


# ---- to ask a server


def _connection(
    server: _Server, context: ssl.SSLContext | None
) -> http.client.HTTPConnection:
    proxy, place = server.proxy, (server.host, server.port)
    if proxy is not None:
        place = proxy.hostname or "", proxy.port or 80
    if context is None:
        return http.client.HTTPConnection(*place, timeout=PROBE_SECONDS)
    connection = http.client.HTTPSConnection(
        *place, timeout=PROBE_SECONDS, context=context
    )
    if proxy is not None:
        connection.set_tunnel(server.host, server.port, _password(proxy))
    return connection


def _password(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _get(server: _Server, context: ssl.SSLContext | None, path: str) -> _Answer:
    connection = _connection(server, context)
    headers = {}
    if server.proxy is not None and context is None:  # a proxy takes the whole URL
        path, headers = f"http://{server.name}{path}", _password(server.proxy)
    try:
        asked = now()
        connection.request("GET", path, headers=headers)
        with connection.getresponse() as response:
            response.read()
            here = asked + (now() - asked) / 2
            said = response.headers.get("Date")
            return _Answer(response.status, _ahead(here, said))
    finally:
        connection.close()


def _ahead(here: datetime.datetime, said: str | None) -> float | None:
    try:
        there = parsedate_to_datetime(said or "")
    except ValueError:
        return None
    if there.tzinfo is None:
        return None
    return (here - there).total_seconds() - DATE_ERROR


def _served(server: _Server) -> "x509.Certificate":
    """Read the certificate of a server without checking it."""
    from cryptography import (
        x509,
    )  # imported late, as a client that waits has little memory

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = _connection(server, context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        return x509.load_der_x509_certificate(connection.sock.getpeercert(True) or b"")
    finally:
        connection.close()


# ---- meanings of errors and answers


def _clocks(server: str, ahead: float) -> Obstacle | None:
    if -commands.MAX_BEHIND + DATE_ERROR < ahead < commands.MAX_AHEAD - DATE_ERROR:
        return None
    here = now()
    there = here - datetime.timedelta(seconds=ahead)
    way, most = (
        ("ahead of", commands.MAX_AHEAD)
        if ahead > 0
        else ("behind", commands.MAX_BEHIND)
    )
    return Obstacle(
        f"the clock of this machine is {abs(ahead):.0f} s {way} that of the server at "
        f"{server} ({as_local(here)} here, {as_local(there)} there), and the server "
        f"refuses {most:.0f} s",
        "let NTP set both clocks",
        True,
    )


def _out_of_time(server: _Server, code: int) -> tuple[str, str]:
    """Say that a certificate is not valid now, with both times to compare."""
    assert server.authority is not None  # it has refused the certificate
    whose, here = f"the certificate of the server at {server.name}", now()
    clock = f"the clock of this machine shows {as_local(here)}"
    late = (
        "make another where ca.key is, with fcl certs FOLDER --renew, take it to the "
    )
    late += "server, and start fcl server again"
    from cryptography import x509

    try:
        found = _served(server)
        if found.not_valid_before_utc <= here <= found.not_valid_after_utc:
            whose = f"the certificate of the authority, {server.authority},"
            late = "make all certificates anew with fcl certs FOLDER --overwrite"
            found = x509.load_pem_x509_certificate(server.authority.read_bytes())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{whose} is not valid, and {clock}", f"it cannot be read ({error})"
    if code == _NOT_YET_VALID:
        begins = as_local(found.not_valid_before_utc)
        return f"{whose} is valid from {begins} on, and {clock}", "let NTP set it"
    ended = as_local(found.not_valid_after_utc)
    return f"{whose} has expired at {ended}, and {clock}", late


def _obstacle(error: Exception, server: _Server) -> Obstacle:
    """Say what an error means.

    Every obstacle may pass but the certificate of another host or authority: people
    renew expired certificates, and set clocks.
    """
    name, host, authority = server.name, server.host, server.authority
    passes, remedy = True, "correct --server"
    match error:
        case ssl.SSLCertVerificationError() if error.verify_code in (
            _NOT_YET_VALID,
            _EXPIRED,
        ):
            cause, remedy = _out_of_time(server, error.verify_code)
        case ssl.SSLCertVerificationError() if error.verify_code in _NOT_FOR_THIS_NAME:
            passes = False
            cause = f"the certificate of the server at {name} is not for {host!r}"
            remedy = (
                "use a name that it is for, or make another with fcl certs FOLDER "
                f"--renew --host {host}"
            )
        case ssl.SSLCertVerificationError():
            passes = False
            cause = (
                f"the server at {name} has a certificate of another authority than "
                f"{authority}, or is an impostor"
            )
            remedy = (
                "ask the server's owner for its ca.crt, by another way than this server"
            )
        case OSError() if server.proxy and not isinstance(
            error, ssl.SSLError | ConnectionResetError
        ):
            proxy = f"{server.proxy.hostname}:{server.proxy.port or 80}"
            cause = f"{name} cannot be reached through the HTTP proxy {proxy} ({error})"
            variable = "http_proxy" if authority is None else "https_proxy"
            remedy = f"correct {variable}, or name {host} in no_proxy"
        case socket.gaierror():
            cause = f"no machine is known as {host!r}"
        case ConnectionRefusedError():
            cause = f"no program listens at {name}"
            remedy = "start fcl server there, or correct --server"
        case TimeoutError():
            cause = f"nothing answers at {name}"
            remedy = "correct --server, or open the port in the firewall"
        case ssl.SSLError() | http.client.HTTPException() | ConnectionResetError():
            spoken = "TLS" if authority else "HTTP without TLS"
            cause = f"what listens at {name} does not speak {spoken}"
            remedy = (
                f"correct --server, or give {'--insecure' if authority else '--certs'} "
                "if the server was started so"
            )
        case _:
            cause = f"{name} cannot be reached: {error}"
    return Obstacle(cause, remedy, passes)
