"""Why a server cannot be reached, in one sentence with what to do about it.

Flower tries without end and without a reason where nobody listens, and shows the
exceptions of its libraries where somebody else does.
"""

import http.client
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

SECONDS = 5.0
CONTROL = "/v1/control/start-run"
"""Where a SuperLink of Flower 1.41 starts runs, and the reverse proxy has nothing."""

_NOT_FOR_THIS_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED


class Obstacle(NamedTuple):
    """What stands between this machine and a server.

    Attributes:
        sentence: what it is, and what to do about it; without a full stop.
        passes: it may go by itself, so that trying again makes sense.
    """

    sentence: str
    passes: bool


def find_obstacle(
    server: str, authority: Path | None, place: str = ""
) -> Obstacle | None:
    """Return why a server cannot be used from here; None if it can.

    Args:
        server: HOST:PORT of ``fcl server``.
        authority: the certificate that the server's is checked with; None without TLS.
        place: the path of a call that is to be answered there too; empty for none.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    connection: http.client.HTTPConnection
    if authority is None:
        connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    else:
        try:
            context = ssl.create_default_context(cafile=authority)
        except ssl.SSLError:
            return Obstacle(f"{authority} is no certificate: copy the server's", False)
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=SECONDS, context=context
        )
    try:
        status = _status(connection, "/health")
        # Of a place that there is, another method is refused, and nothing done.
        missing = status == 200 and place and _status(connection, place) == 404
    except (OSError, http.client.HTTPException) as error:
        return _obstacle(error, server, host, authority)
    finally:
        connection.close()
    if missing:
        return Obstacle(
            f"at {server} clients come in, and no runs: give --server the "
            "--control-port of fcl server",
            False,
        )
    if status == 200:
        return None
    if status >= 500:
        return Obstacle(
            f"the server at {server} is there, but not ready (HTTP status {status}): "
            "its own log says why, if it stays so",
            True,
        )
    return Obstacle(
        f"what listens at {server} is no fcl server (HTTP status {status}): correct "
        "--server",
        False,
    )


def _status(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    with connection.getresponse() as response:
        response.read()
        return response.status


def _obstacle(
    error: Exception, server: str, host: str, authority: Path | None
) -> Obstacle:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Obstacle(_distrust(error, server, host, authority), False)
    if isinstance(error, socket.gaierror):
        return Obstacle(f"no machine is known as {host!r}: correct --server", True)
    if isinstance(error, ConnectionRefusedError):
        return Obstacle(
            f"no program listens at {server}: start fcl server there, or correct "
            "--server",
            True,
        )
    if isinstance(error, TimeoutError):
        return Obstacle(
            f"nothing answers at {server}: correct --server, or open the port in the "
            "firewall",
            True,
        )
    garbled = (ssl.SSLError, http.client.HTTPException, ConnectionResetError)
    if isinstance(error, garbled):
        instead = "--insecure" if authority else "--certs"
        return Obstacle(
            f"what listens at {server} does not speak "
            f"{'TLS' if authority else 'HTTP without TLS'}: correct --server, or give "
            f"{instead} if the server was started so",
            True,
        )
    return Obstacle(f"{server} cannot be reached: {error}: correct --server", True)


def _distrust(
    error: ssl.SSLCertVerificationError,
    server: str,
    host: str,
    authority: Path | None,
) -> str:
    if error.verify_code in _NOT_FOR_THIS_NAME:
        return (
            f"the certificate of the server at {server} is not for {host!r}: use a "
            f"name that it is for, or make another with fcl certs --host {host}"
        )
    if error.verify_code == _EXPIRED:
        return (
            f"the certificate of the server at {server} has expired: delete its "
            "server.crt and make another with fcl certs --host"
        )
    return (
        f"the server at {server} has a certificate of another authority than "
        f"{authority}, or is an impostor: copy ca.crt from the server's folder of "
        "certificates"
    )
